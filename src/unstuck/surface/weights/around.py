"""The loss where training was: axes over what a run recorded, and the points where it was early and late."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.events import InputFact, LossCall, LossInputs, TensorFact
from unstuck.findings.surface import Point
from unstuck.surface.loss import SurfaceError

if TYPE_CHECKING:
    from unstuck.record import Record

ELEMENTWISE = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "poisson_nll_loss",
    "soft_margin_loss",
)
"""Losses of one input against one target, for which the recorded ranges are a plane."""
EARLY, LATE = 1 / 10, 1 / 3
"""Of the calls on record: where training began, and where it is."""
MIDDLE = 2
"""Which of the recorded quantiles is the median."""
MOST_AXES = 2
AxisRange = tuple[str, float, float]


@dataclass(frozen=True)
class Around:
    """How to draw a loss where a run was."""

    loss: Any
    axes: tuple[AxisRange, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, Point] = field(default_factory=dict)
    """Where the run was, by when."""
    notes: tuple[str, ...] = ()
    """What has to be known to read it."""


def around(
    record: Record, name: str, loss: Any, *, wanted: Sequence[str] = (), fixed: Mapping[str, Any] | None = None
) -> Around:
    """The plane, line or point of this loss that the run was at. `wanted` axes and `fixed` inputs are the user's."""
    given = dict(fixed or {})
    own = [call for call in record.of(LossInputs) if call.loss == name]
    if own:
        return _around_own(name, loss, own, wanted, given)
    calls = [call for call in record.of(LossCall) if call.loss == name and call.output_requires_grad]
    if not calls:
        raise SurfaceError(_never_called(record, name))
    if name == "cross_entropy":
        return _around_cross_entropy(calls)
    if name not in ELEMENTWISE:
        raise SurfaceError(
            f"a record keeps the range of what {name} was given, which is a plane only for losses that compare "
            "number by number, such as mse_loss; give --x and --y instead."
        )
    inputs = _known_range("input", [call.input for call in calls])
    return Around(loss, (inputs, _known_range("target", [call.target for call in calls])), given)


def _never_called(record: Record, name: str) -> str:
    script = record.started.script
    used = sorted({call.loss for call in record.of(LossCall)} | {call.loss for call in record.of(LossInputs)})
    told = f"it used {', '.join(used)}" if used else "no loss is on its record"
    torchs = hasattr(F, name)
    how = "" if torchs else f"; to record a loss of your own: unstuck run --loss MODULE:{name} {script}"
    return f"the run of {script} did not train on {name} ({told}){how}."


def _known_range(what: str, facts: Sequence[TensorFact | None]) -> AxisRange:
    """Over the latest of the calls whose values were looked at, which are a sample of all."""
    known = [(fact.low, fact.high) for fact in facts if fact and fact.low is not None and fact.high is not None]
    if not known:
        raise SurfaceError(f"the run has no range of the {what} on record; give --x and --y instead.")
    recent = _late(known)
    return (what, *_apart(min(low for low, _ in recent), max(high for _, high in recent)))


def _early(calls: Sequence[Any]) -> Sequence[Any]:
    return calls[: max(1, round(EARLY * len(calls)))]


def _late(calls: Sequence[Any]) -> Sequence[Any]:
    return calls[-max(1, round(LATE * len(calls))) :]


def _apart(low: float, high: float) -> tuple[float, float]:
    return (low, high) if low < high else (low - 1, high + 1)


def _around_cross_entropy(calls: Sequence[LossCall]) -> Around:
    """Over the margin: how far the score of the right class is above the others, all taken as equal.

    A recorded loss gives its margin, since the loss falls with it. No margin is larger than the range of the scores.
    """
    shape = next((call.input.shape for call in calls if call.input), ())
    classes = shape[0 if len(shape) == 1 else 1] if shape else 0
    values = [call.value for call in calls if call.value is not None and math.isfinite(call.value) and call.value > 0]
    if classes < 2 or not values:
        raise SurfaceError(
            "the run has neither scores nor losses of cross_entropy on record; give --x and --y instead."
        )
    margins = {when: _margin(median(some), classes) for when, some in _times(values).items()}
    _, low, high = _known_range("input", [call.input for call in calls])
    reach = max(high - low, 1.25 * max(map(abs, margins.values())))
    at = {when: (margin,) for when, margin in margins.items()}
    note = f"The margin is the score of the right class above those of the {classes - 1} others, taken as equal."
    return Around(margin_loss(classes), (("margin", -reach, reach),), {}, at, (note,))


def _margin(value: float, classes: int) -> float:
    """The margin at which the cross-entropy of this many classes has this value."""
    odds = math.log(math.expm1(value)) if value < 30 else value
    return math.log(classes - 1) - odds


def margin_loss(classes: int) -> Any:
    """torch's cross-entropy of one row, as a function of the score of the right class; the others are 0."""

    def cross_entropy(margin: Tensor) -> Tensor:
        others = torch.zeros(*margin.shape, classes - 1, dtype=margin.dtype)
        scores = torch.cat([margin.unsqueeze(-1), others], dim=-1)
        return F.cross_entropy(scores, torch.zeros(margin.shape, dtype=torch.long), reduction="none")

    return cross_entropy


def _times(calls: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Early and late in the run; one of them if it was too short to have both."""
    if len(calls) < 3:
        return {"in the run": calls}
    return {"early in the run": _early(calls), "late in the run": _late(calls)}


def _around_own(
    name: str, loss: Any, calls: Sequence[LossInputs], wanted: Sequence[str], given: dict[str, Any]
) -> Around:
    facts = {fact.name: fact for fact in calls[-1].inputs}
    scores = next((word.removesuffix("[right]") for word in facts if word.endswith("[right]")), "")
    if scores and not wanted:
        return _around_scores(loss, calls, facts, scores, given)
    names = [word for word in facts if not word.endswith(("[right]", "[other]"))]
    axes = list(wanted) or _moving([facts[word] for word in names if word not in given])
    unknown = [axis for axis in axes if axis not in names or not _medians(calls, axis)]
    if not axes or unknown:
        what = f"no values of {unknown[0]}" if unknown else "no numbers that train"
        raise SurfaceError(f"the run has {what} on record for {name}; it was given {_told(facts, names)}.")
    held = {word: _held(name, facts[word], calls) for word in names if word not in (*axes, *given)}
    ranges = tuple(_range_of(calls, axis) for axis in axes)
    return Around(loss, ranges, {**held, **given}, _at(calls, axes), _as_built(loss))


def _as_built(loss: Any) -> tuple[str, ...]:
    own = isinstance(loss, type) and "__init__" in vars(loss)
    return (f"{loss.__name__} was built without arguments here; the run may have given it some.",) if own else ()


def _moving(facts: Sequence[InputFact]) -> list[str]:
    """The inputs that training moves; where none is known to, all that are numbers in a tensor."""
    numbers = [fact for fact in facts if fact.quantiles and "float" in fact.dtype]
    return [fact.name for fact in numbers if fact.requires_grad][:MOST_AXES] or [
        fact.name for fact in numbers[:MOST_AXES]
    ]


def _around_scores(
    loss: Any, calls: Sequence[LossInputs], facts: Mapping[str, InputFact], scores: str, given: dict[str, Any]
) -> Around:
    """One row of scores: that of the right class against the highest of the others, with the rest at the median."""
    row = torch.full((1, (facts[scores].shape or (1, 2))[1]), median(_medians(calls, scores)))
    labels = next(word for word, fact in facts.items() if len(fact.shape or ()) == 1 and "int" in fact.dtype)
    known = [word for word in facts if word not in (scores, labels, *given) and "[" not in word]
    held = {word: _held("the loss", facts[word], calls) for word in known}
    places = {f"{scores}[right]": f"{scores}[0, 0]", f"{scores}[other]": f"{scores}[0, 1]"}
    axes = tuple((places[word], *_range_of(calls, word)[1:]) for word in places)
    fixed = {scores: row, labels: torch.zeros(1, dtype=torch.long), **held, **given}
    note = f"{scores}[0, 0] is the score of the right class, {scores}[0, 1] the highest of the others."
    return Around(loss, axes, fixed, _at(calls, list(places)), (note, *_as_built(loss)))


def _held(name: str, fact: InputFact, calls: Sequence[LossInputs]) -> Any:
    """The value of an input that is not an axis."""
    if fact.quantiles:
        middle = median(_medians(calls, fact.name))
        number = torch.tensor(middle)
        return number if "float" in fact.dtype else number.round().to(getattr(torch, fact.dtype))
    if fact.shape is not None or (fact.kind and fact.kind != "NoneType"):
        what = fact.kind or f"a tensor of shape {list(fact.shape or ())}"
        raise SurfaceError(
            f"{name} was given {what} as {fact.name!r}, which a record does not keep; fix it with --fix."
        )
    return fact.value


def _facts(calls: Sequence[LossInputs], name: str) -> list[InputFact]:
    return [fact for call in calls for fact in call.inputs if fact.name == name]


def _medians(calls: Sequence[LossInputs], name: str) -> list[float]:
    return [fact.quantiles[MIDDLE] for fact in _facts(calls, name) if fact.quantiles]


def _at(calls: Sequence[LossInputs], names: Sequence[str]) -> dict[str, Point]:
    measured = [call for call in calls if all(_medians([call], name) for name in names)]
    return {when: tuple(median(_medians(some, name)) for name in names) for when, some in _times(measured).items()}


def _range_of(calls: Sequence[LossInputs], name: str) -> AxisRange:
    """From the outer quantiles, early and late, half as far again on both sides, but not beyond what was recorded."""
    some = [fact for part in _times(calls).values() for fact in _facts(part, name) if fact.quantiles]
    inner = min(fact.quantiles[0] for fact in some), max(fact.quantiles[-1] for fact in some)
    beside = (inner[1] - inner[0]) / 2
    ends = [end for fact in some for end in (fact.low, fact.high) if end is not None and math.isfinite(end)]
    low, high = max(min(ends, default=inner[0]), inner[0] - beside), min(max(ends, default=inner[1]), inner[1] + beside)
    return (name, *_apart(low, high))


def _told(facts: Mapping[str, InputFact], names: Sequence[str]) -> str:
    return ", ".join(f"{word} ({facts[word].dtype or facts[word].kind or 'a value'})" for word in names) or "nothing"
