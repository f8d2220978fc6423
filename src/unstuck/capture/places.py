"""Where in the user's code we are: the innermost frame that is neither torch's, ours, nor a library's."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterable
from types import CodeType, FrameType, TracebackType

from unstuck.events import Place

TRANSPARENT = "<unstuck importlib _bootstrap>"
"""File name of our wrapper frames. `warnings` does not count frames whose name holds these two words, so a
warning raised below a wrapper still points at the user's line."""

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_WEAVING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_hooks", "weaving.py")
_USER, _LIBRARY, _MACHINERY, _WOVEN = range(4)
_CACHE_LIMIT = 4096


class Places:
    """Finds call sites. Paths below the directory we started in are shown relative to it, and those of a copy of the
    directory tree below `stage` as what they are copies of."""

    def __init__(self, stage: str = "") -> None:
        self._directory = os.getcwd() + os.sep
        self._stage = stage
        self._ranks: dict[str, int] = {}
        self._known: dict[tuple[int, int], tuple[CodeType, Place]] = {}

    def here(self) -> Place | None:
        """The user's line that led to this call."""
        frame: FrameType | None = sys._getframe(1)
        library: FrameType | None = None
        ranks = self._ranks
        while frame is not None:
            filename = frame.f_code.co_filename
            rank = ranks[filename] if filename in ranks else self._rank(filename)
            if rank == _USER:
                return self._place(frame.f_code, frame.f_lasti, frame.f_lineno)
            if rank == _WOVEN and frame.f_back is not None:
                frame = frame.f_back  # the function that is observed: who called it counts, also where it is the user's
            elif rank == _LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        return self._place(library.f_code, library.f_lasti, library.f_lineno) if library else None

    def of_traceback(self, traceback: TracebackType | None) -> tuple[Place, ...]:
        """The user's frames of a traceback, outermost first."""
        return tuple(
            self._place(entry.tb_frame.f_code, entry.tb_lasti, entry.tb_lineno)
            for entry in chain_of(traceback)
            if self._rank(entry.tb_frame.f_code.co_filename) == _USER
        )

    def is_users(self, code: CodeType) -> bool:
        """Was this written by the user, and not by a library, torch or us?"""
        return self._rank(code.co_filename) == _USER

    def is_users_file(self, filename: str) -> bool:
        """The same of a whole file."""
        return self._rank(filename) == _USER

    def of_file(self, path: str, line: int, column: int) -> Place:
        """A line that never ran, such as that of a syntax error."""
        return Place(self._shown(path), line, column)

    def _rank(self, filename: str) -> int:
        rank = self._ranks.get(filename)
        if rank is None:
            rank = self._ranks[filename] = _rank_of(filename)
        return rank

    def _place(self, code: CodeType, instruction: int, line: int) -> Place:
        key = (id(code), instruction)
        known = self._known.get(key)
        if known is not None and known[0] is code:
            return known[1]
        place = self._read(code, instruction, line)
        if len(self._known) < _CACHE_LIMIT:
            self._known[key] = (code, place)
        return place

    def _read(self, code: CodeType, instruction: int, line: int) -> Place:
        positions = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
        start, end, column, end_column = positions
        function = "" if code.co_name == "<module>" else code.co_qualname
        if start is None or column is None or end_column is None:
            known = start or line or code.co_firstlineno
            return Place(self._shown(code.co_filename), known, function=function)
        return Place(self._shown(code.co_filename), start, column + 1, end or start, end_column + 1, function)

    def _shown(self, filename: str) -> str:
        return filename.removeprefix(self._directory).removeprefix(self._stage)


def _rank_of(filename: str) -> int:
    if filename == _WEAVING:
        return _WOVEN
    if filename.startswith((_OURS, "<frozen ")) or filename == TRANSPARENT:
        return _MACHINERY
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch and filename.startswith(os.path.dirname(torch) + os.sep):
        return _MACHINERY
    if f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename:
        return _LIBRARY
    if filename.startswith(_STDLIB):
        return _MACHINERY
    if filename.startswith("<") and not filename.startswith(("<stdin>", "<ipython")):
        return _LIBRARY
    return _USER


def is_users_class(kind: type) -> bool:
    """Is the class written in the program, and not in torch or another installed package?"""
    return kind.__module__ == "__main__" or _is_users_module(kind.__module__)


@functools.cache
def _is_users_module(name: str) -> bool:
    filename = getattr(sys.modules.get(name), "__file__", None)
    return filename is not None and _rank_of(filename) == _USER


def chain_of(traceback: TracebackType | None) -> Iterable[TracebackType]:
    """Every entry of a traceback, outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def is_ours(code: CodeType) -> bool:
    """Is this frame one the program would not have without us?"""
    return code.co_filename == TRANSPARENT or code.co_filename.startswith(_OURS)
