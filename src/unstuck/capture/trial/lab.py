"""What the interventions of one process share: changes to torch that can be undone, and the count of steps."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unstuck.capture.torch_hooks import hooks

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
ChangeCall = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Arguments]
ChangeOutput = Callable[[nn.Module, Any], Any]


class Lab:
    """Interventions register here what they want to happen; `undo` puts everything back."""

    def __init__(self) -> None:
        self.steps = 0
        """How many windows have ended."""
        self.notes: dict[str, Any] = {}
        """What the experiment should know: which way was taken, how well it worked."""
        self.stage = ""
        """Where the program runs in a copy of the directory tree, if it does."""
        self.inputs_differ = False
        """Are models given other inputs on purpose? Then data inside of them are left as they are."""
        self.when_step_ends: list[Callable[[], None]] = []
        self.has_enough = False
        """Has an intervention seen what it wanted? Then the trial ends with this step."""
        self.when_trial_ends: list[Callable[[], None]] = []
        """What to find out at the end, if there is time for that."""
        self._undo = contextlib.ExitStack()
        self._calls: list[ChangeCall] = []
        self._outputs: list[ChangeOutput] = []
        self._loss_calls: list[ChangeCall] = []
        self._depth = 0

    def undo(self) -> None:
        """Put everything back."""
        self._undo.close()

    def when_undone(self, action: Callable[[], object]) -> None:
        """Do this, too, when everything is put back."""
        self._undo.callback(action)

    def step_ended(self) -> None:
        """A window is over."""
        self.steps += 1
        for action in self.when_step_ends:
            action()

    def trial_ended(self) -> None:
        """The program has ended, or has taken its steps."""
        for action in self.when_trial_ends:
            action()

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by what `make` makes of it, if it is there."""
        original = owner.__dict__.get(name)
        original = getattr(owner, name, None) if original is None else original
        if original is None:
            return
        made = make(original)
        if isinstance(made, FunctionType):
            functools.update_wrapper(made, original)  # torch tells its functions apart by their names
        self._undo.callback(hooks.replace(owner, name, made))

    def before_steps(self, action: Callable[[Optimizer], None]) -> None:
        """Do something before each step of an optimizer."""
        self._undo.callback(hooks.before_steps(action))

    def after_steps(self, action: Callable[[Optimizer], None]) -> None:
        """Do something after each step of an optimizer."""
        self._undo.callback(hooks.after_steps(action))

    @property
    def is_inside_module(self) -> bool:
        """Is a module being called?"""
        return self._depth > 0

    def change_calls(self, change: ChangeCall) -> None:
        """Change what the outermost modules with parameters are called with: the models, not their layers."""
        self._listen()
        self._calls.append(change)

    def change_outputs(self, change: ChangeOutput) -> None:
        """Change what the outermost modules with parameters return."""
        self._listen()
        self._outputs.append(change)

    def change_losses(self, change: ChangeCall) -> None:
        """Change what modules without parameters, such as losses, are called with outside of models."""
        self._listen()
        self._loss_calls.append(change)

    def _listen(self) -> None:
        if not self._calls and not self._outputs and not self._loss_calls:
            self.wrap(nn.Module, "__call__", self._called)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Models called meanwhile are called by us, and with nothing changed."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            outermost, has_weights = self._depth == 0, is_model(module)
            if outermost:
                for change in self._calls if has_weights else self._loss_calls:
                    args, kwargs = change(module, args, kwargs)
            self._depth += 1
            try:
                output = original(module, *args, **kwargs)
            finally:
                self._depth -= 1
            for change_output in self._outputs if outermost and has_weights else ():
                output = change_output(module, output)
            return output

        return call


def is_model(module: nn.Module) -> bool:
    """Has it parameters? A loss is a module too."""
    return next(module.parameters(), None) is not None


def is_data(value: Any) -> bool:
    """A tensor that no gradient flows through: data, not what a model computed from it."""
    return isinstance(value, torch.Tensor) and not value.requires_grad


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same containers with other tensors in them: lists, tuples, named tuples, dicts and what is like them."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict) and type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return _of_other_kind(value, change)


def _of_other_kind(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A copy of an object such as a BatchEncoding, an OrderedDict or a batch class of the user's."""
    import copy

    if isinstance(value, str | bytes | int | float | bool | type(None)):
        return value
    try:
        other = copy.copy(value)
    except Exception:
        return value
    if hasattr(other, "keys") and hasattr(other, "__setitem__"):
        with contextlib.suppress(Exception):
            other = copy.deepcopy(value)
            for key in list(other.keys()):
                other[key] = map_tensors(other[key], change)
    elif hasattr(other, "__dict__"):
        for name, item in vars(other).items():
            if isinstance(item, torch.Tensor):
                setattr(other, name, change(item))
    return other


def copied(value: Any) -> Any:
    """A copy that a loop may change without harm."""
    return map_tensors(value, lambda tensor: tensor.detach().clone() if not tensor.requires_grad else tensor)
