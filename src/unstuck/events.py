"""The closed vocabulary of a training run: past facts in plain numbers.

`capture` records these from a live process and `source` unrolls them out of a script's text, so a rule about
the order of things is written once. A field that only one of the two can know is None for the other.
Nothing here holds a tensor or imports torch.
"""

from __future__ import annotations

import msgspec

RECORD_VERSION = 1


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A spot in the user's code. Lines count from 1, columns from 1; 0 means unknown."""

    path: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    function: str = ""
    cell: int = 0
    """The cell of a notebook, from 1, in which the lines are counted; 0 in other files."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def document(self) -> str:
        """The file, and in a notebook the cell, in which the lines are counted."""
        return f"{self.path}:cell {self.cell}" if self.cell else self.path

    @property
    def key(self) -> tuple[str, int]:
        """What two witnesses must agree on to speak of the same spot."""
        return (self.document, self.line)


class ParameterFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter tensor, told apart from others by `key` (its identity within the process)."""

    name: str
    key: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    trainable: bool = True

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        total = 1
        for side in self.shape:
            total *= side
        return total


class ModuleFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One module inside a model: its dotted name and class."""

    name: str
    kind: str
    training: bool = True


class TensorFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a tensor that passed by: never its data, only numbers about it."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    requires_grad: bool = False
    made_by: str = ""
    """The autograd node behind it, seen through reshapes and casts, such as `SoftmaxBackward0`."""
    sums_to_one: bool = False
    """Every row along the class axis lies in [0, 1] and sums to 1."""


class InputFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one argument of a call was: numbers about a tensor, or the value itself if it is a plain one."""

    name: str
    shape: tuple[int, ...] | None = None
    """None if it is no tensor."""
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    quantiles: tuple[float, ...] = ()
    """At 5, 25, 50, 75 and 95 %, of a sample of a large tensor."""
    requires_grad: bool = False
    value: bool | int | float | str | None = None
    kind: str = ""
    """The class of what cannot be told in numbers."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """A past fact. `step` counts the optimizer steps that had been taken; `place` is the user's call site."""

    step: int = 0
    place: Place | None = None


class RunStarted(Event, tag="run-started", frozen=True):
    """The first line of every record."""

    version: int = RECORD_VERSION
    script: str = ""
    arguments: tuple[str, ...] = ()
    started: str = ""
    unstuck: str = ""
    python: str = ""
    torch: str = ""
    process: int = 0
    source_hash: str = ""
    """SHA-256 of the script as it ran, so that a later report knows whether the text is still the same."""


class RunEnded(Event, tag="run-ended", frozen=True):
    """How it ended: `finished`, `exited` (sys.exit), `interrupted` (Ctrl-C) or `crashed`."""

    status: str = "finished"
    exit_code: int = 0
    seconds: float = 0.0
    steps: int = 0


class Crash(Event, tag="crash", frozen=True):
    """The exception that ended the run; `frames` are the user's, outermost first, and `place` the innermost."""

    kind: str = ""
    message: str = ""
    frames: tuple[Place, ...] = ()


class Note(Event, tag="note", frozen=True):
    """Something that could not be watched, and why. Shown in the report so that silence is not mistaken for health."""

    text: str = ""


class ModelSeen(Event, tag="model-seen", frozen=True):
    """A module called from outside any other module, read once before the first step and again when its
    parameters turned out to have been replaced. `place` is the call."""

    model: str = ""
    kind: str = ""
    parameters: tuple[ParameterFact, ...] = ()
    modules: tuple[ModuleFact, ...] = ()


class OptimizerSeen(Event, tag="optimizer-seen", frozen=True):
    """An optimizer, read when it is built, when parameters are added to it, and at its first step."""

    optimizer: str = ""
    kind: str = ""
    parameters: tuple[ParameterFact, ...] = ()
    rates: tuple[float, ...] = ()
    """The learning rate of every group."""


class ModeChange(Event, tag="mode-change", frozen=True):
    """`train()` or `eval()` on a module."""

    model: str = ""
    training: bool = True


class Forward(Event, tag="forward", frozen=True):
    """A model was called (modules inside it are not reported one by one)."""

    model: str = ""
    training: bool = True
    grad_enabled: bool = True
    output_requires_grad: bool | None = None


class LossCall(Event, tag="loss-call", frozen=True):
    """A loss function of torch was called."""

    loss: str = ""
    """The functional name: `cross_entropy`, `nll_loss`, `mse_loss`, ..."""
    input: TensorFact | None = None
    target: TensorFact | None = None
    output_requires_grad: bool | None = None
    value: float | None = None
    gradient_kept: float | None = None
    """When the input came out of a softmax: the norm of the gradient it lets through, as a share of the right one."""


class LossInputs(Event, tag="loss-inputs", frozen=True):
    """A loss of the user's own, named with `--loss`, was called where gradients are computed."""

    loss: str = ""
    module: str = ""
    inputs: tuple[InputFact, ...] = ()
    """By the names of the parameters. Of scores and the classes they are for, also `scores[right]` and
    `scores[other]`: those of the right class, and the highest of the others."""
    value: float | None = None


class Backward(Event, tag="backward", frozen=True):
    """`backward()` was called on `loss`."""

    requires_grad: bool | None = None
    leaf: bool | None = None
    """It has no history: `requires_grad_(True)` was set by hand on a detached value."""
    value: float | None = None
    failed: bool = False
    carried: float | None = None
    """Norm of the gradients that an earlier step had already used and that were still there, where it was measured."""


class ZeroGrad(Event, tag="zero-grad", frozen=True):
    """Gradients were cleared on an optimizer or on a module."""

    optimizer: str | None = None
    model: str | None = None
    set_to_none: bool = True
    cleared: int | None = None
    """How many parameters had a gradient to lose."""


class Unscale(Event, tag="unscale", frozen=True):
    """`scaler.unscale_(optimizer)` was called by the user."""

    optimizer: str = ""


class Clip(Event, tag="clip", frozen=True):
    """Gradients were clipped, by `norm` or by `value`."""

    kind: str = "norm"
    limit: float | None = None
    norm: float | None = None
    with_grad: int | None = None
    parameters: int | None = None
    target: str | None = None
    """The model or optimizer whose parameters were given, where that is known."""


class ScalerUpdate(Event, tag="scaler-update", frozen=True):
    """`scaler.update()` was called by the user."""


class OptimizerStep(Event, tag="optimizer-step", frozen=True):
    """The optimizer updated its parameters. `parameters` counts the trainable ones it holds."""

    optimizer: str = ""
    parameters: int | None = None
    with_grad: int | None = None
    grad_norm: float | None = None
    inside_closure: bool = False
    """Forward and backward ran inside `step(closure)`."""
    through_scaler: bool = False
    """Called as `scaler.step(optimizer)`."""


class StepSkipped(Event, tag="step-skipped", frozen=True):
    """GradScaler found non-finite gradients and left the step out."""

    optimizer: str = ""


class SchedulerStep(Event, tag="scheduler-step", frozen=True):
    """A learning-rate scheduler advanced."""

    kind: str = ""
    rates: tuple[float, ...] = ()


class UntrainedGradients(Event, tag="untrained-gradients", frozen=True):
    """After a backward, these trainable parameters hold a gradient, no optimizer holds them, and nobody moved them.

    `place` is set when they belong to layers that ran inside a model without being part of it: where those were called.
    """

    parameters: tuple[ParameterFact, ...] = ()
    norms: tuple[float, ...] = ()


class NonFinite(Event, tag="non-finite", frozen=True):
    """The first value that was NaN or infinite, by the order of execution."""

    what: str = "loss"
    """`input`, `activation`, `loss`, `gradient` or `parameter`."""
    name: str = ""
    """The module or parameter."""
    kind: str = ""
    """The module's class."""
    value: str = "nan"
    """`nan` or `inf`."""
    low: float | None = None
    high: float | None = None
    """Range of the finite values that went in, where it could be read."""
    suspects: tuple[str, ...] = ()
    """Operations in the autograd graph that can produce it, nearest to the loss first."""
    also: tuple[str, ...] = ()
    """Other tensors of the same kind that were non-finite in the same step."""
    before_training: bool = False
    """A parameter that was NaN before any optimizer had stepped."""
    inputs_finite: bool | None = None
    """Were the inputs of the named module finite, where they were really measured? None if they were not. Of a loss:
    True if the outputs of all modules in that step were measured and finite."""


class Gauges(Event, tag="gauges", frozen=True):
    """Sampled measurements of one step."""

    loss: float | None = None
    grad_norm: float | None = None
    rates: tuple[float, ...] = ()


AnyEvent = (
    RunStarted
    | RunEnded
    | Crash
    | Note
    | ModelSeen
    | OptimizerSeen
    | ModeChange
    | Forward
    | LossCall
    | LossInputs
    | Backward
    | ZeroGrad
    | Unscale
    | ScalerUpdate
    | Clip
    | OptimizerStep
    | StepSkipped
    | SchedulerStep
    | UntrainedGradients
    | NonFinite
    | Gauges
)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Live objects read once: what `check` looks at before training, and what a record shows of the same."""

    models: tuple[ModelSeen, ...] = ()
    optimizers: tuple[OptimizerSeen, ...] = ()
    losses: tuple[LossCall, ...] = ()
    backwards: tuple[Backward, ...] = ()
    missing_gradients: tuple[ParameterFact, ...] = ()
    """Trainable parameters that a probe backward left without a gradient."""
