"""Colours that keep their order in greyscale and for colour-blind eyes, the same in files and in the page."""

from __future__ import annotations

from collections.abc import Sequence

SEQUENTIAL = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
)  # fmt: skip
"""Viridis: lightness rises evenly, low loss is dark."""

DIVERGING = (
    "#2d004b", "#542788", "#8073ac", "#b2abd2", "#d8daeb", "#f7f7f7",
    "#fee0b6", "#fdb863", "#e08214", "#b35806", "#7f3b08",
)  # fmt: skip
"""Purple below zero, orange above. In greyscale dashed lines show the sign instead."""

LIGHT_INK = "#ffffff"
DARK_INK = "#14141c"

_EVEN_CONTRAST = 0.18
"""The luminance at which black and white text contrast equally with their ground."""


def spread(anchors: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` colours from the first anchor to the last; the middle one when only one is wanted."""
    places = [index / (count - 1) for index in range(count)] if count > 1 else [0.5]
    return tuple(_between(anchors, place) for place in places)


def ink_on(colour: str) -> str:
    """Black or white, whichever is easier to see on a colour."""
    red, green, blue = (_linear(channel) for channel in _channels(colour))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return DARK_INK if luminance > _EVEN_CONTRAST else LIGHT_INK


def _between(anchors: Sequence[str], place: float) -> str:
    position = place * (len(anchors) - 1)
    left = min(int(position), len(anchors) - 2)
    part = position - left
    pairs = zip(_channels(anchors[left]), _channels(anchors[left + 1]), strict=True)
    return "#" + "".join(f"{round(255 * (one + part * (other - one))):02x}" for one, other in pairs)


def _channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
