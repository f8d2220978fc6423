"""Reads the scalars of an event file of TensorBoard, whoever wrote it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from unstuck.regular import open_regular
from unstuck.tfevents.wire import CHECK, FRAME, Malformed, Value, checksum, fields

LARGEST_EVENT = 256 * 2**20
"""Bytes: a larger one is a damaged length."""
CHECKED = 4096
"""Bytes of an event up to which its checksum is compared: scalars are short, and pictures are not read."""
TYPES = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""How the numbers of a tensor are written, by its type."""
NUMBERS = {5: 1, 6: 2, 7: 3, 10: 9}
"""The field of a tensor that holds numbers of this type."""


class Scalar(NamedTuple):
    """One number that was logged."""

    tag: str
    step: int
    value: float
    when: float
    """Seconds since 1970."""


class Damaged(Exception):
    """It is not such a file, or it is broken at this byte."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


def scalars(path: str | os.PathLike[str]) -> Iterator[Scalar]:
    """Its scalars, in the order in which they were written. A last event that is cut off, as a killed program leaves
    it, is skipped. Raises Damaged and OSError."""
    with open_regular(path) as file:
        at = 0
        while head := file.read(FRAME.size):
            if len(head) < FRAME.size:
                if not at:
                    raise Damaged(0, "it is too short for a single event")
                return
            length, check = FRAME.unpack(head)
            if check != checksum(head[:8]) or length > LARGEST_EVENT:
                raise Damaged(at, "no event begins there")
            content = file.read(length + CHECK.size)
            if len(content) < length + CHECK.size:
                return
            event = memoryview(content)[:length]
            if length <= CHECKED and CHECK.unpack_from(content, length)[0] != checksum(event):
                raise Damaged(at, "the checksum of an event is wrong")
            try:
                yield from _scalars(event)
            except (Malformed, UnicodeDecodeError, struct.error, AttributeError, TypeError) as error:
                raise Damaged(at, f"an event cannot be read: {error}") from None
            at += FRAME.size + len(content)


def _scalars(event: memoryview) -> Iterator[Scalar]:
    when, step, summary = 0.0, 0, None
    for number, value in fields(event):
        if number == 1:
            when = float(_number(value))
        elif number == 2:
            step = int(_number(value))
        elif number == 5:
            summary = value
    if summary is None:
        return
    for number, value in fields(_bytes(summary)):
        found = _scalar(_bytes(value)) if number == 1 else None
        if found is not None:
            yield Scalar(found[0], step - 2**64 if step >= 2**63 else step, found[1], when)


def _scalar(summary: memoryview) -> tuple[str, float] | None:
    """The tag and the number of one value of a summary; None for what is not a scalar."""
    tag, simple, tensor, plugin = "", None, None, ""
    for number, value in fields(summary):
        if number == 1:
            tag = bytes(_bytes(value)).decode()
        elif number == 2:
            simple = float(_number(value))
        elif number == 8:
            tensor = _bytes(value)
        elif number == 9:
            plugin = _plugin(_bytes(value))
    if simple is None and tensor is not None and plugin in ("", "scalars"):
        simple = _of_tensor(tensor)
    return None if simple is None else (tag, simple)


def _plugin(metadata: memoryview) -> str:
    data = next((_bytes(value) for number, value in fields(metadata) if number == 1), memoryview(b""))
    return next((bytes(_bytes(value)).decode() for number, value in fields(data) if number == 1), "")


def _of_tensor(tensor: memoryview) -> float | None:
    """The number of a tensor that holds a single one, as TensorFlow 2 writes scalars."""
    kind, raw = 0, None
    for number, value in fields(tensor):
        if number == 1:
            kind = int(_number(value))
        elif number == 4 or number in NUMBERS:
            if isinstance(value, int | float):
                return float(value)
            kind, raw = NUMBERS.get(number, kind), value
    layout = TYPES.get(kind)
    if raw is None or layout is None or len(raw) != struct.calcsize(layout):
        return None
    return float(struct.unpack(layout, raw)[0])


def _bytes(value: Value) -> memoryview:
    if not isinstance(value, memoryview):
        raise Malformed("a number in the place of a message")
    return value


def _number(value: Value) -> int | float:
    if isinstance(value, memoryview | bytes):
        raise Malformed("a message in the place of a number")
    return value
