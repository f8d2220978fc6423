"""What a model in a trial predicts for its first batch while it trains, asked so that the run does not notice."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unstuck.capture.guard import Guard
from unstuck.capture.live_objects.restore import same_pass
from unstuck.capture.measure.tensors import may_measure, reading
from unstuck.capture.preview.calls import Call, training_call
from unstuck.capture.preview.predicting import MOST_EXAMPLES, Reader, prediction, reader_for
from unstuck.capture.preview.repeated_batches import is_due
from unstuck.capture.torch_hooks.patches import unwatched
from unstuck.capture.trial.lab import Arguments, Lab, copied, is_data, map_tensors
from unstuck.events import Event, Predicted

MOST_CALLS = 3
"""Calls of models that are copied until it is known which one trains."""
MOST_COPIED = 1 << 26
"""Elements of a call; one with more is not copied."""
EVERY = 20
SEED = 20_262
"""Dropout leaves out the same values each time."""
SHARE = 0.05
"""Of the time of the run, what asking may take."""
GRACE = 0.2
"""Seconds that it may take in any case."""


class _Copy:
    """A call of a model that can be made again, and what the untrained model returned."""

    def __init__(self, module: nn.Module, arguments: Arguments) -> None:
        self.module = module
        self.arguments = arguments
        self.autocast = _autocast()
        self.call: Call | None = None
        """The same call as the watch knows it."""
        self.output: Tensor | None = None
        self.trouble = ""
        """Why the model cannot be asked any more."""


class FirstBatchProbe:
    """Gives a model its first training batch again and again, and records what it predicts."""

    def __init__(self, lab: Lab, record: Callable[[Event], object]) -> None:
        self._lab = lab
        self._record = record
        self._copies: list[_Copy] = []
        self._chosen: _Copy | None = None
        self._reader: Reader | None = None
        self._shape: torch.Size | None = None
        self._began = time.perf_counter()
        self._spent = self._last_took = 0.0
        self._asked = self._last_step = 0
        guard = Guard(lambda text: lab.notes.update(preview=text))
        copy = guard.protect("the first batch", self._copy)

        def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            if self._chosen is None and lab.steps == 0:
                copy(module, args, kwargs)
            return args, kwargs

        lab.change_calls(called)
        lab.when_step_ends.append(guard.protect("the predictions", self._step_ended))

    def is_first_batch(self, call: Call, module: nn.Module) -> None:
        """The call that begins now is looked at as the first batch of its model."""
        if self._copies and self._copies[-1].module is module and self._copies[-1].call is None:
            self._copies[-1].call = call

    def _copy(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a model is called for the first times."""
        if not torch.is_grad_enabled() or len(self._copies) >= MOST_CALLS or not may_measure():
            return
        sizes: list[int] = []
        map_tensors((args, kwargs), lambda tensor: sizes.append(tensor.numel()) if is_data(tensor) else None)
        if not sizes or sum(sizes) > MOST_COPIED or not _can_be_asked(module):
            return
        with reading():
            copy = _Copy(module, _first_examples(copied((args, kwargs))))
        self._copies.append(copy)
        self._ask(copy)

    def _step_ended(self) -> None:
        """Between two steps of the program."""
        if self._chosen is None:
            call = training_call([copy.call for copy in self._copies if copy.call is not None])
            self._chosen = next((copy for copy in self._copies if call is not None and copy.call is call), None)
            self._copies.clear()
            if self._chosen is not None:
                self._read(self._chosen, 0)
        step = self._lab.steps
        if self._chosen is not None and not self._chosen.trouble and self._is_time(step):
            self._ask(self._chosen)
            self._read(self._chosen, step)

    def _ask(self, copy: _Copy) -> None:
        began = time.perf_counter()
        copy.output = None
        try:
            with self._unnoticed(copy):
                args, kwargs = copied(copy.arguments)
                output = prediction(copy.module(*args, **kwargs))
                copy.output = output.detach().float().cpu() if output is not None else None
            copy.trouble = "" if copy.output is not None else "the model does not return a tensor"
        except Exception as error:
            copy.trouble = f"the model cannot be called with its first batch again ({type(error).__name__})"
        if self._asked:  # the first call warms up what the run would have had to
            self._last_took = time.perf_counter() - began
            self._spent += self._last_took
        self._asked += 1

    def _read(self, copy: _Copy, step: int) -> None:
        """Record what it predicted, or why it did not."""
        call, output = copy.call, copy.output
        if call is None:
            return
        if copy.trouble:
            self._record(Predicted(step=step, model=call.label, asked=True, trouble=copy.trouble))
        if output is None or output.dim() == 0 or (self._shape is not None and output.shape != self._shape):
            return
        self._shape = output.shape
        with reading():
            self._reader = self._reader or reader_for(output, call.compared)
            values = self._reader.values(output)
        self._record(
            Predicted(
                step=step,
                model=call.label,
                kind=self._reader.kind,
                values=values,
                targets=self._reader.targets,
                training_mode=copy.module.training,
                asked=True,
            )
        )
        self._last_step = step

    def _is_time(self, step: int) -> bool:
        early = step < EVERY and step & (step - 1) == 0
        if not early and (step % EVERY or not is_due(step, self._asked, self._last_step)):
            return False
        elapsed = time.perf_counter() - self._began
        return self._spent + self._last_took <= SHARE * elapsed + GRACE

    @contextlib.contextmanager
    def _unnoticed(self, copy: _Copy) -> Iterator[None]:
        """Random numbers, buffers, gradients, modes and the record stay as they were."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(unwatched())
            stack.enter_context(self._lab.aside())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(same_pass(copy.module))
            stack.enter_context(_same_generators(copy.module))
            stack.enter_context(torch.no_grad())
            stack.enter_context(copy.autocast())
            torch.default_generator.manual_seed(SEED)
            yield


def _can_be_asked(module: nn.Module) -> bool:
    """A module that makes its weights in its first call must make them itself."""
    return not any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers()))


def _first_examples(call: Any) -> Any:
    """The same call with at most so many examples, where it is clear what they are."""
    sizes: list[int] = []
    map_tensors(call, lambda tensor: sizes.append(len(tensor)) if tensor.dim() else None)
    if not sizes or min(sizes) != max(sizes) or sizes[0] <= MOST_EXAMPLES:
        return call
    return map_tensors(call, lambda tensor: tensor[:MOST_EXAMPLES] if tensor.dim() else tensor)


def _autocast() -> Any:
    """Makes the autocast that is in force now, again; without its cache, whose casts would have no gradient."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
            return lambda: torch.autocast(device, dtype=kind, cache_enabled=False)
    return contextlib.nullcontext


@contextlib.contextmanager
def _same_generators(module: nn.Module) -> Iterator[None]:
    """The generators inside a model draw afterwards what they would have drawn."""
    generators = [
        value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Generator)
    ]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
