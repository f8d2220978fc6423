"""Writes an event file of TensorBoard: scalars, histograms and texts of one run."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from unstuck.tfevents.wire import block, double, doubles, framed, single, varint

STRING = 7
"""A tensor of texts."""


class EventFile:
    """A new event file in this folder, which is made if it is missing."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.unstuck"
        self.path = place / name
        self._file = self.path.open("xb")
        self._event(0, block(3, "brain.Event:2"))

    def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers of a step by their names."""
        if numbers:
            values = (block(1, block(1, name) + single(2, number)) for name, number in numbers.items())
            self._event(step, block(5, b"".join(values)))

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """How values are distributed: the counts between each two edges."""
        total = sum(counts)
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        mean = sum(count * middle for count, middle in zip(counts, middles, strict=True))
        squares = sum(count * middle**2 for count, middle in zip(counts, middles, strict=True))
        content = double(1, edges[0]) + double(2, edges[-1]) + double(3, total) + double(4, mean) + double(5, squares)
        content += doubles(6, edges[1:]) + doubles(7, [float(count) for count in counts])
        self._event(step, block(5, block(1, block(1, name) + block(5, content))))

    def text(self, step: int, name: str, markdown: str) -> None:
        """A text, as Markdown."""
        tensor = varint(1, STRING) + block(2, block(2, varint(1, 1))) + block(8, markdown)
        metadata = block(1, block(1, "text"))
        self._event(step, block(5, block(1, block(1, name) + block(8, tensor) + block(9, metadata))))

    def flush(self) -> None:
        """Have it on disk."""
        self._file.flush()

    def close(self) -> None:
        """That was all."""
        self._file.close()

    def _event(self, step: int, content: bytes) -> None:
        # A negative number is written as its complement, as protobuf does.
        self._file.write(framed(double(1, time.time()) + varint(2, step % 2**64) + content))
