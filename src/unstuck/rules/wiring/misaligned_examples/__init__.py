"""M26: numbers of each example are combined with those of other examples, since an axis is missing."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.mixing import Mix, Mixing
from unstuck.findings.results import Experiment
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import mixtures


class Misaligned(Variant):
    """What is misaligned."""

    BROADCAST = "broadcast", "one number for each example is broadcast along another axis"
    PICKED = "picked", "`scores[:, y]` picks the entries of all examples from each example"


rule = Rule(
    code="M26",
    name="misaligned-examples",
    title="numbers of one example are combined with those of other examples, since an axis is missing",
    severity=Severity.ERROR,
    explains=("O01", "O07", "R03", "R08", "P01", "P19", "P21"),
    variants=Misaligned.titles(),
)

BROADCAST = (
    "Broadcasting aligns shapes at their last axis. Two axes happen to have the same size, so nothing fails, and each "
    "example gets the numbers of all the others, one per column."
)
PICKED = "A slice keeps every example, and the index picks one column for each example: all pairs, not one number each."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`independence` followed the examples from operation to operation."""
    for one in mixtures.of(experiment, Mix.COEFFICIENT, Mix.PICK):
        yield _picked(one) if one.mix is Mix.PICK else _broadcast(one)


def _broadcast(one: Mixing) -> Finding:
    (high, low), axis = one.shapes, one.axis
    added = ", ".join([":"] * len(low) + ["None"] * (len(high) - len(low)))
    return rule.finding(
        f"`{one.operation}` combines shapes {list(high)} and {list(low)}: the {one.examples} examples lie on axis "
        f"{axis} of the first, and broadcasting puts those of the second along axis {len(high) - len(low)}.",
        cause=BROADCAST,
        fix=f"Add the missing axes to the smaller one, such as `c[{added}]`, so that its shape is "
        f"{[*low, *[1] * (len(high) - len(low))]}.",
        subject=Subject("call", mixtures.named(one)),
        variant=Misaligned.BROADCAST,
        place=one.place,
        evidence=_evidence(one),
    )


def _picked(one: Mixing) -> Finding:
    return rule.finding(
        f"An index of shape {list(one.shapes[1])} picks from scores of shape {list(one.shapes[0])} the entries of all "
        f"{one.examples} examples for each example: the result is {list(one.result)}.",
        cause=PICKED,
        fix="Pick one number for each example: `scores.gather(1, y[:, None]).squeeze(1)`, or "
        "`scores[torch.arange(len(y)), y]`.",
        subject=Subject("call", mixtures.named(one)),
        variant=Misaligned.PICKED,
        place=one.place,
        evidence=_evidence(one),
    )


def _evidence(one: Mixing) -> list[Evidence]:
    return [
        Evidence("given", " and ".join(str(list(shape)) for shape in one.shapes)),
        Evidence("result", str(list(one.result))),
        Evidence("examples in the batch", one.examples),
    ]


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Add the axes at that line, or take the diagonal."""
    from unstuck.interventions import AlignExamples

    if finding.place is not None:
        mix = Mix.PICK if finding.variant == Misaligned.PICKED else Mix.COEFFICIENT
        yield (AlignExamples(mix, finding.place.path, finding.place.line),)
