"""O26: weights, gradients or activations whose distribution collapses or grows outliers, which a norm would hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from unstuck.events import Activations, Event, Histograms, OptimizerStep, TensorsNamed
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics

rule = Rule(
    code="O26",
    name="collapsing-distribution",
    title="weights, gradients or activations collapse toward 0 or grow extreme outliers while the loss stalls",
    severity=Severity.WARNING,
    explains=("G09", "G18", "O07", "R08"),
    needs=(OptimizerStep, Histograms),
    needs_one_optimizer=True,
)

COLLAPSED = 7
"""Powers of two by which typical weights must have shrunk: more than a hundredfold."""
TAIL, OLD_TAIL = 12, 8
"""Powers of two between the typical value and the largest thousandth: at least now, and at most at the start."""
FADED = 17
"""Like COLLAPSED, for gradients and activations, which vary more: more than a hundred thousandfold."""
ZEROS, OLD_ZEROS = 0.98, 0.5
PINNED, OLD_PINNED = 0.95, 0.6
FEWEST_VALUES = 200
FEWEST_EVENTS = 3


class Shape(NamedTuple):
    """A distribution of sizes, in powers of two."""

    zeros: float
    middle: float
    tail: float
    """From the middle to where the largest thousandth begins."""
    top: float
    """The share in [1/2, 1), the ends of a tanh's or sigmoid's range."""


class Kind(StrEnum):
    """How a distribution changed. If several apply, the first in the alphabet is reported."""

    COLLAPSE = "collapse"
    SATURATION = "saturation"
    TAIL = "tail"


class Change(NamedTuple):
    """How one distribution changed over the run."""

    of: str
    name: str
    kind: Kind
    first: Shape
    last: Shape


CAUSES = {
    Kind.COLLAPSE: "Values near 0 carry no signal: the layers after them get the same input for every example.",
    Kind.TAIL: "A few huge values decide every output and every update, and drown out the rest.",
    Kind.SATURATION: "At the ends of its range a tanh or sigmoid is flat, and almost no gradient passes.",
}
FIXES = {
    "weights": "Check this layer's weight decay and learning rate: decay multiplies its weights by 1 - lr * decay "
    "in every step.",
    "gradients": "Clip the gradients, look for outliers in the inputs and targets, and normalize the input of this "
    "layer.",
    "activations": "Add a LayerNorm or BatchNorm before it, lower the learning rate, or use an activation that "
    "does not saturate.",
}
FADED_GRADIENTS = (
    "Check what is between these layers and the loss: dead or saturated units, a gate that has closed, or a loss that "
    "is flat at these predictions."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The first of weights, activations and gradients that changed, as one finding, if the loss does not improve."""
    if not dynamics.problem(record) or dynamics.trend(record).word == Direction.CRAWLING:
        return
    for of in ("weights", "activations", "gradients"):
        if found := list(_changes(record, of)):
            yield _finding(record, found)
            return


def _changes(record: Record, of: str) -> Iterator[Change]:
    for name, histograms in _series(record, of).items():
        counted = [(lowest, counts) for lowest, counts in histograms if sum(counts) >= FEWEST_VALUES]
        if len(counted) < FEWEST_EVENTS:
            continue
        shapes = [_shape(lowest, counts) for lowest, counts in counted]
        # Weights stay as they are; gradients and activations vary, so a single step proves nothing.
        lately = shapes[-1:] if of == "weights" else shapes[-2:]
        kinds = set.intersection(*(set(_kinds(of, name, shapes[0], shape)) for shape in lately))
        if kinds:
            yield Change(of, name, min(kinds), shapes[0], shapes[-1])


def _kinds(of: str, name: str, first: Shape, last: Shape) -> Iterator[Kind]:
    gone = of == "weights" and last.zeros > ZEROS
    if first.zeros < OLD_ZEROS and (gone or last.middle < first.middle - (COLLAPSED if of == "weights" else FADED)):
        yield Kind.COLLAPSE
    if last.zeros < OLD_ZEROS and first.tail <= OLD_TAIL and last.tail >= TAIL:
        yield Kind.TAIL
    if of == "activations" and ("tanh" in name or "sigmoid" in name) and first.top < OLD_PINNED < PINNED < last.top:
        yield Kind.SATURATION


def _shape(lowest: int, counts: Sequence[int]) -> Shape:
    total, zeros = sum(counts), counts[0]
    sizes = counts[1:]
    middle, far = _octave(sizes, 0.5), _octave(sizes, 0.999)
    end = -lowest  # the bin of [1/2, 1)
    top = counts[end] / total if 0 < end < len(counts) else 0.0
    return Shape(zeros / total, lowest + middle, far - middle, top)


def _octave(sizes: Sequence[int], share: float) -> int:
    """The bin up to which this share of the nonzero values lies."""
    wanted, seen = share * sum(sizes), 0
    for position, count in enumerate(sizes):
        seen += count
        if seen >= wanted:
            return position
    return len(sizes) - 1


def _series(record: Record, of: str) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """The histograms of each tensor or activation, in the order of the run."""
    names: Sequence[str] = ()
    found: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
    for event in record.events:
        if isinstance(event, Histograms) and event.of == of:
            for name, counts in zip(names, event.counts, strict=False):
                if name:
                    found.setdefault(name, []).append((event.lowest, counts))
        names = _names(event, of) or names
    return found


def _names(event: Event, of: str) -> Sequence[str]:
    """The names of the columns of later histograms; empty for tensors that are not compared."""
    if of == "activations" and isinstance(event, Activations):
        return [f"{name} ({kind})" for name, kind in zip(event.names, event.kinds, strict=False)]
    if of != "activations" and isinstance(event, TensorsNamed):
        judged = (
            dimension >= 2 and kind not in dynamics.NOT_COMPARED
            for dimension, kind in zip(event.dimensions, event.kinds, strict=True)
        )
        return [name if worth else "" for name, worth in zip(event.names, judged, strict=True)]
    return ()


def _finding(record: Record, changes: Sequence[Change]) -> Finding:
    worst = changes[0]
    names = [change.name for change in changes if change.kind == worst.kind]
    also = f", as in {len(names) - 1} more layers" if len(names) > 1 else ""
    fix = FIXES[worst.of]
    if worst.of == "gradients" and worst.kind is Kind.COLLAPSE:
        fix = FADED_GRADIENTS
    if worst.of == "weights" and worst.kind is Kind.TAIL:
        fix = "Lower the learning rate or clip the gradients: a few updates have pushed single weights far out."
    decay = _decay(record) if worst.of == "weights" and worst.kind is Kind.COLLAPSE else ""
    optimizer = dynamics.sole_optimizer(record)
    return rule.finding(
        f"The {worst.of} of {worst.name} {_became(worst)}{also}, and the loss {dynamics.problem(record)}.",
        cause=CAUSES[worst.kind],
        fix=decay or fix,
        subject=Subject("parameter" if worst.of != "activations" else "module", worst.name),
        place=optimizer.place if decay and optimizer else dynamics.model_place(record),
        evidence=[
            Evidence("median at the start, at most", 2.0 ** (worst.first.middle + 1)),
            Evidence("median now, at most", 2.0 ** (worst.last.middle + 1)),
            Evidence("largest thousandth, times the median, at the start", 2.0**worst.first.tail),
            Evidence("largest thousandth, times the median, now", 2.0**worst.last.tail),
            Evidence("values that are 0", f"{worst.first.zeros:.0%} at the start, {worst.last.zeros:.0%} now"),
            Evidence("layers", names),
        ],
        confidence=Confidence.LIKELY,
    )


def _became(change: Change) -> str:
    match change.kind:
        case Kind.TAIL:
            return (
                f"have grown outliers: the largest thousandth is {2.0**change.last.tail:,.0f} times the typical value, "
                f"up from {2.0**change.first.tail:,.0f} times"
            )
        case Kind.SATURATION:
            return (
                f"have saturated: {change.last.top:.0%} of them are at the end of the range, up from "
                f"{change.first.top:.0%}"
            )
    shrunk = 2.0 ** (change.first.middle - change.last.middle)
    return f"have collapsed: the typical value is {shrunk:,.0f} times smaller than at the start"


def _decay(record: Record) -> str:
    """The fix, if weight decay is strong enough to shrink the weights."""
    optimizer = dynamics.sole_optimizer(record)
    decays = [group.weight_decay for group in optimizer.groups] if optimizer else []
    decay, rate = max(decays, default=0.0), dynamics.highest_rate(record)
    if decay * rate < 1e-3:
        return ""
    return (
        f"Lower weight_decay={decay:.3g}: at lr {rate:.3g} it takes {decay * rate:.1%} off every weight in every "
        "step; 1e-4 (SGD) to 0.1 (AdamW) is usual."
    )
