"""What experiments show, as plain data: for rules that judge them, and for every kind of report."""

from __future__ import annotations

import math

import msgspec

from unstuck.events import Place, Trial
from unstuck.findings import Diagnosis, Subject
from unstuck.findings.curve import Curve

Measure = bool | int | float | str | None
GOOD = frozenset({"passed", "learns", "inside", "independent", "causal", "reproducible"})
"""Verdicts that rule something out."""


class NamedCurve(msgspec.Struct, frozen=True):
    """One line of a plot."""

    label: str
    curve: Curve


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment that was done."""

    name: str
    """`overfit`, `baseline`, `lr`, `independence`, `causality` or `seeds`."""
    verdict: str
    """One word that depends on the experiment, such as `passed`, `failed` or `undecided`."""
    sentence: str
    """What it showed, in the numbers of the user's own run."""
    method: str
    """What was done, in half a sentence: which batch, which seeds, how many steps, what was switched off."""
    curves: tuple[NamedCurve, ...] = ()
    measures: dict[str, Measure] = {}
    caveats: tuple[str, ...] = ()
    """What could not be done, or makes the answer weaker. A sentence each."""
    x_axis: str = "step"
    """What the curves are drawn over: `step` or `learning rate`."""
    xs: tuple[float, ...] = ()
    """The learning rates of a sweep, one for each value of its curve."""
    seconds: float = 0.0
    place: Place | None = None
    """Where in the script it shows, if it shows at one place."""
    probe: Trial | None = None
    """Of `independence` and `causality`: what the model did when parts of its batch were exchanged."""


class Pair(msgspec.Struct, frozen=True):
    """Two runs with the same seed and the same number of steps: without a remedy and with it."""

    seed: int
    without: Curve
    remedied: Curve
    without_status: str
    remedied_status: str


class Matter(msgspec.Struct, frozen=True):
    """What a finding is about, and where."""

    subject: Subject
    place: Place | None = None


def matters(diagnosis: Diagnosis) -> tuple[Matter, ...]:
    """Of all its findings. Its lead may unite the subject of one with the place of another."""
    return tuple(dict.fromkeys(Matter(one.subject, one.place) for one in (diagnosis.lead, *diagnosis.findings)))


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a finding when its remedy was tried."""

    code: str
    about: tuple[Matter, ...] = ()
    """What the findings of the diagnosis are about, the first being the one it leads with: two diagnoses of one code
    are two matters."""
    verdict: str
    """`confirmed`, `no effect`, `worse`, or `undecided`."""
    sentence: str
    remedy: str
    """What was changed: an edit of the script, or an intervention."""
    steps: int
    pairs: tuple[Pair, ...] = ()
    difference: float | None = None
    """The loss with the remedy as a share of the loss without, less 1: -0.8 is a loss lower by 80 %."""
    interval: tuple[float, float] | None = None
    """95 % interval of that share, over the seeds."""

    def is_about(self, diagnosis: Diagnosis) -> bool:
        """Was it the remedy of this one that was tried?"""
        return diagnosis.lead.code == self.code and not set(self.about).isdisjoint(matters(diagnosis))

    @property
    def place(self) -> Place | None:
        """Where it shows."""
        return self.about[0].place if self.about else None


def time_needed(needed: float, left: float, budget: float) -> str:
    """`about 40 s, and 12 of 150 s were left`."""
    return f"about {math.ceil(needed)} s, and {math.floor(left)} of {budget:.0f} s were left"
