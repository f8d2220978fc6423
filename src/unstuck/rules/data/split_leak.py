"""R12: examples of the training are also in the evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.data_sets import Comparison, Twins
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment


class Leak(Variant):
    """How an example is in both."""

    SHARED = "shared", "both take the same numbers from one data set"
    EQUAL = "equal", "an example of the evaluation equals one of the training"
    NEAR = "near", "an example of the evaluation is almost equal to one of the training"
    OVERLAPPING = "overlapping", "windows of one series overlap across the splits"


rule = Rule(
    code="R12",
    name="split-leak",
    title="examples of the training are also in the evaluation",
    severity=Severity.WARNING,
    variants=Leak.titles(),
)

FEWEST = 3
LEAST = {Leak.SHARED: 0.005, Leak.EQUAL: 0.005, Leak.NEAR: 0.01, Leak.OVERLAPPING: 0.2}
"""A smaller share of the evaluation changes its result by less than chance does; windows at the border of two splits in
time always overlap."""
MOST = 0.2
"""From this share on the evaluation says little about new examples."""
CAUSES = {
    Leak.SHARED: "The splits are drawn independently of each other, or one is the whole data set.",
    Leak.EQUAL: "The data held the same example several times before they were split, examples were multiplied before "
    "the split, or one file was read for both.",
    Leak.NEAR: "These examples have one neighbour in the training that is far nearer than all others: copies with "
    "noise, another compression, or neighbouring frames, split at random.",
    Leak.OVERLAPPING: "Windows that overlap were split at random, so that most of a window of the evaluation was seen "
    "in training.",
}
FIXES = {
    Leak.SHARED: "Draw one permutation and cut it: `order = torch.randperm(n); train, test = order[:k], order[k:]`.",
    Leak.EQUAL: "Remove duplicates before the split, and resample or augment only the training part after it.",
    Leak.NEAR: "Split by what the copies have in common (recording, patient, file), as `GroupShuffleSplit` does.",
    Leak.OVERLAPPING: "Split the series in time first, and cut windows from each part.",
}
OPTIMISTIC = "The evaluation then shows what was memorized, and is better than new examples would be answered."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`data` compared the examples of the splits."""
    for one in experiment.data.comparisons if experiment.data is not None else ():
        found = _worst(one)
        if found is not None:
            yield _finding(experiment, one, *found)


def _worst(one: Comparison) -> tuple[Leak, Twins] | None:
    """Of what is found in several ways, the one that is most certain."""
    ways = (
        (Leak.SHARED, one.shared),
        (Leak.EQUAL, one.equal),
        (Leak.OVERLAPPING, one.overlapping),
        (Leak.NEAR, one.near),
    )
    for leak, twins in ways:
        if twins is None or twins.natural or twins.count - twins.chance < FEWEST:
            continue
        if twins.count >= LEAST[leak] * twins.looked_at:
            return leak, twins
    return None


def _finding(experiment: Experiment, one: Comparison, leak: Leak, twins: Twins) -> Finding:
    share = twins.count / twins.looked_at
    examples = f"{twins.count:,} of the {twins.looked_at:,} examples of {one.name} ({share:.1%})"
    what = {
        Leak.SHARED: f"{examples} are the same examples of the same data set that {one.trained} trains on.",
        Leak.EQUAL: f"{examples} are also in {one.trained}, number by number.",
        Leak.NEAR: f"{examples} that were looked at have an almost equal one in {one.trained}.",
        Leak.OVERLAPPING: f"{examples} consist by at least half of steps that are in windows of {one.trained} too.",
    }[leak]
    if one.is_same and share == 1:
        what = f"{one.name} reads the data set that {one.trained} trains on: all {twins.count:,} examples are the same."
    pairs = [f"{a} of {one.name}, {b} of {one.trained}" if b >= 0 else f"{a} of {one.name}" for a, b in twins.first]
    is_sure = leak in (Leak.SHARED, Leak.EQUAL)
    data = experiment.data
    own = data.named(one.name) if data is not None else None
    return rule.finding(
        what,
        cause=f"{CAUSES[leak]} {OPTIMISTIC}",
        fix=FIXES[leak],
        subject=Subject("loop", f"{one.trained} and {one.name}"),
        place=own.place if own is not None else experiment.place,
        evidence=[
            Evidence("examples in both", twins.count),
            Evidence("looked at", twins.looked_at),
            Evidence("by chance", float(f"{twins.chance:.2g}")),
            Evidence("the first of them", pairs),
        ],
        severity=Severity.ERROR if is_sure and share >= MOST else Severity.WARNING,
        confidence=Confidence.CERTAIN if is_sure else Confidence.LIKELY,
        variant=leak,
    )
