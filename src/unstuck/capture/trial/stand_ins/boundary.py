"""The places where a training loop can be cut: what its model is given and returns, and what its loss compares.

A loss belongs to a call of a model if what it compares with a target is the output of that call, number for number,
perhaps in another shape or behind a softmax. Losses between outputs, such as contrastive ones, belong to none.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.detect.comparisons import LARGEST as LARGEST_ANSWER, Answer, comparison_in
from unstuck.capture.detect.graph import Token, is_see_through, nodes_from, operation, saved, saved_list
from unstuck.capture.measure.tensors import is_plain
from unstuck.capture.observers.losses import NAMES as LOSSES
from unstuck.capture.preview.predicting import prediction
from unstuck.capture.trial.changed_inputs import TARGETS, names_of_arguments
from unstuck.capture.trial.lab import Arguments, Lab
from unstuck.capture.trial.stand_ins.fitting import Fit, Kind, Score, fit

NOT_READ = ("mask", "length", "lens", "edge", "ptr", "cache")
"""Parts of the names of arguments that say how to read the others."""
ONE_TO_ONE = frozenset(
    {"Softmax", "LogSoftmax", "Sigmoid", "LogSigmoid", "Tanh", "Relu", "Clamp", "ClampMin", "ClampMax", "Log", "Exp"}
    | {"Softplus", "Elu", "LeakyRelu", "Gelu", "Mul", "Div", "Add", "Sub", "Rsub", "Neg", "Pow", "Sqrt", "Abs"}
    | {"View", "UnsafeView", "Reshape", "ReshapeAlias", "ViewAs", "Squeeze", "Unsqueeze", "ToCopy", "T", "Transpose"}
    | {"Permute", "Slice", "Select", "Clone", "Contiguous", "Expand", "Alias"}
)
"""Operations that make one number of one number, or hand some on."""
DEEPEST = 16
MOST_NODES = 200
_KEY = "unstuck.output"
_PARAMETERS = {name: tuple(inspect.signature(getattr(F, name)).parameters) for name in LOSSES}


class Call:
    """One call of a model in training."""

    def __init__(self, module: nn.Module, inputs: list[tuple[str, Tensor]], data: Any) -> None:
        self.module = module
        self.inputs = inputs
        """Tensors that it was given, by name, without targets and masks."""
        self.data = data
        """What made them, if we did."""
        self.output: Tensor | None = None
        self.is_partial = False
        """Does the model return more than its output, which a loss may use too?"""
        self.answer: Answer | None = None
        self.token = Token()


class Compared:
    """A target, next to what a model returned for it."""

    def __init__(self, call: Call, loss: str, source: Tensor, target: Tensor, ignored: int, inside: bool) -> None:
        self.call, self.loss, self.source, self.target, self.ignored = call, loss, source, target, ignored
        self.inside = inside
        """Does the model compute the loss itself?"""
        self.is_written = False
        """Is the loss a formula? Then its target cannot be exchanged."""

    def fit(self, whole: bool = False) -> Fit | None:
        """How what the loss was given fits its target. `whole`: rather what the model returned, before a softmax say,
        where that has classes."""
        given = fit(self.source, self.target, self.ignored, self.loss == "binary_cross_entropy")
        if not whole or self.call.output is None or (given is not None and given.kind is Kind.NUMBERS):
            return given
        return fit(self.call.output, self.target, self.ignored) or given


Named = list[tuple[str, Any]]


class Boundary:
    """One for each lab. Whoever wants to exchange something adds a function to the list of its place."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.inputs: list[Callable[[nn.Module, Named], tuple[Named, Any]]] = []
        """Give a model other inputs; the second of what is returned becomes `Call.data`."""
        self.outputs: list[Callable[[Call, Tensor], Tensor]] = []
        """Return something else in its place."""
        self.targets: list[Callable[[Compared], Tensor | None]] = []
        """Compare with something else; None: with what it was."""
        self.compared: list[Callable[[Compared], None]] = []
        """Called with all that is compared."""
        self.losses: list[Callable[[Compared], Tensor | None]] = []
        """Call backward on something else; None: on what it was."""
        self.rows: Callable[[Compared, Fit], Tensor | None] = lambda compared, found: None
        """Which rows count in the score."""
        self.counts: Callable[[Compared], bool] = lambda compared: True
        """Does it count in the score?"""
        self.scores_whole = False
        """Are outputs scored as the model returns them, and not as the loss is given them?"""
        self.score = Score()
        self._open: Call | None = None
        self._calls: list[Call] = []
        self._latest: Compared | None = None
        self._is_ours = False
        self.seen = self.matched = self.written = 0
        """Losses of torch in training, those that belong to a call of a model, and formulas that do."""
        self.own_loss = False
        """Does the model return its loss?"""
        lab.change_calls(self._begins)
        lab.change_outputs(self._ends)
        for name in LOSSES:
            lab.wrap(F, name, functools.partial(self._comparing, name))
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._backward)
        lab.when_step_ends.append(self._step_ended)

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """What is called meanwhile is called by us."""
        before, self._is_ours = self._is_ours, True
        try:
            with self._lab.aside():
                yield
        finally:
            self._is_ours = before

    def _begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        self._open = None
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        if self._is_ours or not trains:
            return args, kwargs
        names = names_of_arguments(module)
        named: Named = [(names[i] if i < len(names) else "", value) for i, value in enumerate(args)]
        named += list(kwargs.items())
        data = None
        for change in self.inputs:
            named, data = change(module, named)
        self._open = Call(module, read_tensors(named), data)
        values = [value for _, value in named]
        return tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))

    def _ends(self, module: nn.Module, output: Any) -> Any:
        call, self._open = self._open, None
        if call is None or call.module is not module:
            return output
        tensors = [output] if isinstance(output, Tensor) else _tensors(output)
        if any(tensor.dim() == 0 and tensor.requires_grad for tensor in tensors):
            self.own_loss = True
            return output
        tensor = prediction(output)
        if tensor is None:
            return output
        call.is_partial = sum(other.requires_grad for other in tensors) > 1
        made = tensor
        for change in self.outputs:
            made = change(call, made)
        if made.requires_grad:
            made = made.view_as(made)  # a node of its own, to be known by
            node: Any = made.grad_fn
            node.metadata[_KEY] = call.token
            call.answer = Answer(made) if made.numel() <= LARGEST_ANSWER and is_plain(made) else None
        call.output = made
        self._calls = [*self._calls[-31:], call]
        return _with(output, tensor, made)

    def _comparing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(_PARAMETERS[name], args, strict=False)) | kwargs
            source, target = given.get("input"), given.get("target")
            if not isinstance(source, Tensor) or not isinstance(target, Tensor) or self._is_ours:
                return original(*args, **kwargs)
            if not torch.is_grad_enabled() or not source.requires_grad or target.requires_grad:
                return original(*args, **kwargs)
            self.seen += 1
            inside = self._open is not None
            call = self._open if inside else self._behind(source)
            if call is None:
                return original(*args, **kwargs)
            if inside:
                for change in self.outputs:
                    source = change(call, source)
                call.output = source
            compared = Compared(call, name, source, target, int(given.get("ignore_index", -100)), inside)
            self._take(compared)
            given |= {"input": source, "target": compared.target}
            return original(**given)

        return loss

    def _take(self, compared: Compared) -> None:
        self.matched += 1
        self.written += compared.is_written
        for change in () if compared.is_written else self.targets:
            other = change(compared)
            compared.target = compared.target if other is None else other
        for listen in self.compared:
            listen(compared)
        self._latest = compared
        found = compared.fit(self.scores_whole) if self.counts(compared) else None
        if found is not None:
            self.score.add(found, self.rows(compared, found))

    def _behind(self, tensor: Tensor) -> Call | None:
        """The call that has returned these numbers."""
        node: Any = tensor.grad_fn
        for _ in range(DEEPEST):
            if node is None:
                return None
            token = node.metadata.get(_KEY)
            if token is not None:
                return next((call for call in self._calls if call.token is token), None)
            children = [child for child, _ in node.next_functions if child is not None]
            if len(children) != 1 or not (operation(node) in ONE_TO_ONE or is_see_through(node)):
                return None
            node = children[0]
        return None

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_ours or not isinstance(loss, Tensor) or loss.grad_fn is None:
                return original(loss, *args, **kwargs)
            if self._latest is None:
                self._read(loss)
            ours = None
            for change in self.losses:
                if self._latest is not None:
                    with self.ours():
                        ours = change(self._latest)
            self._latest, self._is_ours = None, True  # the method calls the function
            try:
                return original(loss if ours is None else ours, *args, **kwargs)
            finally:
                self._is_ours = False

        return backward

    def _read(self, loss: Tensor) -> None:
        """A loss that is written out: its graph shows what it compares."""
        for call in reversed(self._calls):
            if call.output is None or call.answer is None:
                continue
            with torch.no_grad():
                found = comparison_in(loss.grad_fn, call.answer)
            target = found.target if found is not None else _picked_classes(loss.grad_fn, call.output)
            if target is not None:
                compared = Compared(call, "", call.output, target, -100, False)
                compared.is_written = True
                self._take(compared)
                return

    def _step_ended(self) -> None:
        self._calls, self._latest, self._open = [], None, None
        self._lab.notes["answers"] = self.score.summary()


def _picked_classes(root: Any, output: Tensor) -> Tensor | None:
    """The classes that a formula picks from the rows of an output, if it picks one from each."""
    if output.dim() != 2 or output.shape[1] < 2:
        return None
    for node in nodes_from(root, MOST_NODES):
        if operation(node) not in ("Index", "Gather") or not output.numel():
            continue
        index = saved(node, "index") if operation(node) == "Gather" else None
        indices = saved_list(node, "indices") if index is None else []
        if len(indices) == 2 and indices[0] is not None and indices[0].numel() == len(output):
            in_order = torch.equal(indices[0].reshape(-1).cpu(), torch.arange(len(output)))
            index = indices[1] if in_order else None
        fits = index is not None and index.numel() == len(output) and index.dtype is torch.int64
        if fits and index is not None and int(index.min()) >= 0 and int(index.max()) < output.shape[1]:
            return index.reshape(-1)
    return None


_BOUNDARIES: WeakKeyDictionary[Lab, Boundary] = WeakKeyDictionary()


def boundary_of(lab: Lab) -> Boundary:
    """The one of this lab."""
    if lab not in _BOUNDARIES:
        _BOUNDARIES[lab] = Boundary(lab)
    return _BOUNDARIES[lab]


def read_tensors(named: Named) -> list[tuple[str, Tensor]]:
    """The tensors among arguments that a model reads: no targets, no masks, nothing that says how to read others."""
    found: list[tuple[str, Tensor]] = []
    for name, value in named:
        if isinstance(value, dict):
            found += read_tensors([(str(key), item) for key, item in value.items()])
        elif isinstance(value, list | tuple):
            found += read_tensors([(name, item) for item in value])
        elif isinstance(value, Tensor) and is_read(name, value):
            found.append((name, value))
    return found


def is_read(name: str, value: Tensor) -> bool:
    """Is this argument an input, by its name and type?"""
    named = not TARGETS.search(name) and not any(word in name.lower() for word in NOT_READ)
    return named and value.dim() > 0 and value.dtype is not torch.bool and not value.is_sparse and value.numel() > 0


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    items: Any = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _with(output: Any, old: Tensor, new: Tensor) -> Any:
    """The same with one tensor exchanged."""
    if output is old:
        return new
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_with(item, old, new) for item in output))
    if isinstance(output, list | tuple):
        return type(output)(_with(item, old, new) for item in output)
    if isinstance(output, dict):
        for key in [key for key, value in output.items() if value is old]:
            output[key] = new
    elif getattr(output, "logits", None) is old:
        output.logits = new
    return output
