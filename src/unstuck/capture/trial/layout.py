"""Where the files of trials lie. What the program wrote is deleted when the trials have ended."""

from __future__ import annotations

import os

OUTPUT, NOTES = "output.txt", "notes.json"
"""The files in the folder of a trial, next to its record: what it printed, and what was learned from it."""
TOKEN = "token"
"""The note that says who wrote them."""
LAYER = "layer"
"""The folder, in that of a run, for everything that its trials write."""
PROBE = "probe"
"""The folder of the attempt, before all trials, that shows which isolation works here."""
TRIAL = "UNSTUCK_TRIAL"
"""The variable that is set in trials: a watch in the script forwards nothing from there."""
TEMPORARY_PREFIX = "unstuck-trials-"
"""How the name of a folder for their temporary files begins, where it lies elsewhere."""
TEMPORARY_LINK = "temporary"
"""The link in the layer that leads there."""


def stage_of(folder: str | os.PathLike[str]) -> str:
    """Where the copy of the working directory lies for the trial with this folder, if it runs on one."""
    run, name = os.path.split(folder)
    return os.path.join(run, LAYER, name, "stage")
