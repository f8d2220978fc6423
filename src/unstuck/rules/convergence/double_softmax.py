"""O12: softmax (or log_softmax) before cross-entropy, which applies log_softmax itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import LossCall, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.source.flow import producers
from unstuck.source.values import Tensor, Value

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O12",
    name="double-softmax",
    title="softmax before a cross-entropy loss that applies it again",
    severity=Severity.ERROR,
    explains=("O01", "O07", "G09", "O22"),
    needs=(LossCall,),
)

CAUSE = (
    "cross_entropy applies log_softmax itself; on probabilities in [0, 1] the second softmax is almost uniform, "
    "so little of the gradient reaches the model and the loss cannot come near 0."
)
HARMLESS = "cross_entropy applies log_softmax itself; applying it twice changes nothing but costs time and clarity."
FIX = "Return the raw scores (logits) where the loss is computed, and apply softmax only where probabilities are shown."
SOFTMAXES = {"SoftmaxBackward0": "softmax", "LogSoftmaxBackward0": "log_softmax"}
STEADY_CALLS = 3


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every way into a cross_entropy call ends in a softmax."""
    for call in script.facts.losses:
        event = call.event
        if not isinstance(event, LossCall) or event.loss != "cross_entropy" or event.output_requires_grad is False:
            continue
        makers = list(producers(call.value)) if call.value is not None else []
        for name in ("softmax", "log_softmax"):
            if makers and all(_is(maker, name) for maker in makers):
                yield _finding(Witness.SOURCE, name, _softmax_place(makers), event.place)


def _is(value: Value, operation: str) -> bool:
    return isinstance(value, Tensor) and value.op == operation


def _softmax_place(makers: Sequence[Value]) -> Place | None:
    return next((maker.place for maker in makers if isinstance(maker, Tensor)), None)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The probed batch went through a softmax on its way to the loss."""
    yield from _from_calls(Witness.SETUP, setup.losses, needed=1)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The tensor given to cross_entropy was made by a softmax, or its rows are probabilities."""
    by_place: dict[Place | None, list[LossCall]] = {}
    for call in record.of(LossCall):
        if call.output_requires_grad:
            by_place.setdefault(call.place, []).append(call)
    for calls in by_place.values():
        yield from _from_calls(Witness.RUN, calls, needed=STEADY_CALLS)


def _from_calls(witness: Witness, calls: Iterable[LossCall], needed: int) -> Iterator[Finding]:
    relevant = [call for call in calls if call.loss == "cross_entropy" and call.input is not None]
    for node, name in SOFTMAXES.items():
        guilty = [call for call in relevant if call.input and call.input.made_by == node]
        if guilty and len(guilty) == len(relevant):
            yield _finding(witness, name, guilty[0].place, guilty[0].place, _numbers(guilty))
            return
    rows = [call for call in relevant if call.input and call.input.sums_to_one]
    if len(rows) >= needed and len(rows) == len(_read(relevant)):
        yield _finding(witness, "", rows[0].place, rows[0].place, _numbers(rows))


def _read(calls: Sequence[LossCall]) -> list[LossCall]:
    """The calls whose values were looked at."""
    return [call for call in calls if call.input is not None and call.input.low is not None]


def _numbers(calls: Sequence[LossCall]) -> list[Evidence]:
    first = calls[0]
    evidence = [Evidence("calls seen", len(calls))]
    if first.input is not None:
        evidence.append(Evidence("input shape", str(list(first.input.shape))))
        if first.input.low is not None and first.input.high is not None:
            evidence.append(Evidence("input range", f"{first.input.low:.3g} to {first.input.high:.3g}"))
        if first.input.sums_to_one:
            evidence.append(Evidence("rows sum to", 1.0))
    kept = [call.gradient_kept for call in calls if call.gradient_kept is not None]
    if kept:
        share = sorted(kept)[len(kept) // 2]
        evidence.append(Evidence("gradient that gets through", round(100 * share, 1), "%"))
    return evidence


def _finding(
    witness: Witness, softmax: str, place: Place | None, loss: Place | None, evidence: Sequence[Evidence] = ()
) -> Finding:
    harmless = softmax == "log_softmax"
    given = f"the output of {softmax}" if softmax else "probabilities (every row sums to 1)"
    passed = next((item.value for item in evidence if item.unit == "%"), None)
    share = f"; {passed} % of the gradient gets through" if passed is not None and not harmless else ""
    return rule.finding(
        witness,
        f"cross_entropy is given {given}, so softmax is applied twice{share}.",
        cause=HARMLESS if harmless else CAUSE,
        fix=FIX,
        subject=Subject("call", f"cross_entropy fed by {place}"),
        place=place,
        related=(loss,),
        evidence=evidence,
        severity=Severity.ADVICE if harmless else None,
        confidence=Confidence.CERTAIN if softmax else Confidence.LIKELY,
    )
