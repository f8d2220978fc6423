"""Every event survives its own round trip, whatever numbers and text a program puts into it."""

from __future__ import annotations

import enum
import functools
import json
import math
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from unstuck.events import AnyEvent, Event, Gauges, InputFact, LossInputs, Note, OptimizerSeen, Seeded
from unstuck.record.lines import LARGEST_INTEGER, LONGEST_TEXT, Damaged, decode, encode

NUMBERS = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.8e308]), st.floats())
INTEGERS = st.one_of(st.integers(), st.sampled_from([2**63, 2**64, -(2**64), 2**200, -LARGEST_INTEGER]))
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs"]), max_size=3),
    st.sampled_from(["", "NaN", "Infinity", "null", "12", "true", "\0", "caf\udce9.py", "\ud83d\ude00"]),
)


@functools.cache
def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold, so that an event added later is tried too."""
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return events_of(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return st.sampled_from(annotation)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if arguments:
        return st.one_of(*map(values_of, arguments))
    plain = {bool: st.booleans(), int: INTEGERS, float: NUMBERS, str: TEXTS, bytes: st.binary(), type(None): st.none()}
    return plain[annotation]


def events_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    needed = {field.name for field in msgspec.structs.fields(kind) if field.required}
    strategies = {name: values_of(hints[name]) for name in kind.__struct_fields__}
    return st.fixed_dictionaries(
        {name: values for name, values in strategies.items() if name in needed},
        optional={name: values for name, values in strategies.items() if name not in needed},
    ).map(lambda given: kind(**given))


def exactly(value: Any) -> str:
    """With NaN equal to itself and -0.0 not to 0.0, and a field that may be text as the record holds it."""
    if isinstance(value, InputFact) and isinstance(value.value, float) and not math.isfinite(value.value):
        names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        value = msgspec.structs.replace(value, value=names[str(value.value)])
    if isinstance(value, msgspec.Struct):
        fields = ", ".join(f"{name}={exactly(getattr(value, name))}" for name in value.__struct_fields__)
        return f"{type(value).__name__}({fields})"
    if isinstance(value, tuple):
        return f"({', '.join(map(exactly, value))})"
    if isinstance(value, dict):
        return repr({exactly(key): exactly(item) for key, item in value.items()})
    return repr(whole(value) if isinstance(value, str) else value)


def whole(text: str) -> str:
    """Two halves of one character that stand side by side are that character, in JSON as in UTF-16."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


@pytest.mark.parametrize("kind", AnyEvent.__args__, ids=lambda kind: kind.__name__)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_every_event_survives_its_round_trip(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(kind))
    line = encode(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line)["event"] == kind.__struct_config__.tag  # any reader of JSON can read it
    assert exactly(decode(line)) == exactly(event)


def test_what_is_not_finite_is_a_string_that_other_readers_understand() -> None:
    line = encode(OptimizerSeen(rates=(math.nan, math.inf, -math.inf, 0.1)))
    assert json.loads(line) == {"event": "optimizer-seen", "rates": ["NaN", "Infinity", "-Infinity", 0.1]}
    assert [float(rate) for rate in json.loads(line)["rates"]][1:] == [math.inf, -math.inf, 0.1]


def test_text_that_looks_like_a_number_stays_text() -> None:
    event = LossInputs(inputs=(InputFact("mode", value="12"), InputFact("x", value="NaN")), value=math.nan)
    assert [fact.value for fact in decode(encode(event)).inputs] == ["12", "NaN"]


def test_an_enormous_text_does_not_take_the_place_of_everything_else() -> None:
    enormous = Note(text="x" * 100_000_000)
    line = encode(enormous)
    assert len(line) < 2 * LONGEST_TEXT
    assert decode(line).text.startswith("xxx")
    assert decode(encode(Note(text="\ud800" * 2_000_000))).text.startswith("\ud800")


def test_an_integer_of_thousands_of_digits_is_cut() -> None:
    for seed in (10**5000, -(10**5000)):
        kept = decode(encode(Seeded(seed=seed))).seed
        assert abs(kept) == LARGEST_INTEGER
        assert (kept > 0) == (seed > 0)


def test_an_integer_that_no_float_holds_is_cut_when_read() -> None:
    line = b'{"event":"seeded","seed":-1' + b"0" * 400 + b"}"
    assert decode(line).seed == -LARGEST_INTEGER
    assert decode(b'{"event":"note","text":"' + b"7" * 400 + b'"}').text == "7" * 400


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert decode(encode(Gauges(loss=numpy.float64(1.5), rates=(numpy.float64("inf"),)))) == Gauges(
        loss=1.5, rates=(math.inf,)
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"event":"note","text":1}',
        b'{"event":"note","text":"\\ud800"',
        b'{"event":"moon-phase","light":"\\ud800"}',
        b'{"event":"note","new":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"event":"note","text":"\\ud800","new":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"event":"seeded","seed":' + b"9" * 5000 + b"}",
        b'{"event":"seeded","seed":' + b"9" * 5000 + b',"place":{"path":"\\ud800","line":1}}',
        b'{"event":"gauges","loss":1e999}',
    ],
    ids=lambda line: line[:40].decode(errors="replace"),
)
def test_what_is_not_an_event_is_damaged(line: bytes) -> None:
    with pytest.raises(Damaged):
        decode(line)
