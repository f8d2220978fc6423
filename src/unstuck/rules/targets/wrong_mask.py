"""P24: an attention mask that hides the content and shows the padding, or hides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import KeysHidden, WeightsLeaked
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects


class Mask(Variant):
    """What is wrong with it."""

    INVERTED = "inverted", "the mask hides the content and shows the padding"
    NOT_HIDING = "not-hiding", "masked positions get attention all the same"


rule = Rule(
    code="P24",
    name="wrong-mask",
    title="an attention mask that hides the content instead of the padding, or hides nothing",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "P02", "P19", "R03", "R05", "R08"),
    variants=Mask.titles(),
    needs=(),
)

FEWEST = 3
NEARLY_ALL = 0.95
NEARLY_NONE = 0.05
CLEARLY = 0.05
"""The share of the attention that masked positions get, as a part of the share of positions that are masked."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """From the weights of attentions in the first backwards."""
    keys = objects.by_place(record.of(KeysHidden))
    for hidden in keys.values():
        if len(hidden) >= FEWEST and all(map(_is_inverted, hidden)):
            yield _inverted(hidden)
    weights = objects.by_place(record.of(WeightsLeaked))
    for leaks in weights.values():
        if len(leaks) >= FEWEST and all(leak.weight > CLEARLY * leak.masked for leak in leaks):
            yield _not_hiding(leaks)


def _is_inverted(event: KeysHidden) -> bool:
    return (
        event.content_hidden >= NEARLY_ALL * event.content > 0
        and event.padding_hidden <= NEARLY_NONE * event.padding
        and event.padding > 0
    )


def _inverted(events: Sequence[KeysHidden]) -> Finding:
    last = events[-1]
    return rule.finding(
        f"Attention sees only padding: it hides {last.content_hidden:,} of the {last.content:,} positions that hold "
        f"something, and {last.padding_hidden:,} of the {last.padding:,} padded ones.",
        cause="The mask is inverted. In key_padding_mask, and in a boolean attn_mask of nn.MultiheadAttention and the "
        "Transformer layers, True means hidden; in scaled_dot_product_attention True means visible.",
        fix="Invert it: src_key_padding_mask=(ids == PAD).",
        subject=Subject("mask", "attention"),
        place=last.place,
        evidence=[
            Evidence("positions with content", last.content),
            Evidence("of these hidden", last.content_hidden),
            Evidence("padded positions", last.padding),
            Evidence("of these hidden", last.padding_hidden),
            Evidence("batches looked at", len(events)),
        ],
        variant=Mask.INVERTED,
    )


def _not_hiding(events: Sequence[WeightsLeaked]) -> Finding:
    last = events[-1]
    return rule.finding(
        f"The mask does not hide anything: the {last.masked:.0%} of positions that it covers get {last.weight:.0%} of "
        "the attention.",
        cause="A score of 0 is not a weight of 0: softmax turns it into exp(0) = 1 before it divides. Only a score of "
        "-inf, or far below all others, gives no weight.",
        fix='Fill with -inf before the softmax: scores.masked_fill(mask == 0, float("-inf")).',
        subject=Subject("mask", "attention"),
        place=last.place,
        evidence=[
            Evidence("positions that the mask covers", last.masked),
            Evidence("attention that they get", last.weight),
            Evidence("batches looked at", len(events)),
        ],
        variant=Mask.NOT_HIDING,
    )
