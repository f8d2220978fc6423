"""Finds the first NaN or infinity of a run, by the order of execution, and says where it came from.

Every window leaves a `Trail`: inputs of the models, outputs of their modules, the loss and the gradients. It is
read only when the loss or a gradient is not finite, so a mask of -inf in a healthy model stays unmentioned. No tensor
and no module is kept alive by it.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.detect import graph
from unstuck.capture.detect.graph import Break, first_break
from unstuck.capture.measure.tensors import (
    MOST_TENSORS,
    Slot,
    finite_range,
    flaw,
    is_finite,
    is_plain,
    may_measure,
    norm,
    norms,
    reading,
    tensors_in,
)
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import Gauges, NonFinite, Place

LONGEST = 4096


class _Passed(NamedTuple):
    """A tensor as it was at one moment; `norm` if it was measured then."""

    tensor: weakref.ref[Tensor]
    version: int
    norm: Tensor | None = None

    def is_finite(self) -> bool | None:
        """None if it is gone, was changed since, or is infinite as a mask is on purpose."""
        tensor = self.tensor()
        if tensor is not None and _version(tensor) == self.version:
            with reading():
                if is_finite(tensor):
                    return True
                return False if bool((torch.isnan(tensor) | torch.isposinf(tensor)).any()) else None
        return True if self.norm is not None and math.isfinite(float(self.norm)) else None


class Output(NamedTuple):
    """What a module returned: a measured norm, or a weak reference where measuring was not worth its time."""

    module: weakref.ref[nn.Module]
    place: Place | None
    norm: Tensor | None
    tensor: weakref.ref[Tensor]
    version: int = -1
    size: int = 0
    inputs: tuple[_Passed, ...] | None = None
    """What went into the module; None if that is not known."""

    def state(self) -> str:
        """`finite`, `nan`, `inf`, or empty if the tensor is gone."""
        if self.norm is not None:
            value = float(self.norm)
            return "finite" if math.isfinite(value) else "nan" if math.isnan(value) else "inf"
        tensor = self.tensor()
        if tensor is None:
            return ""
        return "finite" if is_finite(tensor) else flaw(tensor)

    def inputs_finite(self) -> bool | None:
        """Was what went into the module finite? None if that is not known."""
        found = [passed.is_finite() for passed in self.inputs or ()]
        if False in found:
            return False
        return True if found and None not in found else None


class Trail:
    """What one window left behind."""

    def __init__(self) -> None:
        self.inputs: list[tuple[weakref.ref[nn.Module], Place | None, weakref.ref[Tensor]]] = []
        self.outputs: list[Output] = []
        self.complete = True
        """Was every output of every module measured?"""
        self.loss: float | Slot | None = None
        self.loss_place: Place | None = None
        self.root: graph.Node = None
        self.gradients: tuple[list[Tensor], Tensor] | None = None
        self.gradient_norm: float | Slot | None = None
        self.step_place: Place | None = None
        self.step = 0
        self._by_tensor: dict[int, Output] = {}

    def add(self, module: nn.Module, place: Place | None, arguments: Any, output: Any) -> None:
        """Measure what a module returned, and note what it was given."""
        outputs = tensors_in(output)
        self.complete = self.complete and 0 < len(outputs) < MOST_TENSORS
        reference = weakref.ref(module)
        inputs = self._passed(tensors_in(arguments, depth=3))
        for tensor in outputs:
            # No weak reference may stay on a parameter: torch refuses to swap such tensors.
            if not isinstance(tensor, nn.Parameter):
                known = self._known(tensor)
                size = known.norm if known is not None else norm(tensor)
                found = Output(reference, place, size, weakref.ref(tensor), _version(tensor), tensor.numel(), inputs)
                self.outputs.append(found)
                self._by_tensor[id(tensor)] = found

    def _known(self, tensor: Tensor) -> Output | None:
        """The same tensor as a module inside returned it, not measured again."""
        known = self._by_tensor.get(id(tensor))
        same = known is not None and known.tensor() is tensor and known.version == _version(tensor)
        return known if same else None

    def all_finite(self) -> bool:
        """Were the outputs of all modules measured, and finite?"""
        return self.complete and bool(self.outputs) and all(output.state() == "finite" for output in self.outputs)

    def first_broken(self) -> tuple[Output, str] | None:
        """The first module whose output is broken. Infinity that finite outputs follow was meant to be there."""
        infinite: tuple[Output, str] | None = None
        for output in self.outputs:
            state = output.state()
            if state == "nan":
                return infinite or (output, state)
            if state == "inf":
                infinite = infinite or (output, state)
            elif state == "finite":
                infinite = None
        return infinite

    def _passed(self, tensors: Sequence[Tensor]) -> tuple[_Passed, ...] | None:
        if len(tensors) >= MOST_TENSORS or any(isinstance(tensor, nn.Parameter) for tensor in tensors):
            return None
        found = []
        for tensor in tensors:
            known = self._known(tensor)
            found.append(_Passed(weakref.ref(tensor), _version(tensor), known.norm if known is not None else None))
        return tuple(found)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


_MOST_NAMES = 20
_MOST_OPTIMIZERS = 64
"""A program may build one for every task."""


class Inspector(Observer):
    """Judges each window, until the first non-finite value has been recorded."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._trail = Trail()
        self._awaiting: Trail | None = None
        self._done = False
        self._last_step: Place | None = None
        self.gradients_unseen = False
        """Were the gradients of the last step not looked at?"""
        self._at_first: deque[tuple[list[int], Tensor]] = deque(maxlen=_MOST_OPTIMIZERS)
        """Identities and norms of the parameters that each optimizer held at its first step."""
        self._glanced: weakref.ref[Tensor] | None = None
        """The last loss between sampled windows."""
        self.loss_name = "loss"

    def took(self, module: nn.Module, place: Place | None, arguments: Any) -> None:
        """A model was called with these arguments."""
        if self._done or len(self._trail.inputs) >= LONGEST:
            return
        for tensor in tensors_in(arguments, depth=3):
            # No weak reference may stay on a parameter: torch refuses to swap such tensors.
            if not isinstance(tensor, nn.Parameter):
                self._trail.inputs.append((weakref.ref(module), place, weakref.ref(tensor)))

    def measure(self, module: nn.Module, place: Place | None, arguments: Any, output: Any) -> None:
        """A module ran in a sampled window."""
        if self._done or len(self._trail.outputs) >= LONGEST or not may_measure():
            self.missed()
            return
        self._trail.add(module, place, arguments, output)

    @property
    def outputs(self) -> list[Output]:
        """What the modules of this window returned so far."""
        return self._trail.outputs

    def missed(self) -> None:
        """A module ran and was not looked at."""
        self._trail.complete = False

    def first_step(self, parameters: Sequence[Tensor]) -> None:
        """An optimizer is about to take its first step with these."""
        plain = [parameter for parameter in parameters if is_plain(parameter)]
        sizes = norms(plain) if may_measure() and not self._done else None
        if sizes is not None:
            self._at_first.append(([id(parameter) for parameter in plain], sizes))

    def remember(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """A module ran between sampled windows; what the first one took counts as the model's input."""
        outputs = self._trail.outputs
        self.missed()
        if self._done or type(output) is not Tensor or len(outputs) >= LONGEST or not is_plain(output):
            return
        if not outputs:
            self.took(module, None, arguments)
        outputs.append(Output(weakref.ref(module), None, None, weakref.ref(output)))

    def loss_seen(self, loss: Tensor, value: Tensor, place: Place | None) -> float | Slot | None:
        """A backward begins on `loss`, whose true value (before any scaling) is `value`."""
        if not is_plain(value) or value.numel() != 1 or not may_measure():
            return None
        number: float | Slot = self._watch.scalars.later(value)
        trail = self._trail
        trail.loss, trail.loss_place, trail.root, trail.step = (
            number,
            place,
            loss.grad_fn,
            self._watch.window.steps,
        )
        if not self._done and isinstance(number, float) and not math.isfinite(number):
            self._report_loss(trail, number)
        return number

    def glance_at_loss(self, loss: Tensor) -> float | Slot | None:
        """A backward begins between sampled windows: what matters is only whether the loss is still finite."""
        if type(loss) is Tensor and loss.numel() == 1 and self._watch.scalars.is_immediate(loss) and may_measure():
            value = loss.item()
            if type(value) is float and math.isfinite(value):
                self._glanced = weakref.ref(loss)
                return value
        return self.loss_seen(loss, loss, None)

    def forget_graph(self) -> None:
        """The user keeps the graph for more, or its backward failed: holding it would keep its tensors in memory."""
        self._trail.root = self._glanced = None

    def gradients_seen(
        self,
        parameters: list[Tensor],
        gradients: Sequence[Tensor],
        each: Tensor,
        total: float | Slot,
        place: Place | None,
    ) -> None:
        """An optimizer is about to use these gradients; `each` holds their norms."""
        trail = self._trail
        loss = self._glanced() if self._glanced is not None else None
        if trail.root is None and loss is not None:
            trail.root = loss.grad_fn
        trail.gradients, trail.gradient_norm, trail.step_place = (parameters, each), total, place
        trail.step = self._watch.window.steps
        # Squares of large finite numbers overflow, so a norm alone does not convict.
        alarming = not self._done and isinstance(total, float) and not math.isfinite(total)
        if alarming and not all(is_finite(gradient) for gradient in gradients):
            self._report_gradients(trail, place or self._watch.places.here())

    def stepped(self, parameters: Sequence[Tensor], place: Place | None) -> None:
        """An optimizer has updated these parameters; looked at in sampled windows."""
        self._last_step = place or self._last_step
        if self._done or not self._watch.window.is_survey or not may_measure():
            return
        plain = [parameter for parameter in parameters if is_plain(parameter)]
        sizes = norms(plain)
        if sizes is None or not self._watch.scalars.is_immediate(sizes) or bool(torch.isfinite(sizes).all()):
            return
        self._report_parameters(self._newly_broken(plain), self._watch.window.steps, place)

    def window_began(self, ended: Ended) -> None:
        """Begin a new trail; one with numbers still on their way is judged when they have arrived."""
        self._begin_trail()

    def _begin_trail(self) -> None:
        awaited, self._awaiting = self._awaiting, None
        if awaited is not None and not self._done:
            self._judge_late(awaited)
        self._glanced = None
        late = isinstance(self._trail.loss, Slot) or isinstance(self._trail.gradient_norm, Slot)
        self._awaiting = self._trail if late else None
        self._trail = Trail()

    def window_rested(self, step: int, optimizer: Optimizer, defer: Callable[[Gauges], None] | None) -> None:
        """The trail of a window that went well can be used again."""
        trail = self._trail
        if trail.outputs or trail.inputs or trail.loss is not None or trail.gradients or self._awaiting is not None:
            self._begin_trail()

    def all_arrived(self) -> None:
        """Judge the last two trails."""
        self._begin_trail()
        self._begin_trail()

    def _judge_late(self, trail: Trail) -> None:
        for number, report in (
            (trail.loss, self._report_loss),
            (trail.gradient_norm, self._report_late_gradients),
        ):
            value = number.value if isinstance(number, Slot) else number
            if value is not None and not math.isfinite(value) and not self._done:
                report(trail, value)

    def _report_loss(self, trail: Trail, value: float) -> None:
        if trail.step == self._watch.window.steps and self._parameters_are_broken(trail):
            return
        if self._report_input(trail) or self._report_activation(trail) or self._report_break(trail):
            return
        suspects, low, high = _explain(trail.root)
        self._tell(
            trail,
            what="loss",
            name=self.loss_name,
            value=_flaw_of(value),
            place=trail.loss_place or self._watch.places.here(),
            low=low,
            high=high,
            suspects=suspects,
            inputs_finite=trail.all_finite() or None,
        )

    def _report_late_gradients(self, trail: Trail, value: float) -> None:
        self._report_gradients(trail, trail.step_place)

    def _report_gradients(self, trail: Trail, place: Place | None) -> None:
        if self._report_input(trail) or self._report_activation(trail):
            return
        assert trail.gradients is not None
        parameters, each = trail.gradients
        sizes = each.tolist()
        # Backward runs from the loss down, so the last of the broken ones in the model's order broke first.
        broken = [p for p, size in zip(parameters, sizes, strict=True) if not math.isfinite(size)][::-1]
        healthy = [p for p, size in zip(parameters, sizes, strict=True) if math.isfinite(size)]
        flaws = [size for size in sizes if not math.isfinite(size)]
        names = self._names(broken)
        self._tell(
            trail,
            what="gradient",
            name=names[0],
            value="nan" if any(math.isnan(size) for size in flaws) else "inf",
            place=place,
            suspects=graph.risky_above(trail.root, broken, healthy) if trail.root is not None else (),
            also=names[1:_MOST_NAMES],
        )

    def _parameters_are_broken(self, trail: Trail) -> bool:
        everything = [p for model in self._watch.objects.models() for _, p in model.parameters() if is_plain(p)]
        before = trail.step == 0
        broken = self._nan(everything) if before else self._newly_broken(everything)
        if not broken:
            return False
        before_first = next((place for _, place, _ in trail.inputs if place), trail.loss_place)
        root = trail.root if self.gradients_unseen and not before else None
        step = trail.step if before else trail.step - 1  # the last update that was made
        self._report_parameters(broken, step, self._last_step or before_first, before, root)
        return True

    def _report_parameters(
        self, broken: list[Tensor], step: int, place: Place | None, before: bool = False, root: graph.Node = None
    ) -> None:
        """`root` is the end of a graph like that of the last backward, whose gradients may have been the origin."""
        if not broken:
            return
        for model in self._watch.objects.models():
            self._watch.objects.learn_names(model)
        names = self._names(broken)
        self._trail.step = step
        self._tell(
            self._trail,
            what="parameter",
            name=names[0],
            value=flaw(broken[0]),
            place=place,
            also=names[1:_MOST_NAMES],
            before_training=before,
            suspects=self._suspects_behind(root, broken) if root is not None else (),
            gradients_unseen=root is not None,
        )

    def _suspects_behind(self, root: graph.Node, broken: list[Tensor]) -> tuple[str, ...]:
        """Operations whose derivative may have been the origin: the graph is that of the step after."""
        known = {id(parameter) for parameter in broken}
        everything = [p for model in self._watch.objects.models() for _, p in model.parameters()]
        return graph.risky_above(root, broken[::-1], [p for p in everything if id(p) not in known])

    def _newly_broken(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Without those that were so before their first step: a parameter may hold -inf on purpose."""
        broken = [parameter for parameter in parameters if not is_finite(parameter)]
        first = {key: size for keys, sizes in self._at_first for key, size in zip(keys, sizes.tolist(), strict=True)}
        return [p for p in broken if math.isfinite(size := first.get(id(p), 0.0)) or _flaw_of(size) != flaw(p)]

    def _nan(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return [parameter for parameter in parameters if not is_finite(parameter) and flaw(parameter) == "nan"]

    def _report_input(self, trail: Trail) -> bool:
        for module, place, reference in trail.inputs:
            tensor = reference()
            if tensor is None or not _is_broken_input(tensor):
                continue
            low, high = finite_range(tensor) or (None, None)
            owner = module()
            model = self._watch.model_around(owner) if owner is not None else None
            self._tell(
                trail,
                what="input",
                name=model.label if model else "",
                value=flaw(tensor),
                place=place or (model.place if model else None),
                low=low,
                high=high,
                inputs_finite=False,
            )
            return True
        return False

    def _report_activation(self, trail: Trail) -> bool:
        first = trail.first_broken()
        if first is None:
            return False
        output, state = first
        module = output.module()
        suspects, low, high = _explain(trail.root, proven_only=True)
        self._tell(
            trail,
            what="activation",
            name=self._module_name(module) if module is not None else "",
            kind=type(module).__name__ if module is not None else "",
            value=state,
            place=output.place or self._watch.objects.order.place(module),
            inputs_finite=output.inputs_finite(),
            low=low,
            high=high,
            suspects=suspects,
        )
        return True

    def _report_break(self, trail: Trail) -> bool:
        """Between sampled windows no module was looked at; what autograd saved still shows between which layers."""
        found = first_break(trail.root) if not trail.outputs and trail.root is not None else None
        if found is None:
            return False
        objects = self._watch.objects
        owner = objects.owner(found.after) if found.after is not None else None
        until = objects.owner(found.until) if found.until is not None else None
        if owner is not None:
            self._report_activation_between(trail, found, owner, until[0] if until else "the loss")
        elif found.after is None and until is not None:
            model = self._watch.model_around(until[1])
            low, high = found.span or (None, None)
            self._tell(trail, what="input", name=model.label, value=found.value, place=model.place, low=low, high=high)
        return owner is not None or (found.after is None and until is not None)

    def _report_activation_between(self, trail: Trail, found: Break, owner: tuple[str, nn.Module], until: str) -> None:
        suspects, low, high = _explain(trail.root, proven_only=True)
        name, module = owner
        self._tell(
            trail,
            what="activation",
            name=name,
            kind=type(module).__name__,
            value=found.value,
            place=self._watch.objects.order.place(module),
            low=low,
            high=high,
            suspects=suspects,
            until=until,
        )

    def _module_name(self, wanted: nn.Module) -> str:
        for model in self._watch.objects.models():
            root = model.module
            for name, module in root.named_modules() if root is not None else ():
                if module is wanted:
                    return name or model.label
        return ""

    def _names(self, parameters: Sequence[Tensor]) -> tuple[str, ...]:
        return tuple(self._watch.objects.name(parameter) or "a parameter" for parameter in parameters)

    def _tell(self, trail: Trail, **facts: Any) -> None:
        self._done = True
        self._watch.window.flush()
        self._watch.tell(NonFinite(step=trail.step, **facts))


def _explain(root: graph.Node, *, proven_only: bool = False) -> tuple[tuple[str, ...], float | None, float | None]:
    if root is None:
        return (), None, None
    culprit = graph.culprit_below(root)
    if culprit is not None:
        return (culprit.name,), culprit.low, culprit.high
    return (() if proven_only else graph.risky_operations(root)), None, None


def _is_broken_input(tensor: Tensor) -> bool:
    """Is it NaN or infinite somewhere? A mask of -inf is given on purpose: it has at most two other values."""
    if bool((torch.isnan(tensor) | torch.isposinf(tensor)).any()):
        return True
    if not bool(torch.isneginf(tensor).any()):
        return False
    finite = tensor[torch.isfinite(tensor)]
    return bool(finite.numel()) and bool(((finite != finite.min()) & (finite != finite.max())).any())


def _flaw_of(value: float) -> str:
    return "nan" if math.isnan(value) else "inf"
