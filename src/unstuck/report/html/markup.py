"""HTML that cannot be broken by its content: text is escaped unless it was made here."""

from __future__ import annotations

import html
from collections.abc import Iterable

EMPTY = ("img", "meta", "br", "hr", "line", "rect", "polyline", "circle", "path")
"""Elements that are written without an end."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. A trailing `_` of an attribute's name is dropped, other `_` are hyphens; None leaves it out."""
    words = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in EMPTY and not children:
        return Html(f"<{name}{words}/>")
    return Html(f"<{name}{words}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    """All of them, one after the other."""
    if children is None:
        return Html()
    if isinstance(children, Html):
        return children
    if isinstance(children, str):
        return Html(html.escape(_visible(children)))
    return Html("".join(join(child) for child in children))


def _attribute(name: str, value: object) -> str:
    word = name.rstrip("_")
    # SVG spells some names in two cases.
    word = word if word in ("viewBox", "preserveAspectRatio") else word.replace("_", "-")
    return f' {word}="{html.escape(_visible(str(value)))}"'


def _visible(text: str) -> str:
    """Without the characters that no HTML may hold."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
