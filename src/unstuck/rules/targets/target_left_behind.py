"""P06: an image is flipped, turned or shifted, and its mask, target image, boxes or points are not."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P06",
    name="target-left-behind",
    title="an image is flipped, turned or shifted, and its mask, target image, boxes or points are not",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "P19", "P20", "P21", "R08"),
)

CAUSE = (
    "A random transform that is called once for the image and once for its target draws two different movements, and "
    "one that is called for the image alone leaves the target where it was. The model is trained on wrong places."
)
FIX = (
    "Draw once and apply to both: torchvision.transforms.v2 takes image, mask and boxes together, or flip both by the "
    "same condition."
)
POINTS_CAUSE = (
    "The left eye of a mirrored face is where the right eye was. Half of the training says that the left eye is on the "
    "left, the other half that it is on the right, so the model answers in between."
)
POINTS_FIX = "After mirroring the coordinates exchange the points of each pair, too: points = points[partner]."
POINTS = "points"
IMAGE = "image"
"""A target that is an image may be meant to stay: a network can be trained to undo a movement."""


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` drew the same examples several times, and compared where image and target went."""
    for answer in broken_relations.broken_in(experiment, Relation.MOVES):
        is_image, are_points = answer.form == IMAGE, answer.form == POINTS
        if is_image and not broken_relations.is_in_trouble(experiment):
            continue
        yield rule.finding(
            answer.sentence,
            cause=POINTS_CAUSE if are_points else CAUSE,
            fix=POINTS_FIX if are_points else FIX,
            subject=Subject("target", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("moved", "behind", "how")),
            severity=Severity.WARNING if is_image else Severity.ERROR,
            confidence=Confidence.LIKELY if is_image else Confidence.CERTAIN,
        )
