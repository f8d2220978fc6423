"""Relations that must hold whatever the model is, and what became of them on a program: plain data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.events import Place

Number = bool | int | float | str | None


class Relation(StrEnum):
    """What must hold, in half a sentence."""

    DESCENT = "a step lowers the loss of its batch"
    TARGETS = "the loss falls towards the targets"
    INPUTS = "every input matters"
    REACH = "the model can output its targets"
    ORDER = "the order of positions matters"
    ALIGNMENT = "targets are aligned with inputs"
    PADDING = "padding does not matter"
    LAYOUT = "inputs are laid out as they were recorded"
    STEADY = "the same example gives the same answer in evaluation"
    MODES = "training and evaluation mode agree"
    MOVES = "targets move with their images"
    STATE = "no batch leaves a state behind for the next"


class State(StrEnum):
    """What became of a relation."""

    HOLDS = "holds"
    BROKEN = "broken"
    DOES_NOT_APPLY = "does not apply"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One relation, tested on one training, model or loss of a program."""

    relation: Relation
    state: State
    sentence: str
    """The numbers that show it, or why it does not apply."""
    form: str = ""
    """In which way it is broken: one of the forms that the probe of the relation names."""
    subject: str = ""
    """What it is about: an optimizer, an argument of a model, a loss."""
    measures: dict[str, Number] = {}
    place: Place | None = None


def worst(answers: tuple[Answer, ...], relation: Relation) -> Answer | None:
    """The answer that counts where a relation was tested several times: a broken one, then one that holds."""
    order = (State.BROKEN, State.HOLDS, State.DOES_NOT_APPLY)
    own = [answer for answer in answers if answer.relation is relation]
    return min(own, key=lambda answer: order.index(answer.state), default=None)


def broken(answers: tuple[Answer, ...], relation: Relation) -> tuple[Answer, ...]:
    """All that show it broken."""
    return tuple(one for one in answers if one.relation is relation and one.state is State.BROKEN)
