"""Pixels as a PNG inside the page itself."""

from __future__ import annotations

import base64
import struct
import zlib

from unstuck.events import Drawn

GREY, COLOUR = 0, 2
"""Kinds of pixel that PNG knows."""
BELOW, ABOVE = (33, 102, 172), (191, 87, 0)
"""Weights below zero are blue, weights above orange, and zero is white."""


def data_uri(width: int, height: int, channels: int, pixels: bytes) -> str:
    """A picture of bytes, row by row, with 1 or 3 of them for each pixel."""
    row = width * channels
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, row * height, row))
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR if channels == 3 else GREY, 0, 0, 0)
    content = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines, 9)) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + content).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def picture(drawn: Drawn) -> str:
    """An example."""
    return data_uri(drawn.width, drawn.height, drawn.channels, drawn.pixels)


def weights(drawn: Drawn) -> str:
    """A filter: in its own colours if it has three channels, else blue and orange on both sides of zero."""
    if drawn.channels == 3:
        return picture(drawn)
    return data_uri(drawn.width, drawn.height, 3, b"".join(_SIGNED[byte] for byte in drawn.pixels))


def _signed(byte: int) -> bytes:
    share = min(1.0, abs(byte - 128) / 127)
    end = ABOVE if byte > 128 else BELOW
    return bytes(round(255 + share * (channel - 255)) for channel in end)


_SIGNED = [_signed(byte) for byte in range(256)]
