"""Trainings with actions or opponents: what a loss asked of a policy, of a value, and of the other player.

Nothing here holds a tensor or imports torch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from unstuck.events.base import Event, Place


class Spread(StrEnum):
    """What the noise of a code is multiplied by, given what its divergence takes for the logarithm of the variance."""

    STD = "std"
    """`exp(logvar / 2)`"""
    VARIANCE = "variance"
    """`exp(logvar)`"""
    LOGARITHM = "logarithm"
    """`logvar` itself"""


class Weighting(StrEnum):
    """What the weights of actions are, up to a factor and a constant, judged by the rewards of the environment."""

    TO_GO = "to-go"
    """What was earned from the action on, or in the whole episode."""
    PAST = "past"
    """What was earned until the action."""
    REVERSED = "reversed"
    """What was earned from the action on, in the reverse order of the actions."""
    BEYOND = "beyond"
    """What was earned from the action on, also in later episodes."""


class PolicyPulled(Event, tag="policy-pulled", frozen=True):
    """A backward of a loss with log-probabilities of actions: which of them it makes more likely, and by how much."""

    ABSENT: ClassVar[str] = "no loss held log-probabilities of actions"

    actions: int = 0
    """How many there were."""
    mixed: bool = False
    """Are some made more likely and others less?"""
    agreement: float | None = None
    """Correlation between how much an action is made more likely and by how much its value is raised."""
    pulls: tuple[float, ...] = ()
    surprises: tuple[float, ...] = ()
    """Of few actions: both one by one."""
    played: int = 0
    """How many actions the environment was given since the last such backward, if as many as here; else how many of
    these states an action was drawn for before, without gradients."""
    other: int = 0
    """How many of them are not the ones whose log-probability was taken."""
    weighting: Weighting | None = None
    """What fits the weights exactly."""
    reverse: bool = False
    """It fits with a negative factor: the more was earned, the less likely the action becomes."""
    discount: float | None = None
    entropy: float | None = None
    """How much the loss rises with the entropy of the policy; None if it does not depend on it."""


class Bootstrapped(Event, tag="bootstrapped", frozen=True):
    """Regression targets of states that an environment was seen to give, next to its rewards and the network's own
    answers for the states that followed. Counted from the start of the run; `place` is the backward."""

    ABSENT: ClassVar[str] = "no target was computed from a reward and the value of the next state"

    rows: int = 0
    """Targets whose state and next state were recognized."""
    ended: int = 0
    """How many of these are about the last move of an episode."""
    tells_limits: bool = False
    """Does the environment tell its own end from a limit of time? If not, both are last moves."""
    discount: float | None = None
    """What the value of the next state is multiplied by, where the episode goes on."""
    discount_at_end: float | None = None
    """The same where it has ended; 0 if targets end with it."""
    actions: int = 0
    """Targets that were compared with the value of one action, which is known."""
    other_actions: int = 0
    """How many of these belong to another action than the one that was taken."""
    best: int = 0
    """Targets that were compared with the highest value of all actions."""
    unmoved: int = 0
    """Targets that were computed from the very state that they are for, though the environment had moved on."""
    reused: int = 0
    """How often the environment returned an array that the program still held from an earlier move, with other numbers
    in it."""


class OutputPulled(Event, tag="output-pulled", frozen=True):
    """What one optimizer's loss asked of the output of a network, by where the input of that came from."""

    ABSENT: ClassVar[str] = "no two networks were trained in turn"

    optimizer: str = ""
    model: str = ""
    source: str = ""
    """The network whose output was the input; empty for data."""
    live: bool = False
    """Does the gradient go on to the source?"""
    direction: float | None = None
    """From -1, if all outputs are asked to rise, to 1, if all are asked to fall; None if the loss does not depend on
    them."""


class CodeSeen(Event, tag="code-seen", frozen=True):
    """A loss with the divergence of a code from the standard Gaussian, as in a variational autoencoder."""

    ABSENT: ClassVar[str] = "no loss held the divergence of a code from the standard Gaussian"

    size: int = 0
    """How many numbers a code has."""
    nats: float | None = None
    """The divergence of one example, on average."""
    rewarded: bool = False
    """The loss falls when the divergence rises."""
    spread: Spread | None = None
    used: bool = True
    """Is the mean of the code used anywhere but in the divergence?"""


class SpreadSeen(Event, tag="spread-seen", frozen=True):
    """A loss in which errors are divided by a spread that is learned: which way its parts push that."""

    ABSENT: ClassVar[str] = "no loss divided errors by a spread that is learned"

    spreads: int = 0
    """How many there were."""
    together: float = 0.0
    """The share of them that all parts of the loss push the same way."""
    alone: bool = False
    """Does nothing but the errors push them?"""
    shared: bool = False
    """Is it one parameter for all examples?"""


class RowsCompared(Event, tag="rows-compared", frozen=True):
    """Rows that were picked at one line and met, in a loss, rows picked at another: is row for row the same example
    meant? Counted from the start of the run; `place` is where the rows in the loss were picked."""

    ABSENT: ClassVar[str] = "no rows that the program picks by an index met in a loss"

    other: Place | None = None
    """Where the rows that they met were picked."""
    looks: int = 0
    """How many losses were looked at."""
    apart: int = 0
    """In how many of them the rows were not the same, nor all at one distance."""
    rows: int = 0
    length: int = 0
    """How many rows there were to pick from."""
    pairs: int = 0
    """Different rows of the other line whose partner is known."""
    partners: int = 0
    """How many different partners these have."""
    again: int = 0
    """Rows that came again."""
    changed: int = 0
    """How many of these had another partner than the first time."""
    shuffled: bool = False
    """Was the data that one of them was picked from shuffled as a whole, and the other not?"""
    crossed: int = 0
    """In how many losses the rows had the same numbers, but were two axes put into one in opposite orders."""
    axes: tuple[int, ...] = ()
    """These axes, of the rows in the loss."""


class PairsMatched(Event, tag="pairs-matched", frozen=True):
    """Scores of pairs that a cross-entropy compared, one right partner for each example: a contrastive loss."""

    ABSENT: ClassVar[str] = "no loss looked for the partner of each example"

    examples: int = 0
    partners: int = 0
    """How many there were to choose from."""
    right: float = 0.0
    """The mean score of the partners that count as right."""
    right_spread: float = 0.0
    others: float = 0.0
    """The mean of all other scores, but for those that are filled in, such as -inf or -1e9."""
    others_spread: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """The ends of all scores that are not filled in."""
    elsewhere: float = 0.0
    """The share of examples whose highest score is at one and the same distance from the right partner."""
    offset: int = 0
    """That distance."""
    found: float = 0.0
    """The share of examples whose highest score is that of the right partner."""
    neighbours: float = 0.0
    """The share of those for which it is the other one of rows 2i and 2i + 1, where no label says so."""


class TripletsCompared(Event, tag="triplets-compared", frozen=True):
    """A triplet loss of torch."""

    ABSENT: ClassVar[str] = "no triplet loss of torch was called"

    margin: float = 1.0
    value: float | None = None
    same: float = 0.0
    """The share of triplets whose positive is embedded exactly where the anchor is."""
    positive: float = 0.0
    negative: float = 0.0
    """The mean distances from the anchor."""
