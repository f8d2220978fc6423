"""M11: a mean over the batch added to a sum over the batch, which outweighs it by the number of elements."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from unstuck.events import Backward, LossCall, Place, TermFact
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.flow import behind, producers
from unstuck.source.reader import knowledge
from unstuck.source.values import Const, Group, Tensor, Value

rule = Rule(
    code="M11",
    name="reduction-mismatch",
    title="loss terms added under different reductions, a mean and a sum over the batch",
    severity=Severity.WARNING,
    explains=("G08", "G10", "G18", "M14", "O25", "R01", "R08"),
    needs=(Backward,),
)

CAUSE = (
    "The sum grows with the size of the batch and of an example, the mean does not: the sum outweighs the other term, "
    "and the balance changes with the batch size."
)
FIX = "Reduce both the same way: both as sums, or each summed over an example's elements and averaged over the batch."
SMALL_WEIGHT = 0.1
"""A sum with a smaller weight than this may have been balanced by hand."""
OUTWEIGHS = 10.0
"""As a multiple of the other term, at the start of the run."""
FULL_DIVERGENCE = 0.25
"""Of the sum over `mu**2 + exp(logvar) - logvar - 1`: the formula says 0.5; divided by a batch it is far less."""
MANY = 100
LARGE_WEIGHT = 10.0
"""So may a mean with a larger weight."""


class Term(msgspec.Struct, frozen=True):
    """One term of a loss with its constant factor."""

    made: Tensor
    weight: float


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """On the way to a backward(): `mean-reduced loss + sum over everything`, or minus it."""
    smallest: dict[tuple[Place | None, Place | None], tuple[int, Finding]] = {}
    for value in behind(Group([call.value for call in script.facts.backwards if call.value is not None])):
        if not isinstance(value, Tensor) or value.cut or value.op not in ("add", "sub"):
            continue
        terms = list(_terms(value, 1.0))
        mean = next((term.made for term in terms if term.weight <= LARGE_WEIGHT and _is_mean(term.made)), None)
        whole = next((term.made for term in terms if term.weight >= SMALL_WEIGHT and _is_whole_sum(term.made)), None)
        if mean is not None and whole is not None:
            pair = (mean.place, whole.place)
            known = smallest.get(pair)
            if known is None or len(terms) < known[0]:
                smallest[pair] = (len(terms), _finding(value, mean, whole))
    for _, finding in smallest.values():
        yield finding


def _terms(value: Value, weight: float) -> Iterator[Term]:
    """The known terms of a value, with their constant factors."""
    made = list(producers(value))
    if len(made) != 1 or not isinstance(made[0], Tensor) or made[0].cut:
        return
    term = made[0]
    if term.op in ("add", "sub"):
        for side in term.inputs:
            yield from _terms(side, weight)
    elif term.op == "neg":
        yield from _terms(term.inputs[0], weight)
    elif term.op == "mult":
        for number, other in (term.inputs, term.inputs[::-1]):
            if isinstance(number, Const) and isinstance(number.value, int | float):
                yield from _terms(other, weight * abs(number.value))
    else:
        yield Term(term, weight)


def _is_mean(value: Tensor) -> bool:
    """Certainly a torch loss averaged over the batch."""
    if value.op not in knowledge.LOSS_FUNCTIONS or value.options.keys() & {"size_average", "reduce"}:
        return False
    reduction = value.options.get("reduction", Const("mean"))
    return reduction in (Const("mean"), Const("batchmean")) and not _given_by_position(value)


def _given_by_position(value: Tensor) -> bool:
    """Was the module created with positional arguments?"""
    return value.module is not None and len(value.module.args) > 1


def _is_whole_sum(value: Tensor) -> bool:
    """Certainly a sum over all elements, the batch included, of something a model computed."""
    if value.op in knowledge.LOSS_FUNCTIONS:
        return value.options.get("reduction") == Const("sum") or value.options.get("size_average") == Const(False)
    if value.op != "sum" or value.args or value.options or len(value.inputs) != 1:
        return False
    parts = [part for part in behind(value.inputs[0]) if isinstance(part, Tensor)]
    if any(part.op in ("mean", "sum") or part.op in knowledge.LOSS_FUNCTIONS for part in _until_modules(value)):
        return False
    return any(part.module is not None and knowledge.has_weights(part.module) for part in parts)


def _until_modules(value: Tensor) -> Iterator[Tensor]:
    """The operations between the sum and the outputs of layers."""
    waiting = list(value.inputs)
    seen: set[int] = set()
    while waiting:
        for part in producers(waiting.pop()):
            if isinstance(part, Tensor) and id(part) not in seen:
                seen.add(id(part))
                yield part
                if part.module is None or not knowledge.has_weights(part.module):
                    waiting += part.inputs


def _finding(value: Tensor, mean: Tensor, whole: Tensor) -> Finding:
    kind = whole.op if whole.op in knowledge.LOSS_FUNCTIONS else "a sum over the whole batch"
    summed = f"{kind} summed over the batch" if whole.op in knowledge.LOSS_FUNCTIONS else kind
    joined = "added to" if value.op == "add" else "combined with"
    return rule.finding(
        f"{mean.op}, a mean over the batch, is {joined} {summed}.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject.at("loss", "terms", value.place),
        place=value.place,
        related=(mean.place, whole.place),
        confidence=Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """In the first backward the loss is a mean plus a sum over the same batch, and the sum is many times larger."""
    seen: set[Place | None] = set()
    calls = list(record.of(LossCall))
    for backward in record.of(Backward):
        if backward.graph is None or backward.place in seen or backward.value is None:
            continue
        seen.add(backward.place)
        yield from _outweighed(backward, backward.graph.terms, calls)


def _outweighed(backward: Backward, terms: tuple[TermFact, ...], calls: list[LossCall]) -> Iterator[Finding]:
    means = [term for term in terms if term.reduction == "mean" and term.shape]
    sums = [term for term in terms if term.reduction == "sum" and term.shape]
    if len(means) != 1 or len(sums) != 1 or means[0].shape[0] != sums[0].shape[0] or means[0].shape[0] < 2:
        return
    mean, whole = means[0], sums[0]
    call = next((c for c in calls if c.step == backward.step and _is_term(c, mean)), None)
    if call is None or not call.value or whole.weight < SMALL_WEIGHT * mean.weight:
        return
    now = [other for other in calls if other.step == backward.step]
    if any(other.reduction == "batchmean" and losses.given(other).shape == whole.shape for other in now):
        return  # a sum that is divided by the batch
    share = abs(backward.value or 0.0) / (abs(call.value) * mean.weight)
    if whole.divergence and whole.weight >= FULL_DIVERGENCE * mean.weight and math.prod(mean.shape) >= MANY:
        yield _heavy(backward, call, mean, whole)
    elif share > OUTWEIGHS + 1:
        yield _recorded(backward, call, whole, share - 1)


def _heavy(backward: Backward, call: LossCall, mean: TermFact, whole: TermFact) -> Finding:
    """A divergence may be small because it outweighs the rest: it falls to 0 before anything is learned."""
    times = math.prod(mean.shape)
    return rule.finding(
        f"{call.loss}, a mean over {list(mean.shape)}, is added to a divergence that is a sum over "
        f"{list(whole.shape)}: it counts {times:,} times as much as with two sums.",
        cause=f"{CAUSE} A divergence that outweighs the reconstruction goes to 0, and the latent code carries no "
        "information.",
        fix=FIX,
        subject=Subject.at("loss", "terms", backward.place),
        place=backward.place,
        related=(call.place,),
        evidence=[Evidence("numbers in the mean", times), Evidence("weight of the divergence", whole.weight)],
        confidence=Confidence.LIKELY,
    )


def _is_term(call: LossCall, term: TermFact) -> bool:
    same = call.loss == term.name or {call.loss, term.name} == {"nll_loss", "cross_entropy"}
    return same and call.reduction in ("mean", "batchmean") and losses.given(call).shape[:1] == term.shape[:1]


def _recorded(backward: Backward, call: LossCall, whole: TermFact, times: float) -> Finding:
    summed = "a sum" if whole.name == "sum" else f"{whole.name}, a sum"
    return rule.finding(
        f"{call.loss}, a mean over the batch, is added to {summed} over {list(whole.shape)} that is {times:.3g} times "
        "as large.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject.at("loss", "terms", backward.place),
        place=backward.place,
        related=(call.place,),
        evidence=[Evidence("the mean", call.value or 0.0), Evidence("the whole loss", backward.value or 0.0)],
        confidence=Confidence.LIKELY,
    )
