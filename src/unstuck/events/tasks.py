"""What a loss asks of a model: which targets the input shows, which positions are hidden, who is paired with whom."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from unstuck.events.base import Event


class TargetsPlaced(Event, tag="targets-placed", frozen=True):
    """Ids that a classification loss wanted, compared with the ids that the model was given, position by position.
    `place` is the backward."""

    ABSENT: ClassVar[str] = "no loss has one id as a target for each id of the input"

    loss: str = ""
    length: int = 0
    """Positions of a sequence."""
    scored: int = 0
    """Positions, in all examples, that the loss depends on."""
    shift: int = 0
    """How many positions on the input is that most targets are equal to."""
    share: float = 0.0
    """The share of the scored targets that are."""
    next_best: float = 0.0
    """The same for the best of the other shifts."""
    hidden: float = 0.0
    """The share of positions, without padding, that the loss does not depend on."""
    filler: float = 0.0
    """The share of these that hold one and the same id, which no scored position holds."""
    patterns: float = 0.0
    """The share of examples in which other positions are hidden than in the first one."""


class Cover(StrEnum):
    """How a part of the input was kept from the model."""

    LEFT_OUT = "left-out"
    """By choosing the positions that it is given."""
    MULTIPLIED = "multiplied"
    """By a mask of zeros inside of the model."""
    FILLED = "filled"
    """By one value in place of the input, before the model."""


class CoverScored(Event, tag="cover-scored", frozen=True):
    """A reconstruction of an input of which the model is shown a part. `place` is the backward."""

    ABSENT: ClassVar[str] = "no part of an input was hidden and reconstructed"

    cover: Cover = Cover.LEFT_OUT
    cells: int = 0
    """Positions, or numbers, in all examples."""
    shown: int = 0
    scored: int = 0
    """Those that the loss depends on."""
    both: int = 0
    """Those that are shown and scored."""


class KeysHidden(Event, tag="keys-hidden", frozen=True):
    """Which positions an attention hides from all others, against the padding of the input. `place` is the backward."""

    ABSENT: ClassVar[str] = "no attention over a padded input was seen"

    padding: int = 0
    """Padded positions, in all examples that have some."""
    content: int = 0
    """The other positions of these examples."""
    padding_hidden: int = 0
    content_hidden: int = 0


class WeightsLeaked(Event, tag="weights-leaked", frozen=True):
    """Positions that a mask was meant to hide, and the attention they get all the same. `place` is the backward."""

    ABSENT: ClassVar[str] = "no mask was put on the scores of an attention"

    masked: float = 0.0
    """The share of positions that the mask covers."""
    weight: float = 0.0
    """The share of the attention that these get."""


class Pairing(StrEnum):
    """How two views of each example can be stacked."""

    HALVES = "halves"
    """First all of one view, then all of the other."""
    NEIGHBOURS = "neighbours"
    """The two views of one example side by side."""
    ROWS = "rows"
    """In two batches, in the same order."""


class PartnersSeen(Event, tag="partners-seen", frozen=True):
    """The pairs that a contrastive loss pulls together, and how alike their inputs are. `place` is the backward."""

    ABSENT: ClassVar[str] = "no loss pulls the examples of a batch together in pairs"

    examples: int = 0
    pulled: float = 0.0
    """How alike the inputs of these pairs are, in standard errors above pairs at random."""
    pairing: Pairing = Pairing.HALVES
    """The usual pairing whose inputs are most alike,"""
    alike: float = 0.0
    """and how alike they are, in the same unit."""
    same: float = 0.0
    """The share of the pairs of that pairing that the loss pulls together, too."""


class StateDetached(Event, tag="state-detached", frozen=True):
    """A module that was given its own last output again and again in one pass. `place` is its call."""

    ABSENT: ClassVar[str] = "no module was given its own output in a loop"

    module: str = ""
    kind: str = ""
    calls: int = 0
    """In one pass."""
    cut: int = 0
    """How often what it was given did not carry gradients, although its output did."""
    reached: int = 0
    """How many of the calls the loss leads back to."""


class GradientRerouted(Event, tag="gradient-rerouted", frozen=True):
    """A tensor that has the values of another one, and whose gradients do not go there. `place` is the call of the
    module that it leaves or enters."""

    ABSENT: ClassVar[str] = "no tensor has the values of another one and the gradients of a third"

    module: str = ""
    kind: str = ""
    source: str = ""
    """The kind of module whose output, or input, has the same values."""


class MessagesReturned(Event, tag="messages-returned", frozen=True):
    """Rows that were picked by an index and summed up by the same index. `place` is the backward."""

    ABSENT: ClassVar[str] = "no rows were picked by an index and summed up by one"

    messages: int = 0
    rows: int = 0
    """Different ones among the index."""
    known: bool = False
    """Is the index one of the two rows of an index that the model was given?"""


class MaskIndexed(Event, tag="mask-indexed", frozen=True):
    """Rows were picked by an index of zeros and ones that has one entry for each row. `place` is the backward."""

    ABSENT: ClassVar[str] = "no rows of a prediction were picked by an index"

    rows: int = 0
    marked: int = 0
    """How many of its entries are 1."""


class ColumnsMatched(Event, tag="columns-matched", frozen=True):
    """Numbers of the input from which the target follows exactly, each by itself, in one batch. `place` is the loss."""

    ABSENT: ClassVar[str] = "no batch of numbers with one target for each example was seen"

    loss: str = ""
    examples: int = 0
    columns: int = 0
    """Numbers of an example."""
    matching: tuple[int, ...] = ()
    """Those from which the target follows; the first few."""
    classes: int = 0
    """Different targets, where these are classes."""
