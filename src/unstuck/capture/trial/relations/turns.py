"""The ways in which an image can lie: each a function of the last two axes of a tensor, and what to call it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

TURNS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("flipped left to right", lambda t: t.flip(-1)),
    ("flipped upside down", lambda t: t.flip(-2)),
    ("turned by 180 degrees", lambda t: t.flip(-1).flip(-2)),
    ("turned by 90 degrees", lambda t: t.rot90(1, (-2, -1))),
    ("turned by 270 degrees", lambda t: t.rot90(3, (-2, -1))),
    ("transposed", lambda t: t.transpose(-2, -1)),
    ("transposed along the other diagonal", lambda t: t.rot90(2, (-2, -1)).transpose(-2, -1)),
)
UPRIGHT = 3
"""So many of them leave width and height as they are."""
