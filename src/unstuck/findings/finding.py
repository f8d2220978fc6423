"""A finding: one rule, seen by one witness at one place, with its evidence."""

from __future__ import annotations

import enum
from typing import Self

import msgspec

from unstuck.events import Place

FORMAT_VERSION = 1
"""Version of the JSON form described in docs/json.md."""


class Severity(enum.Enum):
    """How serious a finding is: the run is wrong, probably worse than it should be, or a habit to change."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"

    @property
    def rank(self) -> int:
        """0 for the most serious."""
        return list(Severity).index(self)

    def at_least(self, other: Severity) -> bool:
        """Is this as serious as `other`, or more?"""
        return self.rank <= other.rank


class Confidence(enum.Enum):
    """`certain`: it follows from what was seen. `likely`: a legitimate reading exists but is rare."""

    CERTAIN = "certain"
    LIKELY = "likely"


class Witness(enum.Enum):
    """Who saw it: the text of the script, the live objects before training, the run itself, the loss on its own, or an
    experiment on the loop."""

    SOURCE = "source"
    SETUP = "setup"
    RUN = "run"
    SURFACE = "surface"
    EXPERIMENT = "experiment"


SHOWN_BY = {
    Witness.SOURCE: "lint",
    Witness.SETUP: "check",
    Witness.RUN: "a run",
    Witness.SURFACE: "a surface",
    Witness.EXPERIMENT: "an experiment",
}
"""What shows the findings of each witness."""


class Variant(enum.StrEnum):
    """One of the ways in which a rule's pitfall shows itself. A rule lists its own:

    class Order(Variant):
        NEVER_CLEARED = "never-cleared", "gradients are never cleared"
    """

    meaning: str
    """The variant in half a sentence."""

    def __new__(cls, name: str, meaning: str = "") -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning = meaning
        return member

    @classmethod
    def titles(cls) -> dict[str, str]:
        """The title of each variant by its id, as `Rule(variants=...)` expects."""
        return {member.value: member.meaning for member in cls}


class Subject(msgspec.Struct, frozen=True, eq=False):
    """What a finding is about. `kind`: parameter, module, call, optimizer, loss, target or loop."""

    kind: str
    name: str
    """As the user calls it, such as `self.optimizer` or `nll_loss at train.py:12`."""
    key: str = ""
    """The same wherever it is met: `optimizer`, `nll_loss`, `model.fc1.weight`. It says nothing about which object is
    meant."""

    def __post_init__(self) -> None:
        if not self.key:
            # A method that is read on its own and from its caller calls one object `self.optimizer` and `optimizer`.
            msgspec.structs.force_setattr(self, "key", self.name.replace("self.", ""))

    @classmethod
    def at(cls, kind: str, what: str, place: Place | None, *, word: str = "at") -> Subject:
        """One of several that go by the same name, distinguished by a place: `nll_loss at train.py:12`."""
        return cls(kind, f"{what} {word} {place}" if place is not None else what, cls(kind, what).key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subject) and (self.kind, self.name) == (other.kind, other.name)

    def __hash__(self) -> int:
        return hash((self.kind, self.name))


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured or quoted fact, with its unit and the threshold it is compared with."""

    name: str
    value: bool | int | float | str | list[str]
    unit: str = ""
    threshold: float | str | None = None
    place: Place | None = None


class Edit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Replace the text between two positions (columns from 1, end exclusive)."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    cell: int = 0
    """The cell of a notebook, from 1, in which the lines are counted."""


class Fix(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to change. `safety`: `safe` (only the bug goes), `unsafe` (look first) or `manual` (no edits)."""

    text: str
    edits: tuple[Edit, ...] = ()
    safety: str = "manual"


class Verify(msgspec.Struct, frozen=True):
    """A command that shows whether the fix worked, and what it should show."""

    command: str
    expect: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, seen by one witness at one place."""

    code: str
    name: str
    severity: Severity
    confidence: Confidence
    witness: Witness = Witness.SOURCE
    """Set by `Rule.findings`, not by the rule's own functions."""
    message: str
    """What is true, in the user's own numbers."""
    cause: str
    """Why that keeps the run from learning."""
    subject: Subject
    place: Place | None = None
    related: tuple[Place, ...] = ()
    """Other lines that belong to the same mistake, such as the loss call fed by a softmax."""
    evidence: tuple[Evidence, ...] = ()
    fix: Fix
    verify: Verify | None = None
    docs: str = ""
    variant: str = ""
    """Which of the rule's variants it is, such as `never-cleared`; empty where the rule has none."""
    hygiene: bool = False
    """It costs memory, time or reproducibility, and never keeps a run from learning."""

    @property
    def id(self) -> str:
        """The code, with the variant where there is one: `O12` or `O04/never-cleared`."""
        return f"{self.code}/{self.variant}" if self.variant else self.code

    def number(self, name: str) -> float | None:
        """A measured fact by its name, if it is a number."""
        values = [item.value for item in self.evidence if item.name == name]
        return next((float(value) for value in values if isinstance(value, int | float)), None)

    @property
    def places(self) -> tuple[Place, ...]:
        """The guilty line first, then the related ones."""
        return ((self.place,) if self.place else ()) + self.related
