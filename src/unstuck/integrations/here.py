"""What was found, seen from one file: a mistake may lie in another one that it imports."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from unstuck.events import Place
from unstuck.findings import Diagnosis
from unstuck.findings.result import Result
from unstuck.judge import spelled


class Seen(msgspec.Struct, frozen=True):
    """A diagnosis and the line of the file at hand that shows it."""

    diagnosis: Diagnosis
    place: Place

    @property
    def sentence(self) -> str:
        """What is true; with the guilty line, where that is in another file."""
        lead = self.diagnosis.lead
        return lead.message if self.place == lead.place else f"{lead.message} (see {lead.place})"


def seen_in(path: str, result: Result) -> Iterator[Seen]:
    """Every diagnosis with a line in this file."""
    own = spelled(os.path.abspath(path))
    for diagnosis in result.verdict.diagnoses:
        place = next((place for place in diagnosis.lead.places if spelled(os.path.abspath(place.path)) == own), None)
        if place:
            yield Seen(diagnosis, place)
