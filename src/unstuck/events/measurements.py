"""Sampled measurements of a run: events of their own, in columns, one per tensor or activation.

Nothing here holds a tensor or imports torch.
"""

from __future__ import annotations

from typing import ClassVar

from unstuck.events import Event


class Gauges(Event, tag="gauges", frozen=True):
    """Measurements of one sampled step."""

    ABSENT: ClassVar[str] = "nothing was measured at a step"

    optimizer: str = ""
    loss: float | None = None
    grad_norm: float | None = None
    """Of all gradients the optimizer used, after clipping."""
    rates: tuple[float, ...] = ()
    seconds: float | None = None
    """From the end of the step before to the end of this one; then the parts of it."""
    data_seconds: float | None = None
    """Waiting for the batches of DataLoaders."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    step_seconds: float | None = None
    memory: int | None = None
    """Bytes: allocated on the device, or the resident memory of the process."""


class LossesBetween(Event, tag="losses-between", frozen=True):
    """The losses of the steps between two sampled ones, one by one. Of several optimizers each has its own."""

    optimizer: str = ""
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()


class EpisodesEnded(Event, tag="episodes-ended", frozen=True):
    """What an agent earned in the episodes that it played from one line."""

    ABSENT: ClassVar[str] = "no environment with rewards was seen"

    environment: str = ""
    """Its class."""
    steps: tuple[int, ...] = ()
    """For each value, the optimizer steps that had been taken by then."""
    returns: tuple[float | None, ...] = ()
    """The sum of the rewards of an episode; of several episodes their mean."""
    each: int = 1
    """How many episodes each value stands for."""
    contested: bool = False
    """Does the environment have players, so that rewards depend on an opponent that may learn as well?"""


class TensorsNamed(Event, tag="tensors-named", frozen=True):
    """What the columns of later `TensorGauges` and `Histograms` stand for: the parameters of one optimizer, in the
    order in which their modules first ran."""

    optimizer: str = ""
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The class of the module that owns each, such as Linear; empty if it is not known."""
    sizes: tuple[int, ...] = ()
    dimensions: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    """The parameter group of each."""
    depths: tuple[int, ...] = ()
    """When the owner ran in the forward pass, counted in modules from 0; -1 if it was not seen to run."""


class TensorGauges(Event, tag="tensor-gauges", frozen=True):
    """One sampled step, parameter by parameter, in the order of `TensorsNamed`; None where nothing could be measured.

    Norms of gradients are exact in sampled windows and wherever that is cheap; the rest is estimated from up to 4,096
    elements of each tensor, in blocks.
    """

    ABSENT: ClassVar[str] = "no weight was measured"

    optimizer: str = ""
    grad_norm: tuple[float | None, ...] = ()
    grad_max: tuple[float | None, ...] = ()
    grad_zero: tuple[float | None, ...] = ()
    """The share of gradient elements that are exactly 0."""
    grad_nonfinite: tuple[float | None, ...] = ()
    """The share of gradient elements that are NaN or infinite; empty unless some may be."""
    weight_norm: tuple[float | None, ...] = ()
    update_ratio: tuple[float | None, ...] = ()
    """Norm of what the step changed, as a share of the weight's norm before it."""
    unmoved: tuple[float | None, ...] = ()
    """Where some weights are 16 bits wide: the share of elements, among those with a gradient, that the step left
    exactly as they were."""


class LayersRan(Event, tag="layers-ran", frozen=True):
    """The modules of a training forward pass in the order they ran, and how large their outputs were."""

    ABSENT: ClassVar[str] = "no layer was measured"

    model: str = ""
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    rms: tuple[float | None, ...] = ()
    """Root mean square of each output."""


class LayersUnused(Event, tag="layers-unused", frozen=True):
    """The layers of a model with trainable parameters of their own that no watched forward pass has called so far,
    neither with gradients nor without. Recorded again when that changes."""

    model: str = ""
    names: tuple[str, ...] = ()


class AxisGuessed(Event, tag="axis-guessed", frozen=True):
    """A softmax was called without `dim`, so torch chose the axis; recorded once per place."""

    function: str = "softmax"
    shape: tuple[int, ...] = ()
    axis: int = 1


class Activations(Event, tag="activations", frozen=True):
    """What activation functions returned, modules and functions alike, in the order they ran. Rests on samples."""

    ABSENT: ClassVar[str] = "no activation was measured"

    names: tuple[str, ...] = ()
    """The module, or for a function the module before it, as in `relu after fc1`."""
    kinds: tuple[str, ...] = ()
    """relu, tanh, sigmoid, ..."""
    zero: tuple[float | None, ...] = ()
    """The share of outputs that are 0."""
    dead: tuple[float | None, ...] = ()
    """The share of units that were 0 for every input looked at, over the last ten sampled steps."""
    saturated: tuple[float | None, ...] = ()
    """The share of outputs of a tanh or sigmoid within 2 % of an end of its range."""
    inputs: int = 0
    """How many inputs of each unit were looked at in this step; `dead` rests on those of ten."""


class Histograms(Event, tag="histograms", frozen=True):
    """How the sizes of values are distributed: counts of |x| by powers of two, from samples.

    Bin 0 counts zeros, bin i values in [2^(lowest + i - 1), 2^(lowest + i)); the ends take what lies beyond.
    """

    ABSENT: ClassVar[str] = "no distribution was measured"

    of: str = "weights"
    """`weights`, `gradients` or `activations`."""
    optimizer: str = ""
    lowest: int = -40
    counts: tuple[tuple[int, ...], ...] = ()
    """Per tensor, in the order of `TensorsNamed`, or of the `Activations` of the same step."""


class FrozenMoved(Event, tag="frozen-moved", frozen=True):
    """What has requires_grad=False and yet changed: `parameters` in a step of the optimizer that holds them, or the
    running `statistics` of normalisation layers whose own parameters are frozen and stayed as they were."""

    what: str = "parameters"
    optimizer: str = ""
    model: str = ""
    names: tuple[str, ...] = ()
    """The first 20 of them: parameters, or normalisation layers."""
    count: int = 0
    change: float | None = None
    """Norm of the change as a share of the norm before it: in one step, or since `since`."""
    since: int = 0
    """The step at which they were first looked at."""


class WeightsWritten(Event, tag="weights-written", frozen=True):
    """Something other than the optimizer wrote weights that it holds, between its steps. Counted from the start."""

    ABSENT: ClassVar[str] = "weights were changed by their optimizer only"

    optimizer: str = ""
    times: int = 0
    gap: int = 0
    """Steps between two such times, median."""
    after: tuple[int, ...] = ()
    """The last steps after which it happened."""
    undone: float | None = None
    """Of the way that the weights had come since the time before, the share that was taken back; median."""
    by_loading: int = 0
    """How many of them were calls of `load_state_dict`."""


class LoadedLost(Event, tag="loaded-lost", frozen=True):
    """An optimizer takes its first step, and weights that were loaded are no longer there. `place` is the load."""

    ABSENT: ClassVar[str] = "weights that were loaded were still there at the first step"

    optimizer: str = ""
    model: str = ""
    tensors: int = 0
    """Weights that were looked at, and are held by the optimizer."""
    changed: int = 0
    alike: float | None = None
    """The correlation between those that were loaded and those that are trained."""
