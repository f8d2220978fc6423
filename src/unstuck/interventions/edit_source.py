"""Changes the text of the script."""

from __future__ import annotations

from unstuck.findings import Edit
from unstuck.interventions.base import Intervention


class EditSource(Intervention, frozen=True):
    """Edit the copy of the script that runs, before it starts."""

    edits: tuple[Edit, ...]

    WORDS = "the edit below"
