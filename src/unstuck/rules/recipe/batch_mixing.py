"""R04: the output for one example depends on the other examples of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Leak, Setup
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment
    from unstuck.interventions import Intervention


class Mixed(Variant):
    """How examples get mixed."""

    SEQUENCE = "batch-as-sequence", "a recurrent or attention layer takes the batch for the sequence"
    ROWS = "rows", "numbers of different examples end up in one row"


rule = Rule(
    code="R04",
    name="batch-mixing",
    title="the output for one example depends on the other examples of the batch",
    severity=Severity.ERROR,
    tries="examples",
    explains=("O01", "O07", "M13", "R08", "R05"),
    variants=Mixed.titles(),
)

CAUSE = (
    "Numbers of different examples ended up in one row, as with view() or reshape() instead of transpose(), "
    "or a layer treated the batch as a sequence. Predictions then depend on the other examples in the batch."
)
FIX = (
    "Swap axes with transpose(), permute() or movedim(); use view() and reshape() only to merge or split "
    "neighbouring axes. Take softmax, mean and attention along an axis other than the batch."
)
BATCH_FIRST = "Build {module} ({kind}) with batch_first=True, or pass it the sequence axis first."


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Half of the batch was replaced in eval mode, and the outputs for the other half changed."""
    leak = setup.trial.between_examples if setup.trial else None
    if leak is not None:
        yield _finding(leak)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The same with the first batch of the script."""
    leak = experiment.probe.between_examples if experiment.name == "independence" and experiment.probe else None
    if leak is not None:
        yield _finding(leak)


def _finding(leak: Leak) -> Finding:
    half = leak.size // 2
    return rule.finding(
        f"In eval mode, the outputs for {half} of {leak.size} examples change with the rest of the batch, by "
        f"up to {leak.change:.2g} times their standard deviation{_where(leak)}.",
        cause=CAUSE,
        fix=BATCH_FIRST.format(module=leak.module, kind=leak.kind) if leak.batch_first is False else FIX,
        subject=Subject("module", leak.module or leak.kind),
        variant=Mixed.SEQUENCE if leak.batch_first is False else Mixed.ROWS,
        place=leak.place,
        evidence=[
            Evidence("examples replaced", f"{leak.size - half} of {leak.size} along axis {leak.axis}"),
            Evidence("largest change of the others", leak.change, "times the standard deviation of the output"),
            Evidence("shape of the output", " x ".join(map(str, leak.shape))),
        ],
    )


def _where(leak: Leak) -> str:
    return f", starting in {leak.module} ({leak.kind})" if leak.module else f", in the forward() of {leak.kind}"


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """Let the layer take the first axis as the batch."""
    from unstuck.interventions import BatchFirst

    if finding.variant == Mixed.SEQUENCE:
        yield (BatchFirst(),)
