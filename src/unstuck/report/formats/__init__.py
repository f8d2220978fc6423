"""The formats a report can be written in: each module here is one, named after its file (`json_lines`: json-lines)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from unstuck.importable import importable
from unstuck.report.terminal import encodable

if TYPE_CHECKING:
    from unstuck.findings.result import Result


def names() -> tuple[str, ...]:
    """Every format, found without importing any."""
    return tuple(name.replace("_", "-") for name, _ in importable(__path__))


def render(result: Result, name: str) -> str:
    """The report in the format of this name, as it goes into a file."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return encodable(module.render(result))
