"""P23: the loss is taken where the input shows the answer, and not where it was hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import Cover, CoverScored, TargetsPlaced
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects


class Shown(Variant):
    """What is shown and scored."""

    TOKENS = "tokens", "masked tokens are ignored by the loss, and visible ones are scored"
    PATCHES = "patches", "the parts that the model is shown are scored, and the hidden ones are not"


rule = Rule(
    code="P23",
    name="visible-target",
    title="the loss is taken where the input shows the answer, and not where it was hidden",
    severity=Severity.ERROR,
    explains=("M13", "R03", "R05", "R08"),
    variants=Shown.titles(),
    needs=(),
)

FEWEST = 3
NEARLY_ALL = 0.98
LEAST_HIDDEN = 0.03
MOSTLY = 0.5
"""The share of hidden tokens that hold the mask: as in BERT, some may hold others."""
HOW = {
    Cover.LEFT_OUT: "are not given to the encoder",
    Cover.MULTIPLIED: "are multiplied by 0 in the model",
    Cover.FILLED: "are replaced by one value in the input",
}


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """From the first backwards: which cells are shown, and which does the loss depend on?"""
    tokens = objects.by_place(record.of(TargetsPlaced))
    for placed in tokens.values():
        if len(placed) >= FEWEST and all(map(_is_copy_of_the_rest, placed)):
            yield _of_tokens(placed)
    covers = objects.by_place(record.of(CoverScored))
    for covered in covers.values():
        if len(covered) >= FEWEST and all(one.scored == one.both == one.shown for one in covered):
            yield _of_cover(covered)


def _is_copy_of_the_rest(event: TargetsPlaced) -> bool:
    """All scored targets are the input at their own position; what is not scored holds a mask, at random places."""
    copied = event.shift == 0 and event.share >= NEARLY_ALL and event.next_best < 0.9
    return copied and event.hidden >= LEAST_HIDDEN and event.filler >= MOSTLY and event.patterns >= MOSTLY


def _of_tokens(events: Sequence[TargetsPlaced]) -> Finding:
    last = events[-1]
    return rule.finding(
        f"The loss is taken over visible tokens: {last.share:.0%} of the {last.scored:,} targets are the input at "
        f"their own position, and the {last.hidden:.0%} of positions that are masked are ignored.",
        cause="The model can copy each answer from its input, so the loss falls to 0 and nothing is learned about the "
        "masked tokens.",
        fix="Ignore the others: labels[~masked] = -100, where masked are the positions that were replaced.",
        subject=Subject("loss", "masked positions"),
        place=last.place,
        evidence=[
            Evidence("targets equal to the input at their position", last.share),
            Evidence("positions that are ignored", last.hidden),
            Evidence("share of these that hold the same id", last.filler),
            Evidence("batches looked at", len(events)),
        ],
        variant=Shown.TOKENS,
    )


def _of_cover(events: Sequence[CoverScored]) -> Finding:
    last = events[-1]
    hidden = last.cells - last.shown
    return rule.finding(
        f"The loss is taken over exactly the {last.shown:,} of {last.cells:,} cells that the model is shown; the "
        f"{hidden:,} that {HOW[last.cover]} are not scored.",
        cause="What is reconstructed is in the input, so the loss falls by copying it, and nothing is learned about "
        "the hidden part: the mask of the loss is inverted.",
        fix="Take the loss over the hidden part: use 1 - mask (or ~mask), with mask 1 where the input is shown.",
        subject=Subject("loss", "hidden part"),
        place=last.place,
        evidence=[
            Evidence("cells", last.cells),
            Evidence("shown", last.shown),
            Evidence("scored", last.scored),
            Evidence("shown and scored", last.both),
            Evidence("batches looked at", len(events)),
        ],
        variant=Shown.PATCHES,
    )
