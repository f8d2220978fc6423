"""Styled lines, and how they reach a terminal: in colour, without, or in plain ASCII."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `unstuck explain` starts without `typing`
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

Span = tuple[str, str]
"""A piece of text and the name of its style, empty for plain."""
Line = list[Span]

# A few escape codes need no library, which would take longer to load than a script takes to lint.
STYLES = {
    "error": "1;31",
    "warning": "1;33",
    "advice": "1;36",
    "strong": "1",
    "quiet": "2",
    "mark": "1;31",
    "other": "36",
    "label": "1;34",
    "command": "32",
}
ASCII = str.maketrans(
    {"→": "->", "–": "-", "…": "...", "·": "-", "─": "-", "—": "-", "≥": ">=", "≤": "<=", "×": "x", "’": "'"}
)


INVISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
INVISIBLE |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that a terminal would obey; the name of a file or a line of it may hold any."""
_LONGEST = 1000
"""Characters of one word, or of a name without a blank."""


def plain(lines: Iterable[Line]) -> str:
    """The lines as text, without trailing blanks."""
    return "".join(_tame("".join(text for text, _ in line)).rstrip() + "\n" for line in lines)


def _tame(text: str) -> str:
    """The text without what a terminal would obey, and with endless words cut."""
    return with_short_words(text).translate(INVISIBLE)


def with_short_words(text: str) -> str:
    """The text with endless words cut, such as a name that a program computes."""
    if len(text) <= _LONGEST:
        return text
    return " ".join(word if len(word) <= _LONGEST else _cut(word) for word in text.split(" "))


def _cut(word: str) -> str:
    return f"{word[: _LONGEST // 2]}… ({len(word):,} characters)"


def show(lines: Iterable[Line], stream: TextIO) -> None:
    """Write the lines to a stream, in colour if it is a terminal that wants it."""
    text = coloured(lines) if wants_colour(stream) else plain(lines)
    stream.write(spell_for(text, stream))


def show_paged(text: str, stream: TextIO) -> None:
    """Write a long text through the user's pager where the stream is a terminal that is too short for it."""
    pager = _pager()
    if not stream.isatty() or not pager or text.count("\n") < _rows_of(stream):
        stream.write(spell_for(text, stream))
        return
    import subprocess

    stream.flush()
    try:
        # -R shows colours, -F and -X leave a text that fits on the screen.
        subprocess.run(pager, shell=True, input=text.encode(), env={"LESS": "-RFX", **os.environ}, check=False)
    except (OSError, KeyboardInterrupt):
        stream.write(spell_for(text, stream))


def _pager() -> str:
    """The command of the user's pager; empty where there is none."""
    import shutil

    chosen = os.environ.get("PAGER")
    if chosen is not None:
        return "" if chosen in ("", "cat") else chosen
    return "less" if shutil.which("less") else ""


def _rows_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).lines or 1_000_000
    except (OSError, ValueError, AttributeError):
        return 1_000_000


def wants_colour(stream: TextIO) -> bool:
    """Is this a terminal that knows colours, and has nobody asked for none?"""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.platform != "win32" or "WT_SESSION" in os.environ


def coloured(lines: Iterable[Line]) -> str:
    """The lines as text with escape codes."""
    return "".join("".join(_styled(text, style) for text, style in line) + "\n" for line in lines)


def _styled(text: str, style: str) -> str:
    text = _tame(text)
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text else text


def spell_for(text: str, stream: TextIO) -> str:
    """The text in characters that the stream's encoding has."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


def columns_of(stream: TextIO) -> int:
    """How wide the stream is: COLUMNS if set, the terminal's width, or 100 where there is none."""
    wished = os.environ.get("COLUMNS", "")
    if wished.isdigit() and int(wished) > 0:
        return int(wished)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 100
    except (OSError, ValueError, AttributeError):
        return 100


def encodable(text: str) -> str:
    """The text without the halves of characters that a file name in another encoding leaves in it."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # halves that do not stand for a byte
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
