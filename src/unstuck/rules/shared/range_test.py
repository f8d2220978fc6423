"""The result of a learning rate range test, in words and as evidence."""

from __future__ import annotations

import msgspec

from unstuck.findings import Evidence, Finding
from unstuck.findings.results import Experiment

RESULTS = ("training_steps", "own_result", "suggested_result")
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
        limit = f"diverges at {self.diverged_at:.2g}" if self.diverged_at else "diverged at no tested rate"
        return f"{self.lowest:.2g} to {self.highest:.2g} (the loss {limit})"


def measures_of(experiment: Experiment) -> Told:
    """The measures of an experiment, if it found a band."""
    return msgspec.convert(experiment.measures, Told)


def holds_back(experiment: Experiment) -> bool:
    """Is the rate what keeps the run from learning? Where that could not be tried, it may be."""
    return experiment.measures.get("holds_back") is not False


def comparison(experiment: Experiment) -> str:
    """The losses after training at both rates, if that was tried: over several seeds, or else as the test saw them."""
    measures = experiment.measures
    names = ("paired_steps", "with_own", "other") if measures.get("confirmed") else RESULTS
    steps, own, best = (measures.get(name) for name in names)
    if not isinstance(best, float):
        return ""
    at_own = f"{own:.3g}" if isinstance(own, float) else "not finite"
    return f"; after {steps} steps the loss is {at_own} with it and {best:.3g} in the band"


def evidence(experiment: Experiment) -> list[Evidence]:
    """The band, the rate at which the loss diverges, and the losses after training."""
    band = measures_of(experiment)
    found = [
        Evidence(OWN, band.own),
        Evidence(SUGGESTED, band.suggested),
        Evidence("productive band", f"{band.lowest:.2g} to {band.highest:.2g}"),
        Evidence("the loss diverges at", band.diverged_at if band.diverged_at else "no tested rate"),
    ]
    names = {"own_result": "loss of the run as it is", "suggested_result": "loss in the band, after as many steps"}
    found += [
        Evidence(words, value)
        for key, words in names.items()
        if isinstance(value := experiment.measures.get(key), float)
    ]
    return found


def factor(finding: Finding) -> float | None:
    """The factor for the learning rate that a finding of the range test suggests."""
    own, suggested = finding.number(OWN), finding.number(SUGGESTED)
    return suggested / own if own and suggested else None
