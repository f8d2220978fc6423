"""A test of ours that fails costs nothing but itself: the program goes on, and the relation was not tested."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from unstuck.capture.live_objects.evaluation import in_silence
from unstuck.capture.trial.lab import Lab
from unstuck.findings.relations import Answer, Relation, State

LONGEST = 100
"""Letters of an error that are repeated."""


def guarded(lab: Lab, relation: Relation, test: Callable[[], list[Answer]]) -> list[Answer]:
    """Its answers, or why there are none."""
    try:
        with in_silence():
            return test()
    except Exception as error:
        note_failure(lab)
        said = next(iter(str(error).splitlines()), "")[:LONGEST]
        why = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return [Answer(relation=relation, state=State.DOES_NOT_APPLY, sentence=f"Not tested: the test failed ({why}).")]


def note_failure(lab: Lab) -> None:
    """Remember the error that is being handled; raise it where we test ourselves."""
    lab.notes["failed"] = traceback.format_exc()[-2000:]
    if os.environ.get("UNSTUCK_RAISE"):
        raise
