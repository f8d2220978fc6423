"""O28: the loss is driven towards minus infinity: its sign is wrong, or nothing bounds it from below."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from unstuck.events import Backward, EpisodesEnded, HandStep, LossCall, ModelSeen, SpreadSeen
from unstuck.events.losses import BINARY_LOSSES, VALUE_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses


class Endless(Variant):
    """Why the loss has no bottom."""

    NEGATED = "negated", "backward() is called on the negative of a loss, so the error is maximized"
    UPWARDS = "upwards", "updates by hand go up the gradient of a loss"
    UNBOUNDED = "unbounded", "the loss falls ever faster below 0, and nothing stops it"


rule = Rule(
    code="O28",
    name="loss-maximized",
    title="the loss runs to minus infinity: a wrong sign, or nothing that bounds it from below",
    severity=Severity.ERROR,
    explains=("G05", "G07", "G08", "G10", "G18", "M07", "M13", "M14", "O22", "O25", "O26", "R01", "R08"),
    needs=(Backward,),
    variants=Endless.titles(),
)

NEVER_NEGATIVE = (
    *VALUE_LOSSES,
    *BINARY_LOSSES,
    "cross_entropy",
    "nll_loss",
)
UPWARDS = -0.5
"""The cosine between an update and the negative gradient; momentum turns it by less."""
FEWEST = 10
QUARTER = 10
"""Values in a quarter of the run, below which its median is noise."""
FAR = 10.0
"""The end is so many times as far from 0 as the start, and as a typical step is long."""
STEADY = 0.9
"""Of the fall in the third quarter: a loss with a bottom slows down before it."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """One optimizer alone: of two players one may well maximize what the other minimizes."""
    yield from _find_upwards(record)
    optimizer = dynamics.sole_optimizer(record)
    if optimizer is None or not losses.starts_fresh(record):
        return
    trained = {fact.key for fact in optimizer.parameters}
    if not any(fact.key in trained for model in record.of(ModelSeen) for fact in model.parameters):
        return  # an attack on a fixed model, which maximizes its error over the input
    pairs = list(_negated(record))
    if pairs:
        yield from _find_negated(pairs)
    else:
        yield from _find_unbounded(record)


def _find_upwards(record: Record) -> Iterator[Finding]:
    """Without an optimizer the sign is the program's own. A log-likelihood is below 0, and is meant to rise."""
    along = [event.along for event in record.of(HandStep) if event.along is not None]
    values = [value for _, value in dynamics.losses(record)]
    third = len(values) // 3
    if len(along) < FEWEST or third < QUARTER or min(values) < 0 or max(along) > UPWARDS:
        return
    first, last = dynamics.median(values[:QUARTER]) or 0.0, dynamics.median(values[-third:]) or 0.0
    if last <= first:
        return
    place = next((event.place for event in record.of(Backward) if event.place), None)
    yield rule.finding(
        f"The updates by hand add the gradient instead of subtracting it, and the loss rose from {first:.3g} to "
        f"{last:.3g}.",
        cause="The gradient points to where the loss rises.",
        fix="Subtract it: p -= rate * p.grad.",
        subject=Subject.at("loss", "sign", place),
        place=place,
        evidence=[
            Evidence("cosine of updates and -gradient", dynamics.median(along) or 0.0, threshold=UPWARDS),
            Evidence("loss at the start", first),
            Evidence("loss at the end", last),
        ],
        variant=Endless.UPWARDS,
    )


def _negated(record: Record) -> Iterator[tuple[LossCall, Backward]]:
    """Each backward with the loss it is the negative of; nothing if some are not."""
    last: LossCall | None = None
    pairs, others = [], 0
    for event in record.of(LossCall, Backward):
        if isinstance(event, LossCall):
            last = event if event.output_requires_grad and event.loss in NEVER_NEGATIVE else None
        elif isinstance(event, Backward) and event.value is not None:
            value = last.value if last is not None else None
            opposite = value is not None and value > 0 and abs(event.value + value) <= 1e-3 * value
            if last is not None and opposite:
                pairs.append((last, event))
            else:
                others += 1
    yield from pairs if len(pairs) >= FEWEST and not others else ()


def _find_negated(pairs: list[tuple[LossCall, Backward]]) -> Iterator[Finding]:
    values = [call.value for call, _ in pairs if call.value is not None]
    third = max(3, len(values) // 3)
    first, last = dynamics.median(values[:third]) or 0.0, dynamics.median(values[-third:]) or 0.0
    call, backward = pairs[-1]
    if last <= first:
        return
    yield rule.finding(
        f"backward() is called on -{call.loss}, so training maximizes the error: it rose from {first:.3g} to "
        f"{last:.3g}.",
        cause="An optimizer minimizes what backward() is called on. The negative of an error is smallest where the "
        "error is largest.",
        fix=f"Remove the minus sign before {call.loss}.",
        subject=Subject.at("loss", "sign", backward.place),
        place=call.place,
        related=(backward.place,),
        evidence=[
            Evidence(f"{call.loss} at the start", first),
            Evidence(f"{call.loss} at the end", last),
            Evidence("last value that was minimized", backward.value if backward.value is not None else 0.0),
        ],
        variant=Endless.NEGATED,
    )


def _find_unbounded(record: Record) -> Iterator[Finding]:
    if any(record.of(EpisodesEnded)):
        return  # what a policy is asked to make likelier has no bottom
    if any(not event.alone and event.together < 0.5 for event in record.of(SpreadSeen)):
        return  # a likelihood may well fall below 0, ever faster: its errors and its normalisation hold each other
    values = [value for _, value in dynamics.losses(record)]
    size = len(values) // 4
    if size < QUARTER:
        return
    first, second, third, fourth = (dynamics.median(values[place * size :][:size]) or 0.0 for place in range(4))
    start = dynamics.median(values[:QUARTER]) or 0.0
    steady = first > second > third > fourth and third - fourth >= STEADY * (second - third)
    moves = [abs(after - before) for before, after in itertools.pairwise(values[:size])]
    usual = max(abs(start), dynamics.median(moves) or 0.0)
    if not steady or not fourth < -FAR * usual or usual == 0.0:
        return
    place = next((event.place for event in record.of(Backward) if event.place), None)
    yield rule.finding(
        f"The loss falls ever faster below 0 ({start:.3g} to {values[-1]:.3g}), and nothing bounds it.",
        cause="A loss without a smallest value can always be lowered by making outputs larger, which is all that the "
        "model learns.",
        fix="Check the sign of every term. Minimize a distance or a negative log-likelihood; a score that is meant to "
        "grow needs a limit, such as a margin, a normalised output or a penalty on its size.",
        subject=Subject.at("loss", "sign", place),
        place=place,
        evidence=[
            Evidence("loss at the start", start),
            Evidence("fall from the second to the third quarter of the run", second - third),
            Evidence("fall from the third to the last quarter", third - fourth),
        ],
        confidence=Confidence.LIKELY,
        variant=Endless.UNBOUNDED,
    )
