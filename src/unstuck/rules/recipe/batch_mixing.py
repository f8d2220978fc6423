"""R04: the output for one example depends on the other examples of the batch."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Leak, Place, Setup
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.mixing import Mix, Mixing
from unstuck.findings.results import Experiment
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import mixtures


class Mixed(Variant):
    """How examples get mixed."""

    SEQUENCE = "batch-as-sequence", "a recurrent or attention layer takes the batch for the sequence"
    ROWS = "rows", "numbers of different examples end up in one row"
    SOFTMAX = "softmax", "a softmax runs over the examples of the batch"


rule = Rule(
    code="R04",
    name="batch-mixing",
    title="the output for one example depends on the other examples of the batch",
    severity=Severity.ERROR,
    tries="examples",
    explains=("O01", "O07", "M13", "P01", "P03", "P19", "P21", "R03", "R08", "R05"),
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
BATCH_FIRST = "Build {layer} with batch_first=True, or pass it the sequence axis first."
AXIS = "axis of the examples"
SPREADS = "times the standard deviation of the output"


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Half of the batch was replaced in eval mode, and the outputs for the other half changed."""
    leak = setup.trial.between_examples if setup.trial else None
    if leak is not None:
        yield _finding(leak)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The same with the first batch of the script; and each operation of one iteration."""
    if experiment.name != "independence":
        return
    located = mixtures.of(experiment, Mix.SEQUENCE, Mix.SOFTMAX, Mix.ROWS)
    leak = experiment.probe.between_examples if experiment.probe else None
    if located:
        yield _located(located[0], leak)
    elif leak is not None and not mixtures.of(experiment, *(mix for mix in Mix if mix is not Mix.OTHER)):
        yield _finding(leak, experiment.place)


def _located(one: Mixing, leak: Leak | None) -> Finding:
    """The operation in which it happens."""
    given, axis = one.shapes[0], one.axis
    match one.mix:
        case Mix.SEQUENCE:
            message, cause, fix = _sequence(one)
            variant, subject = Mixed.SEQUENCE, one.module
        case Mix.SOFTMAX:
            message = (
                f"The softmax of {list(given)} runs over axis {axis}, which holds the {one.examples} examples of the "
                "batch."
            )
            other = next(side for side in reversed(range(len(given))) if side != axis)
            cause = "The weights of one example sum to 1 together with those of the others, not by themselves."
            fix = f"Take it over the axis that is to be weighed, such as dim={other}."
            variant, subject = Mixed.SOFTMAX, mixtures.named(one)
        case _:
            message = (
                f"`{one.operation}` turns {list(given)}, with the {one.examples} examples on axis {axis}, into "
                f"{list(one.result)}: each row gets numbers of several examples."
            )
            cause = (
                "A view or reshape keeps numbers in their order in memory, and only cuts them up differently: it does "
                "not move the axis of the examples to the front."
            )
            fix = f"Move the axis first: `.transpose(0, {axis})`, then `.reshape({one.examples}, -1)`." if axis else FIX
            variant, subject = Mixed.ROWS, mixtures.named(one)
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject("module", subject),
        variant=variant,
        place=one.place,
        evidence=[
            Evidence("shape", str(list(given))),
            Evidence(AXIS, axis),
            *([Evidence("largest change of the others", leak.change, SPREADS)] if leak else []),
        ],
    )


def _sequence(one: Mixing) -> tuple[str, str, str]:
    given, named = one.shapes[0], f"`{one.module}` ({one.kind})" if one.module else one.kind
    message = (
        f"{named} takes the {one.examples} examples of the batch for the positions of a sequence: they lie on axis "
        f"{one.axis} of {list(given)}"
    )
    cause = (
        "It runs, or attends, from example to example. Positions of one example never meet, and its answer depends on "
        "the others in the batch."
    )
    if len(given) == 2:
        return (
            f"{message}, which has no axis of positions.",
            cause,
            f"Give it an axis of positions: `x.unsqueeze(1)`, and build {named} with batch_first=True.",
        )
    if one.axis == 0:
        return f"{message}, and it was built with batch_first=False.", cause, BATCH_FIRST.format(layer=named)
    fix = "Swap the first two axes of what it gets, with transpose(0, 1), or build it without batch_first=True."
    return f"{message}, and it was built with batch_first=True.", cause, fix


def _finding(leak: Leak, place: Place | None = None) -> Finding:
    half = leak.size // 2
    return rule.finding(
        f"In eval mode, the outputs for {half} of {leak.size} examples change with the rest of the batch, by "
        f"up to {leak.change:.2g} times their standard deviation{_where(leak)}.",
        cause=CAUSE,
        fix=BATCH_FIRST.format(layer=f"{leak.module} ({leak.kind})") if leak.batch_first is False else FIX,
        subject=Subject("module", leak.module or leak.kind),
        variant=Mixed.SEQUENCE if leak.batch_first is False else Mixed.ROWS,
        place=place or leak.place,
        evidence=[
            Evidence("examples replaced", f"{leak.size - half} of {leak.size} along axis {leak.axis}"),
            Evidence("largest change of the others", leak.change, SPREADS),
            Evidence("shape of the output", " x ".join(map(str, leak.shape))),
        ],
    )


def _where(leak: Leak) -> str:
    return f", starting in {leak.module} ({leak.kind})" if leak.module else f", in the forward() of {leak.kind}"


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Let the layer take the first axis as the batch."""
    from unstuck.interventions import AlignExamples, BatchFirst

    if finding.variant == Mixed.SEQUENCE:
        yield (BatchFirst(),)
    elif finding.place is not None and finding.place.line and finding.variant is not None:
        axis = next((each.value for each in finding.evidence if each.name == AXIS), None)
        if isinstance(axis, int):
            mix = Mix.SOFTMAX if finding.variant == Mixed.SOFTMAX else Mix.ROWS
            yield (AlignExamples(mix, finding.place.path, finding.place.line, axis),)
