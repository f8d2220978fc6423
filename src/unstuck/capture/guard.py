"""Keeps our own mistakes out of the user's program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Guard:
    """Swallows what our own code raises and reports it once per part; `UNSTUCK_RAISE=1` lets it through."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._reported: set[str] = set()
        self._raise = os.environ.get("UNSTUCK_RAISE") == "1"

    def protect(self, part: str, function: Callable[_P, _R]) -> Callable[_P, _R | None]:
        """`function`, returning None where it would have raised."""

        def protected(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.failed(part, error)
                return None

        return protected

    def failed(self, part: str, error: Exception) -> None:
        """Something of ours raised `error`: report it, or raise it again under `UNSTUCK_RAISE=1`."""
        if self._raise:
            raise error
        if part in self._reported:
            return
        self._reported.add(part)
        kind, message = type(error).__name__, " ".join(str(error).split())[:200]
        with contextlib.suppress(Exception):
            self._tell(f"unstuck failed while watching {part} ({kind}: {message}); the run went on.")
