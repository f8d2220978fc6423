"""GradientManager: everything between the loss and the updated weights, in the right order."""

from __future__ import annotations

import dataclasses
import math
import warnings
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from unstuck.gradients import misuse, others
from unstuck.gradients.batches import Batches, marked
from unstuck.gradients.clip import Clip, ClipNorm, ClipValue
from unstuck.gradients.errors import MisuseError, NonFiniteGradientError
from unstuck.gradients.held import Held, check_optimizers, check_schedulers
from unstuck.gradients.measure import Gradients
from unstuck.gradients.noise import Noise, add_noise
from unstuck.gradients.nonfinite import POLICIES, Policy, Snapshot, describe
from unstuck.gradients.ranks import Ranks
from unstuck.gradients.seal import Seal, shielded
from unstuck.gradients.step import Number, Step
from unstuck.gradients.window import Count, Reduction, Window

Batch = TypeVar("Batch")
MANY_SKIPS = 10


class GradientManager:
    """Accumulates, unscales, clips, steps and clears, so that a loop is `backward(loss)` and `step()`.

    manager = GradientManager(model, optimizer, accumulate=4, clip=1.0, scheduler=scheduler)
    for inputs, targets in manager.batches(loader):
        manager.backward(criterion(model(inputs), targets))
        manager.step()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        accumulate: int = 1,
        clip: float | Clip | ClipValue | None = None,
        reduction: Reduction = "mean",
        scaler: GradScaler | None = None,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        on_nonfinite: Policy = "raise",
        snapshot_every: int = 100,
        noise: Noise = 0.0,
        noise_seed: int = 0,
    ) -> None:
        """`clip=1.0` limits the norm of the whole gradient; see ClipNorm, ClipAdaptive and ClipValue for other ways."""
        _check_options(accumulate, clip, reduction, on_nonfinite, snapshot_every)
        self.model = model
        self.accumulate = accumulate
        self.optimizers = check_optimizers(optimizer)
        self.schedulers = check_schedulers(scheduler, self.optimizers)
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.clip = ClipNorm(clip) if isinstance(clip, int | float) else clip
        self.on_nonfinite = on_nonfinite
        self.noise, self.noise_seed = noise, noise_seed
        self.steps = self.skipped = self.rewinds = 0
        self.last: Step | None = None
        """The facts of the last full window."""
        self._held = Held(model, self.optimizers)
        self._ranks = Ranks(model)
        self._window = Window(accumulate, reduction, self._ranks.count, self._ranks.sum)
        self._snapshot = Snapshot(model, [*self.optimizers, *self.schedulers], snapshot_every)
        self._seal: Seal | None = None
        self._losses: list[Tensor] = []
        self._pending = self._failed = self._last_of_epoch = self._resumed = False
        self._skips_in_a_row = 0
        self._size: int | None = None
        self._walking: weakref.ref[Iterator[Any]] | None = None
        self._schedule: list[int] | None = None
        self.replaced: str | None = None
        """Why this manager is not to be used any more."""
        others.enter(self)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of its optimizers."""
        return self._held.parameters

    def batches(self, loader: Iterable[Batch]) -> Batches[Batch]:
        """The batches of one epoch: the last window is stepped however many of them it got."""
        return Batches(loader, self._epoch)

    def backward(self, loss: Tensor, count: Count | None = None, *, retain_graph: bool = False) -> None:
        """Add the gradients of a loss to the window; `count` is over how many examples or tokens the loss was taken.

        With counts the window's gradient is the mean over all its items, however unequally they are spread.
        """
        self._check_backward(loss)
        scaled = self._window.weigh(loss, count, self._size)
        self._losses.append(loss.detach())
        if self.scaler is not None:
            scaled = self.scaler.scale(scaled)
        self._failed = True
        try:
            if others.present():
                with shielded(others.parameters_of_others(self)):
                    scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
            else:
                scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if explanation := misuse.explained(error):
                raise explanation from error
            raise
        self._failed = False
        self._pending = True
        self._seal = Seal(self.parameters)

    def step(self) -> Step:
        """End a micro-step; when it fills the window, update the weights and clear the gradients."""
        if self._failed:
            raise MisuseError(misuse.FAILED)
        if not self._pending:
            raise MisuseError(misuse.NO_BACKWARD)
        self._pending = False
        self._window.close_micro_step()
        if self._window.micro_steps < self.accumulate and not self._last_of_epoch:
            return Step(index=self.steps, micro_steps=self._window.micro_steps)
        return self._close()

    def finish(self) -> Step:
        """Step what an epoch left early (a `break`) has accumulated, divided by what it really is."""
        if self._pending or self._failed:
            raise MisuseError(misuse.UNFINISHED)
        if not self._window.micro_steps:
            return Step(index=self.steps, micro_steps=0)
        if self._ranks.count > 1:
            raise MisuseError(misuse.NOT_EXCHANGED)
        return self._close()

    def discard(self) -> None:
        """Drop the open window with its gradients."""
        walk = self._walking() if self._walking else None
        if isinstance(walk, Generator):
            walk.close()
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on, also in the middle of a window; save model, optimizers and the rest as always."""
        if self._pending or self._failed:
            raise MisuseError(misuse.MID_MICRO_STEP)
        if self._window.micro_steps and self._ranks.sharded:
            raise MisuseError(misuse.FSDP_WINDOW)
        gradients = {
            name: None if parameter.grad is None else parameter.grad.detach().clone()
            for name, parameter in zip(self._held.names, self.parameters, strict=True)
        }
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "rewinds": self.rewinds,
            "window": self._window.state_dict(),
            "clip": self.clip.state_dict() if isinstance(self.clip, Clip) else {},
            "gradients": gradients if self._window.micro_steps else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; the next `batches()` continues an open window."""
        unknown = state["gradients"].keys() ^ set(self._held.names) if state["gradients"] else set()
        if unknown:
            raise ValueError(
                f"The saved window is of other parameters than this model's: {', '.join(sorted(unknown)[:3])}."
            )
        self._clear()
        self.steps, self.skipped, self.rewinds = state["steps"], state["skipped"], state["rewinds"]
        self._window.load_state_dict(state["window"])
        if isinstance(self.clip, Clip) and state["clip"]:
            self.clip.load_state_dict(state["clip"])
        self._schedule = None
        if state["gradients"]:
            for name, parameter in zip(self._held.names, self.parameters, strict=True):
                saved = state["gradients"][name]
                parameter.grad = None if saved is None else saved.clone()
            self._seal = Seal(self.parameters)
            self._resumed = True
            self._scale()  # a GradScaler takes its loaded scale into use when it is first asked to scale

    def _epoch(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        own: list[weakref.ref[Iterator[Any]]] = []
        walk = self._walk(loader, own)
        own.append(weakref.ref(walk))  # weak, so that a `break` ends the walk at once
        return walk

    def _walk(self, loader: Iterable[Batch], own: list[weakref.ref[Iterator[Any]]]) -> Iterator[Batch]:
        self._check_epoch()
        self._walking, self._resumed = own[0], False
        try:
            for batch, last, size in marked(loader, look_ahead=self.accumulate > 1):
                self._last_of_epoch, self._size = last, size
                if not self._ranks.exchange or last or self._window.micro_steps == self.accumulate - 1:
                    yield batch
                else:
                    with self._ranks.quiet():
                        yield batch
                if self._pending:
                    raise MisuseError(misuse.UNSTEPPED)
            if self._window.micro_steps:  # the last batch was passed over, or the loader ended before its length
                self.finish()
        finally:
            self._walking = None
            self._last_of_epoch, self._size = False, None

    def _close(self) -> Step:
        misuse.check_untouched(self._seal)
        if self.on_nonfinite == "rewind":
            self._snapshot.keep(self.steps)
        self._unscale()
        gradients = Gradients(self.parameters)
        if not gradients.parameters:
            raise MisuseError(misuse.NO_GRADIENT)
        factor = self._window.factor()
        if self.noise:
            gradients.multiply(factor)
            factor = 1.0
            add_noise(gradients, self.noise, self.noise_seed, self.steps)
        if self.clip is None and self.on_nonfinite == "ignore" and self.scaler is None:
            gradients.multiply(factor)
            return self._update(None, None)
        norms = gradients.norms()
        if isinstance(factor, Tensor) or factor != 1:
            norms = norms * factor
        total = _norm(norms)
        known = float(total) if self._may_read(total) else None
        if known is not None and not math.isfinite(known) and (self.on_nonfinite != "ignore" or self.scaler):
            return self._not_finite(gradients, norms, known)
        after = self._clip(gradients, factor, norms, total, known)
        return self._update(total if known is None else known, after)

    def _unscale(self) -> None:
        if self.scaler is None:
            return
        try:
            for optimizer in self._with_gradients():
                self.scaler.unscale_(optimizer)
        except RuntimeError as error:
            if explanation := misuse.explained(error):
                self.scaler.update(self.scaler.get_scale())  # forget that this window was unscaled: it will be dropped
                raise explanation from error
            raise

    def _may_read(self, total: Tensor) -> bool:
        """The one value that is fetched: policies need it, GradScaler fetches it anyway, and on the CPU it is free."""
        return self.on_nonfinite != "ignore" or self.scaler is not None or total.device.type == "cpu"

    def _clip(
        self, gradients: Gradients, factor: float | Tensor, norms: Tensor, total: Tensor, known: float | None
    ) -> Number:
        """Divide and clip in one pass over the gradients; the norm afterwards is returned."""
        if isinstance(self.clip, ClipValue):
            gradients.multiply(factor)
            gradients.clamp(self.clip.value)
            return _norm(gradients.norms())
        shorter = None
        if self.clip:
            shorter = self.clip.factor(norms, total, known, lambda: self._held.places(gradients.parameters))
        gradients.multiply(factor if shorter is None else shorter * factor)
        if shorter is None:
            return total if known is None else known
        return _norm(norms * shorter) if shorter.dim() else total * shorter

    def _update(self, norm: Number | None, norm_after: Number | None) -> Step:
        misuse.check_schedule(self.schedulers, self._schedule)
        facts = self._facts(norm, norm_after, updated=True)
        for optimizer in self.optimizers if self.scaler is None else self._with_gradients():
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        if self.scaler is not None:
            self.scaler.update()
        for scheduler in self.schedulers:
            scheduler.step()
        self._schedule = [scheduler.last_epoch for scheduler in self.schedulers]
        self.steps += 1
        self._skips_in_a_row = 0
        self._clear()
        self.last = facts
        return facts

    def _not_finite(self, gradients: Gradients, norms: Tensor, norm: float) -> Step:
        calibrating = False
        facts = self._facts(norm, norm, skipped=True)
        if self.scaler is not None:  # an overflow at a scale above 1 is how GradScaler finds its scale
            calibrating = self.scaler.get_scale() > 1
            self._back_off(self.scaler)
        message = describe(self.model, self._held.names_of(gradients.parameters), norms, self._losses)
        self._clear()
        self.skipped += 1
        self._skips_in_a_row += 1
        if not calibrating and self.on_nonfinite == "raise":
            raise NonFiniteGradientError(f"Step {self.steps + 1}: {message}")
        if not calibrating and self.on_nonfinite == "rewind":
            self.steps = self._snapshot.restore()
            self._schedule = None
            self.rewinds += 1
            facts = dataclasses.replace(facts, rewound=True)
        elif self._skips_in_a_row == MANY_SKIPS:
            warnings.warn(f"{MANY_SKIPS} steps in a row were skipped. {message}", UserWarning, stacklevel=4)
        self.last = facts
        return facts

    def _back_off(self, scaler: GradScaler) -> None:
        if self._ranks.sharded:  # a rank sees the overflow of its own shard only, and all must go to the same scale
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())
        else:
            scaler.update()

    def _facts(
        self, norm: Number | None, norm_after: Number | None, *, updated: bool = False, skipped: bool = False
    ) -> Step:
        return Step(
            index=self.steps + updated,
            micro_steps=self._window.micro_steps,
            updated=updated,
            skipped=skipped,
            lr=tuple(group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups),
            norm_=norm,
            norm_after_=norm_after,
            limit_=self.clip.limit if isinstance(self.clip, Clip) else None,
            scale_=self._scale(),
            items_=self._window.total if self._window.has_items else None,
        )

    def _scale(self) -> Number:
        """The scale as it is now, without waiting for the device."""
        if self.scaler is None:
            return 1.0
        return self.scaler.scale(torch.ones((), device=self.parameters[0].device))

    def _clear(self) -> None:
        self._held.clear(lambda: others.parameters_of_others(self))
        self._window.reset()
        self._losses.clear()
        self._seal = None
        self._pending = self._failed = self._resumed = False

    def _with_gradients(self) -> list[Optimizer]:
        return [
            optimizer
            for optimizer in self.optimizers
            if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
        ]

    def _check_backward(self, loss: Tensor) -> None:
        if self.replaced:
            raise MisuseError(self.replaced)
        if self._failed:
            raise MisuseError(misuse.FAILED)
        misuse.check_loss(loss)
        if self.accumulate > 1 and self._walking is None:
            raise MisuseError(misuse.NO_EPOCH.format(self.accumulate))
        if self._pending or self._window.micro_steps:
            misuse.check_untouched(self._seal)
        else:
            misuse.check_no_strays(self.parameters)

    def _check_epoch(self) -> None:
        if self.replaced:
            raise MisuseError(self.replaced)
        if self._walking is not None:
            raise MisuseError(misuse.NESTED)
        if (self._window.micro_steps or self._pending) and not self._resumed:
            raise MisuseError(misuse.LEFT_OPEN.format(self._window.micro_steps + self._pending))


def _check_options(accumulate: Any, clip: Any, reduction: str, on_nonfinite: str, snapshot_every: Any) -> None:
    for name, number in (("accumulate", accumulate), ("snapshot_every", snapshot_every)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is a whole number, 1 or more, not {number!r}.")
    if isinstance(clip, bool) or not isinstance(clip, int | float | Clip | ClipValue | None):
        raise ValueError(f"clip is a norm such as 1.0, or a ClipNorm, ClipAdaptive or ClipValue, not {clip!r}.")
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction says what your loss is, "mean" or "sum", not {reduction!r}.')
    if on_nonfinite not in POLICIES:
        raise ValueError(f"on_nonfinite is one of {', '.join(POLICIES)}, not {on_nonfinite!r}.")


def _norm(norms: Tensor) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(norms)
    return total
