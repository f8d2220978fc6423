"""O26: weights, gradients or activations whose distribution collapses or grows a tail, which a norm would hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import Activations, Event, Histograms, OptimizerStep, TensorsNamed
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="O26",
    name="collapsing-distribution",
    title="weights, gradients or activations collapse towards 0 or grow a far tail while the loss suffers",
    severity=Severity.WARNING,
    explains=("G09", "G18", "O07", "R08"),
    needs=(OptimizerStep, Histograms),
)

COLLAPSED = 7
"""Powers of two by which the typical size must have shrunk: more than a hundredfold."""
TAIL, OLD_TAIL = 12, 8
"""Powers of two between the typical value and the largest thousandth: now, and at most at first."""
FADED = 17
"""The same of gradients and activations, which vary: more than a hundred thousandfold."""
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


class Change(NamedTuple):
    """What became of one distribution."""

    of: str
    name: str
    kind: str
    """`collapse`, `tail` or `saturation`."""
    first: Shape
    last: Shape


CAUSES = {
    "collapse": "What has shrunk to almost 0 carries no signal: the layers behind it see the same whatever comes in.",
    "tail": "A few huge values decide every output and every update; the norm shows them alone, and the rest is lost.",
    "saturation": "At the ends of its range a tanh or sigmoid is flat, and almost no gradient passes.",
}
FIXES = {
    "weights": "Look at weight decay and learning rate of this layer: decay multiplies its weights by 1 - lr * decay "
    "in every step.",
    "gradients": "Clip the gradients, look for outliers among the inputs and targets, and put a normalisation in front "
    "of this layer.",
    "activations": "Put a LayerNorm or BatchNorm in front of it, lower the learning rate, and use an activation that "
    "does not saturate.",
}

FADED_GRADIENTS = (
    "Look at what stands between these layers and the loss: units that died or saturated, a gate that has closed, or a "
    "loss that is flat where the predictions are."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """What changed first of weights, activations, gradients, as one finding, in a run that suffers."""
    if not dynamics.problem(record) or dynamics.trend(record).word == "crawling":
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
        # Weights stay what they have become; of gradients and activations one step is no state.
        lately = shapes[-1:] if of == "weights" else shapes[-2:]
        kinds = set.intersection(*(set(_kinds(of, name, shapes[0], shape)) for shape in lately))
        if kinds:
            yield Change(of, name, min(kinds), shapes[0], shapes[-1])


def _kinds(of: str, name: str, first: Shape, last: Shape) -> Iterator[str]:
    gone = of == "weights" and last.zeros > ZEROS
    if first.zeros < OLD_ZEROS and (gone or last.middle < first.middle - (COLLAPSED if of == "weights" else FADED)):
        yield "collapse"
    if last.zeros < OLD_ZEROS and first.tail <= OLD_TAIL and last.tail >= TAIL:
        yield "tail"
    if of == "activations" and ("tanh" in name or "sigmoid" in name) and first.top < OLD_PINNED < PINNED < last.top:
        yield "saturation"


def _shape(lowest: int, counts: Sequence[int]) -> Shape:
    total, zeros = sum(counts), counts[0]
    sizes = counts[1:]
    middle, far = _octave(sizes, 0.5), _octave(sizes, 0.999)
    end = -lowest  # the bin of [1/2, 1)
    top = counts[end] / total if 0 < end < len(counts) else 0.0
    return Shape(zeros / total, lowest + middle, far - middle, top)


def _octave(sizes: Sequence[int], share: float) -> int:
    """The bin below or in which this share of the values that are not 0 lies."""
    wanted, seen = share * sum(sizes), 0
    for position, count in enumerate(sizes):
        seen += count
        if seen >= wanted:
            return position
    return len(sizes) - 1


def _series(record: Record, of: str) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """By tensor or activation, its histograms in the order of the run."""
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
    """What the columns of later histograms stand for; empty where a tensor is not to be judged."""
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
    also = f", and {len(names) - 1} more layers likewise" if len(names) > 1 else ""
    fix = FIXES[worst.of]
    if worst.of == "gradients" and worst.kind == "collapse":
        fix = FADED_GRADIENTS
    if worst.of == "weights" and worst.kind == "tail":
        fix = "Lower the learning rate or clip the gradients: a few updates have thrown single weights far out."
    decay = _decay(record) if worst.of == "weights" and worst.kind == "collapse" else ""
    optimizer = dynamics.sole_optimizer(record)
    return rule.finding(
        f"The {worst.of} of {worst.name} {_became(worst)}{also}; and the loss {dynamics.problem(record)}.",
        cause=CAUSES[worst.kind],
        fix=decay or fix,
        subject=Subject("parameter" if worst.of != "activations" else "module", worst.name),
        place=optimizer.place if decay and optimizer else dynamics.model_place(record),
        evidence=[
            Evidence("half of the values lay below", 2.0 ** (worst.first.middle + 1)),
            Evidence("half of them lie now below", 2.0 ** (worst.last.middle + 1)),
            Evidence("largest thousandth beside the typical value, at first", 2.0**worst.first.tail),
            Evidence("now", 2.0**worst.last.tail),
            Evidence("values that are 0", f"{worst.first.zeros:.0%} at first, {worst.last.zeros:.0%} now"),
            Evidence("layers", names),
        ],
        confidence=Confidence.LIKELY,
    )


def _became(change: Change) -> str:
    match change.kind:
        case "tail":
            return (
                f"have grown a tail: the largest thousandth is {2.0**change.last.tail:,.0f} times the typical value, "
                f"{2.0**change.first.tail:,.0f} times at first"
            )
        case "saturation":
            return (
                f"have drifted to the end of the range: {change.last.top:.0%} of them, {change.first.top:.0%} at first"
            )
    shrunk = 2.0 ** (change.first.middle - change.last.middle)
    return f"have collapsed: half of them are {shrunk:,.0f} times smaller than at first"


def _decay(record: Record) -> str:
    """Which weight decay shrinks the weights, if it is one."""
    optimizer = dynamics.sole_optimizer(record)
    decays = [group.weight_decay for group in optimizer.groups] if optimizer else []
    decay, rate = max(decays, default=0.0), dynamics.highest_rate(record)
    if decay * rate < 1e-3:
        return ""
    return (
        f"Lower weight_decay, {decay:.3g}: at lr {rate:.3g} it takes {decay * rate:.1%} off every weight in every "
        "step; 1e-4 (SGD) to 0.1 (AdamW) is usual."
    )
