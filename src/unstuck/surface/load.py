"""Losses named on the command line: `losses.py:my_loss` or `torch.nn.functional:huber_loss`. Loading runs the file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from unstuck.surface.loss import SurfaceError


def load(target: str) -> Any:
    """The loss of this name, from a file or an installed module."""
    where, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise SurfaceError(f"{target!r} names no loss; write file.py:function, such as losses.py:my_loss.")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_module(where)
    if not hasattr(module, name):
        raise SurfaceError(f"{where} has no {name!r}{_nearest(name, module)}.")
    return getattr(module, name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SurfaceError(f"{path} does not exist, or is not a file; check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SurfaceError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    # As `python losses.py` would: the file's neighbours can be imported, and it can be pickled and inspected.
    sys.path.insert(0, str(path.absolute().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SurfaceError(f"{path}{_line(error, path)} raises when it is loaded: {_said(error)}") from None
    finally:
        sys.path.pop(0)
    return module


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise SurfaceError(f"{name} cannot be imported: {_said(error)}") from None


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).absolute() == path.absolute()]
    return f":{lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    text = str(error.msg if isinstance(error, SyntaxError) else error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _nearest(name: str, module: ModuleType) -> str:
    import difflib

    close = difflib.get_close_matches(name, [word for word in vars(module) if not word.startswith("_")], 1)
    return f"; did you mean {close[0]!r}?" if close else ""
