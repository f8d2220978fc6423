"""The training loop: models and optimizers, forward and backward passes, losses, steps.

`capture` records these from a live process and `source` unrolls them from the text of a script, so a rule about
the order of things is written once. A field that only one of the two can know is None for the other.
"""

from __future__ import annotations

from typing import ClassVar

from unstuck.events.base import (
    Event,
    GraphFact,
    GroupFact,
    InputFact,
    ModuleFact,
    ParameterFact,
    TensorFact,
)


class ModelSeen(Event, tag="model-seen", frozen=True):
    """A module called from outside any other module, read once before the first step and again when its
    parameters turned out to have been replaced. `place` is the call."""

    ABSENT: ClassVar[str] = "no model was trained"

    model: str = ""
    kind: str = ""
    parameters: tuple[ParameterFact, ...] = ()
    modules: tuple[ModuleFact, ...] = ()


class OptimizerSeen(Event, tag="optimizer-seen", frozen=True):
    """An optimizer, read when it is built, when parameters are added to it, and at its first step."""

    ABSENT: ClassVar[str] = "no optimizer was built"

    optimizer: str = ""
    kind: str = ""
    parameters: tuple[ParameterFact, ...] = ()
    rates: tuple[float, ...] = ()
    """The learning rate of every group."""
    groups: tuple[GroupFact, ...] = ()
    state_dtypes: tuple[str, ...] = ()
    """Of the tensors it keeps for its parameters, such as Adam's averages, once it has stepped."""
    models: tuple[str, ...] = ()
    """Labels of the models whose parameters it holds, once it has stepped."""
    continues: str = ""
    """The last optimizer before it that trained layers of these models; empty if they are all untrained."""


class ModeChange(Event, tag="mode-change", frozen=True):
    """`train()` or `eval()` on a module."""

    model: str = ""
    training: bool = True


class Forward(Event, tag="forward", frozen=True):
    """A model was called (modules inside it are not reported one by one)."""

    ABSENT: ClassVar[str] = "no model was called"

    model: str = ""
    training: bool = True
    grad_enabled: bool = True
    output_requires_grad: bool | None = None
    layers_train: bool | None = None
    """Is any layer in training mode that heeds the mode, such as Dropout? None without such layers."""


class LossCall(Event, tag="loss-call", frozen=True):
    """A loss function of torch was called."""

    ABSENT: ClassVar[str] = "no loss function of torch was called"

    loss: str = ""
    """The functional name: `cross_entropy`, `nll_loss`, `mse_loss`, ..."""
    input: TensorFact | None = None
    target: TensorFact | None = None
    output_requires_grad: bool | None = None
    value: float | None = None
    gradient_kept: float | None = None
    """When the input came out of a softmax: the norm of the gradient it lets through, as a share of the right one."""
    reduction: str = ""
    ignored: float | None = None
    """The share of target positions that `ignore_index` leaves out."""
    weighted: bool = False
    """`weight` or `pos_weight` was given."""
    grad_enabled: bool | None = None
    variance: TensorFact | None = None
    """What `gaussian_nll_loss` was given as the variance, if that is a tensor."""
    classes_were: tuple[tuple[int, ...], int] | None = None
    """Where a reshape has taken the classes off their axis: the shape before it, and the axis of the classes there."""
    blanks: float | None = None
    """Of `ctc_loss`: the share of the targets that are the blank,"""
    log_total: float | None = None
    """and how far the sum of what it takes for probabilities is from 1, as the size of its logarithm."""


class Scored(Event, tag="scored", frozen=True):
    """How good the answers were that a training loss was given, and what a constant answer would have cost."""

    ABSENT: ClassVar[str] = "no loss compared answers with targets"

    loss: str = ""
    """The functional name; that of the nearest loss of torch for one written by hand."""
    cost: float | None = None
    """What the loss is for one target on average, however it was reduced."""
    guess: float | None = None
    """The same for the best constant answer to all targets seen so far; None where that is not known, and where they
    are all the same."""
    labels: int = 0
    """How many targets the call compares."""
    right: float | None = None
    """The share of answers that are right, where answers are classes."""
    guess_right: float | None = None
    """The share that the best constant answer gets right, of all targets seen so far."""


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

    ABSENT: ClassVar[str] = "backward() was never called"

    requires_grad: bool | None = None
    leaf: bool | None = None
    """It has no history: `requires_grad_(True)` was set by hand on a detached value."""
    value: float | None = None
    failed: bool = False
    carried: float | None = None
    """Norm of the gradients that an earlier step had already used and that were still there, where it was measured."""
    scaled: bool = False
    """The loss came out of `scaler.scale()`."""
    grad_norm_before: float | None = None
    grad_norm: float | None = None
    """Norm of all gradients the optimizers hold, right before and right after; measured a few times in a run."""
    synced: bool | None = None
    """Under DistributedDataParallel: were the gradients reduced over the ranks in this backward?"""
    graph: GraphFact | None = None
    """The end of the graph behind the loss; read a few times in a run."""


class ZeroGrad(Event, tag="zero-grad", frozen=True):
    """Gradients were cleared on an optimizer or on a module."""

    ABSENT: ClassVar[str] = "gradients were never cleared"

    optimizer: str | None = None
    model: str | None = None
    set_to_none: bool = True
    cleared: int | None = None
    """How many parameters had a gradient to lose."""


class Clip(Event, tag="clip", frozen=True):
    """Gradients were clipped, by `norm` or by `value`."""

    ABSENT: ClassVar[str] = "no gradient was clipped"

    kind: str = "norm"
    limit: float | None = None
    norm: float | None = None
    with_grad: int | None = None
    parameters: int | None = None
    turned: float | None = None
    """By how many degrees clipping by value turns the gradient; from samples, a few times in a run."""
    target: str | None = None
    """The model or optimizer whose parameters were given, where that is known."""


class OptimizerStep(Event, tag="optimizer-step", frozen=True):
    """The optimizer updated its parameters. `parameters` counts the trainable ones it holds."""

    ABSENT: ClassVar[str] = "no optimizer stepped"

    optimizer: str = ""
    parameters: int | None = None
    with_grad: int | None = None
    grad_norm: float | None = None
    inside_closure: bool = False
    """Forward and backward ran inside `step(closure)`."""
    through_scaler: bool = False
    """Called as `scaler.step(optimizer)`."""


class HandStep(Event, tag="hand-step", frozen=True):
    """Weights changed between two times that gradients were asked for, in a program without an optimizer."""

    ABSENT: ClassVar[str] = "no weights were updated by hand"

    optimizer: str = ""
    """What the updates are called: those of losses at different lines have names of their own."""
    along: float | None = None
    """The cosine of the angle between the update and the negative gradient: 1 in plain gradient descent, below 0 where
    the update goes up."""
    rate: float | None = None
    """The update along the negative gradient, as a share of it."""


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
    until: str = ""
    """Of an activation that was not looked at module by module: it became so after `name` and before this module."""
    before_training: bool = False
    """A parameter that was NaN before any optimizer had stepped."""
    gradients_unseen: bool = False
    """Of a parameter: the gradients of the step that broke it were not looked at, so they may have been so first."""
    inputs_finite: bool | None = None
    """Were the inputs of the named module finite, where they were really measured? None if they were not. Of a loss:
    True if the outputs of all modules in that step were measured and finite."""


class GraphsKept(Event, tag="graphs-kept", frozen=True):
    """The graphs of this many steps in a row were still in memory; `place` is the backward of the last one."""

    alive: int = 0
