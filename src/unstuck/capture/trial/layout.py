"""Where the files of trials lie. All of them are deleted when the trials have ended."""

from __future__ import annotations

import os

LAYER = "layer"
"""The folder, in that of a run, for everything that its trials write."""
TEMPORARY_PREFIX = "unstuck-trials-"
"""How the name of a folder for their temporary files begins, where it lies elsewhere."""
TEMPORARY_LINK = "temporary"
"""The link in the layer that leads there."""


def stage_of(folder: str | os.PathLike[str]) -> str:
    """Where the copy of the working directory lies for the trial with this folder, if it runs on one."""
    run, name = os.path.split(folder)
    return os.path.join(run, LAYER, name, "stage")
