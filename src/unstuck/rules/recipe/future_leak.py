"""R05: the model sees the next element it should predict, or its target is its own input."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import Leak, LossCall, Place, Setup, TargetsCopied, TargetsPlaced, Trial
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import losses

rule = Rule(
    code="R05",
    name="future-leak",
    title="the model can see the next element it predicts, or the target is the input itself",
    severity=Severity.ERROR,
    tries="future",
    explains=("R08", "M13"),
)

SEES = (
    "In training the answer is in the input, so the loss falls to almost 0 by copying. When generating, there "
    "is no later element to copy."
)
SEES_FIX = (
    "Let every position see only itself and earlier ones: use a causal mask in attention (is_causal=True), "
    "pad convolutions on the left, and avoid bidirectional layers and means over the whole sequence."
)
FEWEST = 10
SOLVED = 0.1
"""As a share of the loss of guessing."""
NEARLY_ALL = 0.99
COPIES = "The target is the current token, so the model learns to repeat its input instead of what comes next."
COPIES_FIX = "Shift by one: feed tokens[:, :-1] and compare with tokens[:, 1:]."


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The second half of the sequences was replaced, and predictions before it changed; or targets equal the inputs."""
    if setup.trial is not None:
        places = [call.place for call in setup.losses if call.place]
        yield from _findings(setup.trial, places[0] if places else None)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The same with the first batch of the script."""
    if experiment.name == "causality" and experiment.probe is not None:
        yield from _findings(experiment.probe, experiment.place)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Every batch of ids is its own target, and the loss falls to almost 0 by copying them.

    A model that has to squeeze a sequence through a narrow code has the same targets, and does not get there so easily.
    """
    last = {event.place: event for event in record.of(TargetsCopied)}
    for event in last.values():
        calls = [call for call in record.of(LossCall) if call.place == event.place and call.output_requires_grad]
        values = [call.value for call in calls if call.value is not None]
        classes = max((losses.classes_of(call) for call in calls), default=0)
        solved = bool(values) and classes > 2 and values[-1] < SOLVED * math.log(classes)
        seen = event.given == 1 or any(one.shift == 0 and one.share > NEARLY_ALL for one in record.of(TargetsPlaced))
        if event.looked_at >= FEWEST and event.copied == event.looked_at and solved and seen:
            yield _copies(event.shape, event.place)


def _copies(shape: tuple[int, ...], place: Place | None) -> Finding:
    return rule.finding(
        f"The target at every position is the input token at that position ({' x '.join(map(str, shape))} tokens).",
        cause=COPIES,
        fix=COPIES_FIX,
        subject=Subject("loss", "target of the batch"),
        place=place,
        evidence=[Evidence("targets equal to the input at their position", "all")],
    )


def _findings(trial: Trial, place: Place | None) -> Iterator[Finding]:
    if trial.from_future is not None:
        yield _sees(trial.from_future)
    if trial.copies_input:
        yield _copies(trial.copies_input, place)


def _sees(leak: Leak) -> Finding:
    begins = f", starting in {leak.module} ({leak.kind})" if leak.module else f", in the forward() of {leak.kind}"
    cut = leak.size // 2
    return rule.finding(
        f"Predictions at the first {cut} positions change when only the inputs from position {cut} on change, "
        f"by up to {leak.change:.2g} times their standard deviation{begins}.",
        cause=SEES,
        fix=SEES_FIX,
        subject=Subject("module", leak.module or leak.kind),
        place=leak.place,
        evidence=[
            Evidence("targets", "the inputs, one position later"),
            Evidence("positions replaced", f"{leak.size - cut} of {leak.size} along axis {leak.axis}"),
            Evidence("largest change before them", leak.change, "times the standard deviation of the predictions"),
        ],
    )
