"""Reading a crash, shared by the rules that explain one.

A rule lists the kinds of `TorchError` it explains in its `Reading`s, or asks `crash_of` for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from unstuck.events import Crash, InputFact
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Evidence, Variant
from unstuck.record import Record


class Explanation(NamedTuple):
    """What is wrong, why it fails, and what to change."""

    message: str
    cause: str
    fix: str


Reading = tuple[Variant, tuple[TorchError, ...], Callable[[Crash], Explanation | None]]
"""A variant, what torch raises for it, and the function that explains such a crash."""


def crash_of(record: Record, *kinds: TorchError) -> Crash | None:
    """The crash, if torch raised it and it is of one of these kinds."""
    crash = record.crash
    if crash is None or crash.raised or not any(kind.is_in(crash.message) for kind in kinds):
        return None
    return crash


def given(crash: Crash, name: str) -> InputFact | None:
    """An input that is a tensor."""
    return next((fact for fact in crash.inputs if fact.name == name and fact.shape is not None), None)


def count(crash: Crash, name: str) -> int | None:
    """An input that is an integer."""
    value = next((fact.value for fact in crash.inputs if fact.name == name), None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def word(crash: Crash, name: str) -> str:
    """An input that is a string, or ""."""
    value = next((fact.value for fact in crash.inputs if fact.name == name), None)
    return value if isinstance(value, str) else ""


def called(crash: Crash, name: str, otherwise: str) -> str:
    """The name of an input in the user's line, in backticks, or else these words."""
    return f"`{crash.names[name]}`" if name in crash.names else otherwise


def shaped(sides: tuple[int, ...] | None) -> str:
    """A shape as python writes it."""
    return str(tuple(sides or ()))


def evidence_of(crash: Crash, *names: str) -> list[Evidence]:
    """The shapes, types and ranges of these inputs."""
    facts = [fact for name in names if (fact := given(crash, name)) is not None]
    return [Evidence(crash.names.get(fact.name, fact.name), in_words(fact)) for fact in facts]


def evidence_at(crash: Crash) -> list[Evidence]:
    """The inputs of the failing call, or else the tensors that the failing line names."""
    inputs = evidence_of(crash, "input", "query", "target", "weight")
    return inputs or [Evidence(fact.name, in_words(fact)) for fact in crash.variables if fact.shape is not None]


def in_words(fact: InputFact) -> str:
    """`int64 (64,), from 1 to 5`: with the range of integers, which are ids, and of floats where it was recorded."""
    ends = ""
    if fact.low is not None and fact.high is not None:
        digits = ".4g" if "float" in fact.dtype else ".0f"
        ends = f", from {fact.low:{digits}} to {fact.high:{digits}}"
    return f"{fact.dtype} {shaped(fact.shape)}{ends}"


def layer(crash: Crash) -> str:
    """The layer that failed: `fc1` (Linear)."""
    if not crash.module or crash.module == crash.module_kind:
        return f"a {crash.module_kind}" if crash.module_kind else "a layer"
    return f"`{crash.module}`" if crash.module_kind in crash.module else f"`{crash.module}` ({crash.module_kind})"


def sentence(words: str) -> str:
    """With a capital letter."""
    return words[:1].upper() + words[1:]
