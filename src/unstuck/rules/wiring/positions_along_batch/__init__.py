"""M27: positional codes are added along the axis of the examples."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.findings.mixing import Mix
from unstuck.findings.results import Experiment
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import mixtures

rule = Rule(
    code="M27",
    name="positions-along-batch",
    title="positional codes are read by the place of an example in the batch, not by position in the sequence",
    severity=Severity.ERROR,
    explains=("O01", "O07", "P03", "P19", "P21", "R03", "R08"),
)

CAUSE = (
    "All positions of an example get the same code, so the model sees a bag of elements; and an example gets another "
    "code with another place in the batch, which is noise."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`independence` followed the examples, and the tables that are added to them."""
    for one in mixtures.of(experiment, Mix.CODES):
        data, code = one.shapes
        positions = 1 - one.axis
        yield rule.finding(
            f"A table of shape {list(code)} is added to {list(data)}: it differs along axis {one.axis}, that of the "
            f"{one.examples} examples, and is the same for all {data[positions]} positions of axis {positions}.",
            cause=CAUSE,
            fix=f"Read as many rows of the table as there are positions and put them on axis {positions}: for "
            "(batch, time, width), `x + self.pe[:, : x.size(1)]` with a table of shape (1, longest, width).",
            subject=Subject("call", mixtures.named(one)),
            place=one.place,
            evidence=[
                Evidence("given", f"{list(data)} and {list(code)}"),
                Evidence("examples in the batch", one.examples),
            ],
        )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Turn the codes at that line."""
    from unstuck.interventions import AlignExamples

    if finding.place is not None:
        yield (AlignExamples(Mix.CODES, finding.place.path, finding.place.line),)
