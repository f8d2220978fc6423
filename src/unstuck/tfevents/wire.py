"""The two formats an event file is made of: TFRecord frames, and in each frame a message of protobuf.

Only what scalars, histograms and texts need: https://protobuf.dev/programming-guides/encoding and
tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How a field is written."""
FRAME = struct.Struct("<QI")
CHECK = struct.Struct("<I")
POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, bits reversed."""

Value = int | float | bytes | memoryview


class Malformed(ValueError):
    """Bytes that are not such a message."""


@functools.cache
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ POLYNOMIAL if byte & 1 else byte >> 1
        found.append(byte)
    return tuple(found)


def checksum(content: bytes | memoryview) -> int:
    """CRC-32C, masked as TFRecord wants it."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(content: bytes) -> bytes:
    """A message as a record of the file."""
    length = struct.pack("<Q", len(content))
    return length + CHECK.pack(checksum(length)) + content + CHECK.pack(checksum(content))


def fields(message: bytes | memoryview) -> Iterator[tuple[int, Value]]:
    """The fields of a message: its number, and a number or bytes."""
    view, at = memoryview(message), 0
    while at < len(view):
        key, at = _varint(view, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(view, at)
            yield key >> 3, value
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
            if at + size > len(view):
                raise Malformed("a number is cut off")
            yield key >> 3, struct.unpack_from("<d" if size == 8 else "<f", view, at)[0]
            at += size
        elif kind == BYTES:
            size, at = _varint(view, at)
            if at + size > len(view):
                raise Malformed("a field is cut off")
            yield key >> 3, view[at : at + size]
            at += size
        else:
            raise Malformed(f"there is no field of kind {kind}")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70 and at < len(view):
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed("an integer is cut off")


def varint(number: int, value: int) -> bytes:
    """A field that holds a whole number from 0 on."""
    return _spelled(number << 3 | VARINT) + _spelled(value)


def double(number: int, value: float) -> bytes:
    """A field that holds a number in eight bytes."""
    return _spelled(number << 3 | FIXED64) + struct.pack("<d", value)


def single(number: int, value: float) -> bytes:
    """A field that holds a number in four bytes; one that is too large for them is infinite."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _spelled(number << 3 | FIXED32) + packed


def block(number: int, content: bytes | str) -> bytes:
    """A field that holds a text, or another message."""
    raw = content.encode(errors="replace") if isinstance(content, str) else content
    return _spelled(number << 3 | BYTES) + _spelled(len(raw)) + raw


def doubles(number: int, values: Sequence[float]) -> bytes:
    """A field that holds many numbers."""
    return block(number, struct.pack(f"<{len(values)}d", *values))


def _spelled(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
