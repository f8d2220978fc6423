"""Regular expressions that are compiled when they are first used: most rules need theirs only for few files."""

from __future__ import annotations

import re
from typing import Any


class Pattern:
    """Behaves like the compiled expression. Build it with `pattern`."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        # From now on these are found without coming here.
        self.__dict__.update(search=compiled.search, match=compiled.match, finditer=compiled.finditer)
        return getattr(compiled, name)


def pattern(text: str, flags: int = 0) -> Pattern:
    """`re.compile`, put off until the expression is needed."""
    return Pattern(text, flags)
