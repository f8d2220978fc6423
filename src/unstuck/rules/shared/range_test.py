"""What O07 and M14 say of a learning rate range test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unstuck.findings import Evidence, Finding

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment

OWN, SUGGESTED = "learning rate", "suggested learning rate"


class Told(msgspec.Struct, frozen=True):
    """The measures of a range test that has a band."""

    own: float
    suggested: float
    lowest: float
    highest: float
    diverged_at: float | None
    optimizer: str

    @property
    def words(self) -> str:
        """`0.001 to 0.01 (the loss diverges at 0.1)`"""
        limit = f"diverges at {self.diverged_at:.2g}" if self.diverged_at else "diverged at no rate that was tried"
        return f"{self.lowest:.2g} to {self.highest:.2g} (the loss {limit})"


def told(experiment: Experiment) -> Told:
    """Read them."""
    return msgspec.convert(experiment.measures, Told)


def comparison(experiment: Experiment) -> str:
    """What trainings at both rates came to, if they were made."""
    steps, best = experiment.measures.get("training_steps"), experiment.measures.get("suggested_result")
    if not isinstance(best, float):
        return ""
    own = experiment.measures.get("own_result")
    at_own = f"{own:.3g}" if isinstance(own, float) else "not finite"
    return f"; after {steps} steps the loss is {at_own} with it and {best:.3g} in the band"


def evidence(experiment: Experiment) -> list[Evidence]:
    """The band, where the loss breaks, and what trainings showed."""
    band = told(experiment)
    found = [
        Evidence(OWN, band.own),
        Evidence(SUGGESTED, band.suggested),
        Evidence("productive band", f"{band.lowest:.2g} to {band.highest:.2g}"),
        Evidence("the loss diverges at", band.diverged_at if band.diverged_at else "no rate that was tried"),
    ]
    names = {"own_result": "loss of the run as it is", "suggested_result": "loss in the band, after as many steps"}
    found += [
        Evidence(words, value)
        for key, words in names.items()
        if isinstance(value := experiment.measures.get(key), float)
    ]
    return found


def factor(finding: Finding) -> float | None:
    """What a finding of the range test wants the rate to be multiplied by."""
    own, suggested = finding.number(OWN), finding.number(SUGGESTED)
    return suggested / own if own and suggested else None
