"""Events about what sets the pace of a run: learning-rate schedulers and the gradient scaler.

Nothing here holds a tensor or imports torch.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from unstuck.events import Event


class SchedulerSeen(Event, tag="scheduler-seen", frozen=True):
    """A learning-rate scheduler was built for an optimizer."""

    ABSENT: ClassVar[str] = "no scheduler was built"

    kind: str = ""
    scheduler: str = ""
    """Its label, such as `StepLR#2`."""
    optimizer: str = ""
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    """What it was built with: T_max, total_steps, step_size, gamma, ..."""
    rates: tuple[float, ...] = ()
    """Of the optimizer, once it was built."""
    wants_more: bool | None = None
    """Of ReduceLROnPlateau: is its metric to rise?"""


class SchedulerStep(Event, tag="scheduler-step", frozen=True):
    """A learning-rate scheduler advanced. The first steps of each are recorded in every window."""

    ABSENT: ClassVar[str] = "no scheduler stepped"

    kind: str = ""
    rates: tuple[float, ...] = ()
    """Of its optimizer afterwards."""
    scheduler: str = ""
    count: int = 0
    """How many steps it has taken, this one included."""
    told: bool = False
    """It was given the epoch to go to."""
    metric: float | None = None
    """What ReduceLROnPlateau was given."""


class ScheduleEnded(Event, tag="schedule-ended", frozen=True):
    """What a scheduler had done when the run ended. Those that others drive are left out."""

    scheduler: str = ""
    count: int = 0
    steps: int = 0
    """Steps of all optimizers since it was built."""


class RateAsked(Event, tag="rate-asked", frozen=True):
    """The program called `get_lr()` of a scheduler of torch and got other rates than those in use; recorded
    a few times."""

    kind: str = ""
    scheduler: str = ""
    answer: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    """The rates in use."""


class Unscale(Event, tag="unscale", frozen=True):
    """`scaler.unscale_(optimizer)` was called by the user."""

    optimizer: str = ""


class ScalerUpdate(Event, tag="scaler-update", frozen=True):
    """`scaler.update()` was called by the user."""

    ABSENT: ClassVar[str] = "no gradient scaler was used"

    scale: float | None = None
    """The scale after it."""
    skipped: int = 0
    """How many steps were left out so far."""


class StepSkipped(Event, tag="step-skipped", frozen=True):
    """GradScaler found non-finite gradients and left the step out."""

    optimizer: str = ""


class GradientsReduced(Event, tag="gradients-reduced", frozen=True):
    """The program itself called `all_reduce` on gradients; recorded once for each line."""

    wrapped: bool = False
    """They belong to a model under DistributedDataParallel, which reduces them as well."""
