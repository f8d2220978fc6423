"""P12: a contrastive loss whose positive is the example itself, is elsewhere, or cannot stand out from the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import Pairing, PairsMatched, PartnersSeen, TripletsCompared
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects


class Partner(Variant):
    """What is wrong with the partners."""

    ITSELF = "itself", "the positive of an example is the example itself"
    ELSEWHERE = "elsewhere", "the labels name another partner than the one that is alike"
    TOO_NARROW = "too-narrow", "scores are so close together that no partner can stand out"
    NOT_APART = "not-apart", "a triplet loss that never gets below its margin"


rule = Rule(
    code="P12",
    name="broken-symmetry",
    title="a contrastive loss whose positive is the example itself or another one, or whose scores cannot differ",
    severity=Severity.ERROR,
    explains=("O07", "P21", "R08"),
    needs=(),
    variants=Partner.titles(),
)

FEWEST = 10
MOSTLY = 0.9
SAME = 1e-4
"""Of the spread of all other scores: what rounding leaves of a distance of 0."""
SURELY = 6.0
"""Standard errors."""
NARROW = 0.5
"""The largest score, of either sign: that of a cosine which was multiplied by a temperature below 1."""
POOR = 0.7
"""Of the cost of a guess: what even the best scores of this size would cost."""
LONG = 60
BATCHES = 3
ALIKE, TYPICALLY_ALIKE = 2.0, 5.0
"""Standard errors by which the inputs of a usual pairing are more alike than others, in every batch and on average,"""
UNLIKE = 2.0
"""and that those of the pairs which the loss pulls together do not reach on average."""
STACKED = {
    Pairing.HALVES: "rows i and i + n: all of one view, then all of the other",
    Pairing.NEIGHBOURS: "rows 2i and 2i + 1: the two views of an example side by side",
    Pairing.ROWS: "the same row of both batches",
}
AT_MARGIN = 0.1
"""So near to its margin, as a share of it, a triplet loss shows that positives are as far away as negatives."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """From the scores of all pairs, and from the distances of triplets."""
    for events in objects.by_place(record.of(PairsMatched)).values():
        if len(events) >= FEWEST:
            yield from _of_pairs(events)
    for looks in objects.by_place(record.of(PartnersSeen)).values():
        if _are_unlike(looks):
            yield _unlike(looks)
    for compared in objects.by_place(record.of(TripletsCompared)).values():
        if len(compared) >= FEWEST:
            yield from _of_triplets(compared)


def _of_pairs(events: Sequence[PairsMatched]) -> Iterator[Finding]:
    last = events[-1]
    equal = [one for one in events if one.right_spread <= SAME * one.others_spread and one.right > one.others]
    shifted = [event for event in events if event.elsewhere > 0.5 and event.offset == last.offset]
    largest = max(max(abs(event.low), abs(event.high)) for event in events)
    best = math.log1p((last.partners - 1) * math.exp(-2 * largest))
    if len(equal) >= MOSTLY * len(events):
        yield rule.finding(
            f"The positive of every example is the example itself: in {len(equal)} of {len(events)} batches all "
            f"{last.examples} right pairs have exactly the same score ({last.right:.4g}), while others vary.",
            cause="Two embeddings of the same input are equal whatever the network computes, so the loss falls by "
            "spreading examples out alone, and nothing is learned about which differences do not matter.",
            fix="Draw two views of each example (`model(augment(x))` twice, with `augment` called twice), and keep the "
            "score of an example with itself out of the loss.",
            subject=Subject("loss", "pairs"),
            place=last.place,
            evidence=[
                Evidence("score of right pairs", last.right),
                Evidence("spread of these", last.right_spread),
                Evidence("spread of the others", last.others_spread),
            ],
            variant=Partner.ITSELF,
        )
    elif len(shifted) >= MOSTLY * len(events):
        yield rule.finding(
            f"The labels do not name the partner that is alike: for {100 * last.elsewhere:.0f} % of the examples the "
            f"highest score is {last.offset} places further on, in {len(shifted)} of {len(events)} batches.",
            cause="The loss pulls unrelated examples together and pushes the two views of one example apart.",
            fix="Make the labels match how the views are stacked: for `torch.cat([z1, z2])` of n examples each, "
            "`torch.cat([torch.arange(n) + n, torch.arange(n)])`.",
            subject=Subject("loss", "pairs"),
            place=last.place,
            evidence=[
                Evidence("share with the highest score there", last.elsewhere),
                Evidence("mean score of the labelled pairs", last.right),
                Evidence("mean score of all others", last.others),
            ],
            variant=Partner.ELSEWHERE,
        )
    elif _are_neighbours(events):
        share = sum(event.neighbours for event in events) / len(events)
        found = sum(event.found for event in events) / len(events)
        yield rule.finding(
            f"The labels do not name the partner that is alike: the highest score of {share:.1%} of the examples is "
            f"that of their neighbour (rows 2i and 2i + 1), of {found:.1%} that of the partner in the labels; "
            f"{1 / last.partners:.1%} would be chance.",
            cause="The two views of an example lie side by side, and the labels are those for all of one view followed "
            "by all of the other. The loss pulls unrelated examples together and pushes the two views of one apart.",
            fix="Stack the views as the labels say (`torch.cat([one, other])` for `arange(2 * n).roll(n)`), or pair "
            "rows 2i and 2i + 1 (`arange(2 * n) ^ 1`).",
            subject=Subject("loss", "pairs"),
            place=last.place,
            evidence=[
                Evidence("share with the highest score at the neighbour", round(share, 4)),
                Evidence("share with the highest score at the label", round(found, 4)),
                Evidence("batches", len(events)),
            ],
            variant=Partner.ELSEWHERE,
        )
    elif last.step >= LONG and largest <= NARROW and best > POOR * math.log(last.partners):
        yield rule.finding(
            f"Scores stay between {-largest:.2g} and {largest:.2g}, so the loss cannot fall below {best:.3g}; a guess "
            f"among {last.partners} costs {math.log(last.partners):.3g}.",
            cause="A softmax over numbers this close together is nearly even, whatever the embeddings are. Cosines "
            "that are multiplied by a temperature instead of divided by it look like this.",
            fix="Divide by the temperature: `logits = z1 @ z2.T / 0.1`.",
            subject=Subject("loss", "scores"),
            place=last.place,
            evidence=[
                Evidence("largest score", largest),
                Evidence("lowest loss that these scores allow", best),
                Evidence("loss of a guess", math.log(last.partners)),
            ],
            variant=Partner.TOO_NARROW,
        )


def _are_neighbours(events: Sequence[PairsMatched]) -> bool:
    """Do neighbours come out as most alike far more often than by chance, and labelled partners not?"""
    rows = sum(event.examples for event in events)
    chance = sum(event.examples / event.partners for event in events)
    at_neighbours = sum(event.examples * event.neighbours for event in events)
    at_labels = sum(event.examples * event.found for event in events)
    surely = chance + SURELY * math.sqrt(chance) + SURELY
    return rows > 0 and at_neighbours > surely and at_labels < chance + UNLIKE * math.sqrt(chance) + UNLIKE


def _are_unlike(events: Sequence[PartnersSeen]) -> bool:
    """Does the loss pull pairs together that have nothing in common, and leave those alone that have?"""
    alike, pulled = (
        sum(values) / len(events) for values in zip(*((one.alike, one.pulled) for one in events), strict=True)
    )
    return (
        len(events) >= BATCHES
        and len({event.pairing for event in events}) == 1
        and alike >= TYPICALLY_ALIKE
        and abs(pulled) < min(UNLIKE, alike / 4)
        and all(event.alike >= ALIKE and event.same < 0.1 for event in events)
    )


def _unlike(events: Sequence[PartnersSeen]) -> Finding:
    last = events[-1]
    return rule.finding(
        f"The pairs that the loss pulls together have nothing in common: the inputs that are alike are "
        f"{STACKED[last.pairing]}, and the loss pulls {last.same:.0%} of these "
        f"together ({last.examples} rows).",
        cause="The loss pulls unrelated examples together and pushes the two views of one example apart, so it stays "
        "at the cost of a guess.",
        fix="Make the positives match how the views are stacked: after torch.cat([view1, view2]) of n examples each, "
        "the partner of row i is (i + n) % (2 * n), and labels are torch.arange(n).repeat(2).",
        subject=Subject("loss", "pairs"),
        place=last.place,
        evidence=[
            Evidence("likeness of the pulled pairs", last.pulled, "standard errors above random pairs"),
            Evidence("likeness of the usual pairs", last.alike, "standard errors above random pairs"),
            Evidence("batches looked at", len(events)),
        ],
        variant=Partner.ELSEWHERE,
    )


def _of_triplets(events: Sequence[TripletsCompared]) -> Iterator[Finding]:
    first, last = events[0], events[-1]
    if all(event.same > MOSTLY for event in events):
        yield rule.finding(
            f"The positive of every triplet is its anchor: {100 * last.same:.0f} % of the pairs have exactly the same "
            "embedding.",
            cause="Their distance is 0 whatever the network computes, so the loss falls by spreading examples out "
            "alone, and nothing is learned about what examples have in common.",
            fix="Choose another example of the same class as the positive, or another view of the same one.",
            subject=Subject("loss", "triplets"),
            place=last.place,
            evidence=[
                Evidence("share of equal pairs", last.same),
                Evidence("mean distance to the negative", last.negative),
            ],
            variant=Partner.ITSELF,
        )
        return
    values = [event.value / event.margin for event in events if event.value is not None and event.margin > 0]
    late = values[-max(3, len(values) // 5) :]
    if last.step >= LONG and values and min(values) > 1 - AT_MARGIN and min(late) < 1 + AT_MARGIN:
        yield _not_apart(first, last)


def _not_apart(first: TripletsCompared, last: TripletsCompared) -> Finding:
    exchanged = (
        " Before training, positives were further from their anchors than negatives: the two may be exchanged."
        if first.positive > first.negative
        else ""
    )
    return rule.finding(
        f"The triplet loss never got below its margin ({last.margin:.3g}) in {last.step} steps: distances to negatives "
        f"went from {first.negative:.3g} to {last.negative:.3g}, to positives from {first.positive:.3g} to "
        f"{last.positive:.3g}.",
        cause="The loss is exactly its margin where all embeddings are the same. If positives cannot be brought nearer "
        "than negatives, that is its lowest value." + exchanged,
        fix="Check that positives are of the anchor's class and negatives are not, and the order of the arguments: "
        "anchor, positive, negative. Normalise the embeddings, or mine less hard negatives at first.",
        subject=Subject("loss", "triplets"),
        place=last.place,
        evidence=[
            Evidence("distance to positives, first", first.positive),
            Evidence("distance to negatives, first", first.negative),
            Evidence("distance to positives, last", last.positive),
            Evidence("distance to negatives, last", last.negative),
        ],
        confidence=Confidence.LIKELY,
        variant=Partner.NOT_APART,
    )
