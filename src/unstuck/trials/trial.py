"""What a trial is: one run of a program under interventions, in a process that cannot write to the user's files."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from unstuck.interventions import Intervention as AnyIntervention
else:
    from unstuck.interventions import any_intervention

    AnyIntervention = any_intervention()


class StopReason(StrEnum):
    """Why a trial was stopped, as its record says it."""

    STEPS_TAKEN = "it had taken the steps that were asked for"
    DIVERGED = "the loss diverged"
    TIME_OVER = "its time was over"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What the process of a trial needs to know."""

    target: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False
    home: str
    """The working directory of the program."""
    folder: str
    """Where its record and its output go."""
    token: str = ""
    """A secret in its notes: the program can write to that folder too."""
    changes: tuple[AnyIntervention, ...] = ()
    every: int | None = None
    """Record every Nth window; None: as a watched run does."""
    show_data: bool = False
    """Save the batch as the model received it, filters and predictions, for the report."""
