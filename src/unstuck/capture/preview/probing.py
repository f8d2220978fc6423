"""What a model predicts for one fixed batch while it trains, asked so that the run does not notice."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unstuck.capture.preview.predicting import MOST_EXAMPLES, Compared, prediction, reader_for
from unstuck.capture.torch_hooks.patches import unwatched
from unstuck.capture.trial.lab import Lab, copied, map_tensors
from unstuck.check.restore import same_pass
from unstuck.events.preview import Dynamics

MOST_SNAPSHOTS = 64
EVERY = 20
SEED = 20_262
"""Dropout leaves out the same values at each look."""
SHARE = 0.05
"""Of the time of the run, what looking may take."""
GRACE = 0.2
"""Seconds that it may take in any case."""


class Probe:
    """A batch that is given to the model now and then, always the same one."""

    def __init__(self, lab: Lab, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._lab = lab
        self._module = module
        self._call = _first_examples(copied((args, kwargs)))
        self._autocast = _autocast()
        self._began = time.perf_counter()
        self._spent = self._last = 0.0
        self._looks: list[tuple[int, Tensor]] = []
        self._every = EVERY
        self.trouble = ""
        """Why it is not asked any more."""

    def look(self, step: int) -> bool:
        """Ask the model now, if it is time to; whether it was asked."""
        if self.trouble or not self._is_time(step):
            return False
        began = time.perf_counter()
        try:
            with self._unnoticed():
                args, kwargs = copied(self._call)
                output = prediction(self._module(*args, **kwargs))
                if output is None:
                    self.trouble = "the output of the model is no tensor"
                else:
                    self._looks.append((step, output.detach().float().cpu()))
        except Exception as error:
            self.trouble = f"the model cannot be called with its first batch again ({type(error).__name__})"
        if len(self._looks) > 1:  # the first one warms up what the run would have had to
            self._last = time.perf_counter() - began
            self._spent += self._last
        self._thin_out()
        return not self.trouble

    def dynamics(self, compared: Compared | None) -> Dynamics | None:
        """What the looks showed, beside what the loss compares it with."""
        if not self._looks or self._looks[0][1].dim() == 0:
            return None
        first = self._looks[0][1]
        reader = reader_for(first, compared)
        looks = [(step, output) for step, output in self._looks if output.shape == first.shape]
        return Dynamics(
            kind=reader.kind,
            classes=reader.classes,
            targets=reader.targets,
            snapshots=tuple(reader.snapshot(step, output) for step, output in looks),
            training_mode=self._module.training,
        )

    def _is_time(self, step: int) -> bool:
        early = step < EVERY and step & (step - 1) == 0
        if not early and step % self._every:
            return False
        elapsed = time.perf_counter() - self._began
        return self._spent + self._last <= SHARE * elapsed + GRACE or not self._looks

    def _thin_out(self) -> None:
        """Keep every second of the later looks once there are too many."""
        if len(self._looks) >= MOST_SNAPSHOTS:
            self._every *= 2
            self._looks = [(step, kept) for step, kept in self._looks if step < EVERY or step % self._every == 0]

    @contextlib.contextmanager
    def _unnoticed(self) -> Iterator[None]:
        """Random numbers, buffers, gradients, modes and the record stay as they were."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(unwatched())
            stack.enter_context(self._lab.aside())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(same_pass(self._module))
            stack.enter_context(_same_generators(self._module))
            stack.enter_context(torch.no_grad())
            stack.enter_context(self._autocast())
            torch.default_generator.manual_seed(SEED)
            yield


def can_be_probed(module: nn.Module) -> bool:
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
    """Generators that the model holds draw afterwards what they would have drawn."""
    held = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Generator)]
    states = [generator.get_state() for generator in held]
    try:
        yield
    finally:
        for generator, state in zip(held, states, strict=True):
            generator.set_state(state)
