"""One event as one line of JSON and back, exactly, whatever numbers and text it holds.

JSON has no NaN and no infinities: they are written as the strings "NaN", "Infinity" and "-Infinity", which is what
protobuf does and what a field of numbers is read back from. Half a character, as in a file name that is not UTF-8, is
written as its escape. A field that may be text as well as a number holds the string.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import msgspec

from unstuck.events import AnyEvent, Event

LONGEST_LINE = 2**20
"""Bytes from which on the texts of an event are cut, so that one of them does not take the place of all others."""
LONGEST_TEXT = 2**14
LARGEST_INTEGER = 2**1000
"""Python refuses to spell much larger ones and to divide by them, and a program's may be as large as it likes."""
_LONG_NUMBER = b"0" * (len(str(LARGEST_INTEGER)) + 1)
_DIGITS_AS_0 = bytes(ord("0") if chr(byte).isdecimal() and byte < 128 else ord(" ") for byte in range(256))
NOT_FINITE = (b'"NaN"', b'Infinity"')

KINDS: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in AnyEvent.__args__}
"""By the name in the line."""


class Damaged(Exception):
    """A line that is not an event."""


def _plain(value: object) -> object:
    """What the record holds of things that are almost plain: the size of a ragged dimension is a symbol, -1."""
    if type(value).__name__ == "SymInt":
        return -1
    for kind in (float, int, str):
        if isinstance(value, kind):  # numpy's float64 is a float to python and a stranger to msgspec
            return kind(value)
    raise TypeError(f"{type(value).__name__} is not something a record holds")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


@functools.cache
def _decoder() -> msgspec.json.Decoder[Event]:
    """Built when a record is read, since it takes 4 ms and lint reads none. Not strict: a number may be a string."""
    return msgspec.json.Decoder(AnyEvent, strict=False)


class _Tagged(msgspec.Struct):
    event: str


_tag_decoder = msgspec.json.Decoder(_Tagged)


def encode(event: Event) -> bytes:
    """The event as a line, with its end."""
    try:
        line = _encoder.encode(event)
    except ValueError:  # half a character, or an integer of thousands of digits
        return _encode_with_care(event)
    # What is not finite has become null here, as has None.
    if b"null" in line or len(line) > LONGEST_LINE:
        return _encode_with_care(event, cut=len(line) > LONGEST_LINE)
    return line + b"\n"


def _encode_with_care(event: Event, cut: bool = True) -> bytes:
    spelled = _spelled(msgspec.to_builtins(event, enc_hook=_plain, str_keys=True), cut)
    try:
        return msgspec.json.encode(spelled) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(spelled, separators=(",", ":")).encode() + b"\n"


def _spelled(value: Any, cut: bool) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return f"{value[:LONGEST_TEXT]} ..." if cut and len(value) > LONGEST_TEXT else value
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _bounded(value)
    if isinstance(value, dict):
        return {_spelled(key, cut): _spelled(item, cut) for key, item in value.items()}
    return [_spelled(item, cut) for item in value] if isinstance(value, list | tuple) else value


def _bounded(value: int) -> int:
    return max(-LARGEST_INTEGER, min(value, LARGEST_INTEGER))


def decode(line: bytes) -> Event:
    """The event of a line, or `Damaged`."""
    if _LONG_NUMBER in line.translate(_DIGITS_AS_0):
        return _decode_with_care(line)
    try:
        return _decoder().decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if b"\\ud" in line:
            return _decode_with_care(line)
        raise Damaged(str(error)) from None


def _decode_with_care(line: bytes) -> Event:
    """By python's own reader, which knows halves of characters, and with integers that can be reckoned with."""
    try:
        plain = json.loads(line, parse_int=lambda digits: _bounded(int(digits)))
        event: Event = msgspec.convert(plain, AnyEvent, strict=False, str_keys=True)
        return event
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Damaged(str(error)) from None


def tag_of(line: bytes) -> str:
    """Which event a line says it is, without reading the rest; empty if it says nothing."""
    try:
        return _tag_decoder.decode(line).event
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
