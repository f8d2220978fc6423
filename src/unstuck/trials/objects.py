"""The same experiments on live objects: each trial trains in this process and leaves everything as it was."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.detect.divergence import Divergence
from unstuck.capture.live_objects.arguments import (
    as_list,
    as_watched,
    call,
    described,
    must_be_module,
    must_be_tensor,
    must_have_shapes,
    split,
)
from unstuck.capture.live_objects.restore import Values, untouched
from unstuck.capture.live_objects.sources import Sources
from unstuck.capture.session import recording_to
from unstuck.capture.trial.lab import Lab, copied, map_tensors
from unstuck.capture.trial.seeding import SHIFT
from unstuck.events import Event
from unstuck.findings.curve import Curve
from unstuck.findings.results import Status
from unstuck.interventions import Intervention, intervene
from unstuck.interventions.data import FreezeBatch
from unstuck.interventions.edit_source import EditSource
from unstuck.interventions.learning_rate import SweepRate
from unstuck.interventions.seeds import Seed
from unstuck.interventions.stop_after import StopAfter
from unstuck.interventions.take_steps import TakeSteps
from unstuck.record import Record
from unstuck.trials.context import Context, Tell
from unstuck.trials.runner import Outcome, Progress, Variant
from unstuck.trials.trial import StopReason

NOWHERE = Path(os.devnull) / "objects"
"""Trials on objects leave no folder."""
EMPTY = "the loader gave no batch"
LossFunction = Callable[[Any, Any], Any] | None


class ObjectContext(Context):
    """Trains `model` on what `loader` gives, as `check` calls them: `loss_fn(model(inputs), target)`.

    With `loss_fn=None` the model is given the whole batch and its output holds the loss, as those of transformers do.
    Seeds change the order of the data, dropout and noise, never the weights, which are what they are.
    """

    live = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        optimizer: Optimizer | Iterable[Optimizer],
        loader: Iterable[Any],
        seconds: float = 60.0,
        tell: Tell = lambda text: None,
    ) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ValueError(f"seconds must be a number above 0, not {seconds!r}.")
        self.objects = Objects(model, loss_fn, optimizer, loader)
        super().__init__(ObjectRunner(self.objects), seconds, tell)

    def first_batch(self) -> Any:
        """What the loader gives first; None if it gives nothing. It will give it again."""
        with self.objects.untouched():
            return next(self.objects.batches(), None)


class Objects:
    """The parts of a training loop."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        optimizer: Optimizer | Iterable[Optimizer],
        loader: Iterable[Any],
    ) -> None:
        must_be_module(model)
        must_have_shapes(model)
        if loss_fn is not None and not callable(loss_fn):
            raise TypeError(
                f"loss_fn must be a function of (output, target) or None, and this is {described(loss_fn)}."
            )
        self.model, self.loss_fn, self.loader = model, loss_fn, _can_be_repeated(loader)
        self.optimizers = as_list(optimizer)
        others = [each for each in self.optimizers if not isinstance(each, Optimizer)]
        if others or not self.optimizers:
            given = described(others[0] if others else optimizer)
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, and this is {given}.")
        self._wants_closure = [_wants_closure(each) for each in self.optimizers]
        self.models = [model, loss_fn] if isinstance(loss_fn, nn.Module) else [model]
        self.sources = Sources(loader, *self.models)

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """Undo everything that training inside the block does."""
        optimized = {id(p): p for each in self.optimizers for group in each.param_groups for p in group["params"]}
        tensors = [*optimized.values(), *(p for model in self.models for p in model.parameters())]
        gradients = [(tensor, tensor.grad) for tensor in tensors]
        with untouched(*self.models, optimizers=self.optimizers), self.sources.untouched():
            values = Values(optimized.values())
            for tensor in tensors:
                tensor.grad = None
            try:
                yield
            finally:
                values.restore()
                for tensor, gradient in gradients:
                    tensor.grad = gradient

    def batches(self) -> Iterator[Any]:
        """Pass after pass, copies on the device of the model. Ends at once if there are none."""
        device = next((parameter.device for parameter in self.model.parameters()), None)
        given = True
        while given:
            given = False
            for batch in self.loader:
                given = True
                yield map_tensors(batch, lambda tensor: tensor.to(device or tensor.device, copy=True))

    def loss(self, batch: Any) -> Tensor:
        """What to call backward() on."""
        batch = dict(batch) if isinstance(batch, Mapping) else batch
        if self.loss_fn is None:
            return _loss_in(call(self.model, batch))
        inputs, target = split(batch)
        loss: Tensor = as_watched(self.loss_fn)(call(self.model, inputs), target)
        must_be_tensor(loss)
        return loss

    def step(self, batch: Any) -> float:
        """One step of every optimizer; the loss before it."""
        losses: list[float] = []

        def closure() -> Any:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss(batch)
            torch.autograd.backward(loss)
            losses.append(float(loss.detach()))
            return loss

        if not all(self._wants_closure):
            closure()
        for optimizer, wants_closure in zip(self.optimizers, self._wants_closure, strict=True):
            optimizer.step(closure) if wants_closure else optimizer.step()
        return losses[0]


def _can_be_repeated(loader: Any) -> Iterable[Any]:
    if not isinstance(loader, Iterable):
        raise TypeError(f"loader must give batches, such as a DataLoader or a list, and this is {described(loader)}.")
    if hasattr(loader, "__next__"):
        raise ValueError(
            f"loader is {described(loader)} that can be gone through only once, and every trial needs the same "
            "batches: give the DataLoader itself, or a list of batches."
        )
    return loader


def _wants_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _loss_in(output: Any) -> Tensor:
    """The loss among what a model returned."""
    if isinstance(output, Mapping):
        output = output.get("loss")
    found = getattr(output, "loss", output)
    if isinstance(found, tuple | list):
        found = next((item for item in found if isinstance(item, Tensor) and item.dim() == 0), found)
    if isinstance(found, Tensor) and found.numel() == 1:
        return found
    raise TypeError(f"without loss_fn the model must return its loss, and it returned {described(output)}.")


class ObjectOutcome(Outcome, frozen=True, kw_only=True):
    """What a trial on objects showed; its record stays in memory."""

    events: tuple[Event, ...] = ()

    @property
    def output(self) -> str:
        """What it failed with."""
        return self.reason if self.status is Status.CRASHED else ""

    def record(self) -> Record:
        """Everything that was recorded."""
        return Record(self.folder, self.events)


class ObjectRunner:
    """Carries out one trial after another, in this process."""

    jobs = 1

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def run(
        self, variants: Sequence[Variant], seconds: float, progress: Progress, until: float = math.inf
    ) -> list[Outcome]:
        """Run them all, each for so many seconds at the most; after `until` each ends with its first step."""
        return [self._outcome(variant, seconds, until) for variant in variants]

    def _outcome(self, variant: Variant, seconds: float, until: float) -> Outcome:
        began = inside = time.monotonic()
        losses: list[float | None] = []
        events: list[Event] = []
        notes: dict[str, Any] = {}
        try:
            with self._objects.untouched(), _intervention(variant.changes, self._objects.sources) as lab:
                notes = lab.notes
                with recording_to(events.append, variant.every, watched="objects"):
                    inside = time.monotonic()
                    status, reason = self._train(lab, variant.changes, min(began + seconds, until), losses)
                lab.trial_ended()
        except Exception as error:
            status, reason = Status.CRASHED, f"{type(error).__name__}: {error}"
        now = time.monotonic()
        return ObjectOutcome(
            variant=variant,
            folder=NOWHERE,
            status=status,
            curve=Curve(tuple(range(len(losses))), tuple(losses)),
            seconds=now - began,
            reason=reason,
            training_seconds=now - inside,
            notes=notes,
            events=tuple(events),
        )

    def _train(
        self, lab: Lab, changes: Sequence[Intervention], deadline: float, losses: list[float | None]
    ) -> tuple[Status, str]:
        """Step until that was enough; how it ended and why."""
        limits = [change for change in changes if isinstance(change, StopAfter)]
        began = time.monotonic()
        sweeps = any(isinstance(change, SweepRate) for change in changes)
        divergence = Divergence()
        model = self._objects.model
        if not model.training:
            model.train()
        with torch.enable_grad():
            for batch in self._batches(lab, changes):
                loss = self._objects.step(batch)
                lab.step_ended()
                losses.append(loss if math.isfinite(loss) else None)
                divergence.follow(loss)
                if sweeps and (divergence.seen or not math.isfinite(loss)):
                    return Status.STOPPED, StopReason.DIVERGED
                if lab.has_enough or any(limit.is_reached(len(losses), time.monotonic() - began) for limit in limits):
                    return Status.STOPPED, StopReason.STEPS_TAKEN
                if time.monotonic() > deadline:
                    return Status.KILLED, StopReason.TIME_OVER
        return Status.FAILED, EMPTY

    def _batches(self, lab: Lab, changes: Sequence[Intervention]) -> Iterator[Any]:
        batches = self._objects.batches()
        if not any(isinstance(change, FreezeBatch) for change in changes):
            return batches
        lab.notes["loader"] = True
        first = next(batches, None)
        return iter(()) if first is None else iter(lambda: copied(first), None)


@contextlib.contextmanager
def _intervention(changes: Sequence[Intervention], sources: Sources) -> Iterator[Lab]:
    """Carries out the changes; some of them need a script."""
    for change in changes:
        if isinstance(change, EditSource | TakeSteps):
            raise ValueError(f"{type(change).__name__} changes a script, and these are objects")
        if isinstance(change, Seed) and change.number:
            sources.shift(SHIFT * change.number)
    lab = intervene(changes)
    try:
        yield lab
    finally:
        lab.undo()
