"""The closed vocabulary of controlled changes to a run. Plain data: `capture/trial/interventions` carries them out."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Literal

import msgspec

from unstuck.findings import Edit

TIME_OVER = "its time was over"
"""Why a trial was stopped that had not taken its steps."""
LAYER = "layer"
"""Where in the folder of a run everything lies that its trials write. It is gone when they are."""
TEMPORARY_PREFIX = "unstuck-trials-"
"""How the name of a folder for their temporary files begins, where it lies elsewhere."""
TEMPORARY_LINK = "temporary"
"""What leads there from the layer."""


class Isolation(StrEnum):
    """What keeps a trial from writing what is the user's."""

    OVERLAY = "overlay"
    """The kernel: whatever the trial writes, and whatever it starts, lands in a layer of its own."""
    LANDLOCK = "landlock"
    """A copy of the working directory; the kernel forbids to write anywhere else."""
    COPIES = "copies"
    """A copy of the working directory, and the functions through which Python writes. C code is not held back."""


def stage_of(folder: str | os.PathLike[str]) -> str:
    """Where the copy of the working directory lies for the trial with this folder, if it runs on one."""
    run, name = os.path.split(folder)
    return os.path.join(run, LAYER, name, "stage")


class Change(msgspec.Struct, frozen=True, tag_field="change"):
    """One change to a run of an unmodified script."""


class StopAfter(Change, frozen=True, tag="stop-after"):
    """End the run after so many optimizer steps; or after `enough` of them, once so many seconds have passed."""

    steps: int
    enough: int | None = None
    seconds: float = 0.0

    def reached(self, steps: int, seconds: float) -> bool:
        """Is it time to end?"""
        return steps >= self.steps or (self.enough is not None and steps >= self.enough and seconds >= self.seconds)


class Seed(Change, frozen=True, tag="seed"):
    """Seed every generator. Number 0 keeps the seeds that the script sets itself; others shift them."""

    number: int = 0


class OwnSeeds(Change, frozen=True, tag="own-seeds"):
    """Seed nothing that the script does not seed: chance begins as in any new process."""


class FreezeBatch(Change, frozen=True, tag="freeze-batch"):
    """Give the loop the data of its first step again and again."""


class ChangeInputs(Change, frozen=True, tag="change-inputs"):
    """Give the model other inputs, and the loss the same targets."""

    how: Literal["zeros", "shuffled", "noise", "standardised"]


class NoDropout(Change, frozen=True, tag="no-dropout"):
    """Drop nothing."""


class NoWeightDecay(Change, frozen=True, tag="no-weight-decay"):
    """Decay nothing."""


class SetRate(Change, frozen=True, tag="set-rate"):
    """Multiply every learning rate; the script's own schedule goes on underneath."""

    factor: float


class SweepRate(Change, frozen=True, tag="sweep-rate"):
    """Raise the rate of every group in proportion from step to step, from `first` to `last` times its own.

    The script's schedule is overridden. The run ends when the loss diverges.
    """

    first: float
    last: float
    steps: int


class EditSource(Change, frozen=True, tag="edit-source"):
    """Change the text of the script, in the copy that runs."""

    edits: tuple[Edit, ...]


class ClearGradients(Change, frozen=True, tag="clear-gradients"):
    """Clear all gradients after each step."""


class KeepGradients(Change, frozen=True, tag="keep-gradients"):
    """Clear no gradient between a backward and the next step."""


class TakeSteps(Change, frozen=True, tag="take-steps"):
    """Step every optimizer after each backward; for scripts that never do."""


class TrainingMode(Change, frozen=True, tag="training-mode"):
    """Put the model into training mode whenever it is called with gradients."""


class UnscaleBeforeClip(Change, frozen=True, tag="unscale-before-clip"):
    """Let the GradScaler unscale the gradients before they are clipped."""


class DivideLoss(Change, frozen=True, tag="divide-loss"):
    """Back-propagate the loss divided by a number."""

    by: float


class GiveLoss(Change, frozen=True, tag="give-loss"):
    """Give losses their arguments in the form they take: undo a softmax or sigmoid, apply a missing one, or give the
    target the shape of the prediction."""

    form: Literal["undo-softmax", "undo-sigmoid", "log-softmax", "log", "same-shape", "swapped"]
    function: str = ""
    """Only this function of torch.nn.functional; empty: all that take such arguments."""


class ClipGradients(Change, frozen=True, tag="clip-gradients"):
    """Clip the norm of all gradients before each step."""

    norm: float


class NoClipping(Change, frozen=True, tag="no-clipping"):
    """Let the script's own clipping clip nothing."""


class AddParameters(Change, frozen=True, tag="add-parameters"):
    """Give the optimizer the parameters of its model that it does not hold."""


class NoSchedule(Change, frozen=True, tag="no-schedule"):
    """Keep the learning rates where the optimizer was built with."""


class SetOption(Change, frozen=True, tag="set-option"):
    """Set an option of every group of the optimizers, such as eps."""

    name: str
    value: float


class ProbeModel(Change, frozen=True, tag="probe-model"):
    """At the first backward, ask on the side whether outputs depend on other examples or on what comes later.

    The note `probe` holds the answer, the fields of `facts.Trial`.
    """


Intervention = (
    StopAfter
    | Seed
    | OwnSeeds
    | FreezeBatch
    | ChangeInputs
    | NoDropout
    | NoWeightDecay
    | SetRate
    | SweepRate
    | EditSource
    | ClearGradients
    | KeepGradients
    | TakeSteps
    | TrainingMode
    | UnscaleBeforeClip
    | DivideLoss
    | GiveLoss
    | ClipGradients
    | NoClipping
    | AddParameters
    | NoSchedule
    | SetOption
    | ProbeModel
)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a program under interventions, in a process of its own that can write nothing of the user's."""

    target: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False
    home: str
    """The working directory of the program."""
    folder: str
    """Where its record and its output go."""
    changes: tuple[Intervention, ...] = ()
    every: int | None = None
    """Record each so-manieth window; None: as a watched run does."""
    show_data: bool = False
    """Keep the batch as the model received it, filters and predictions, for the report."""
