"""Observes the gradient scaler of mixed precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.observers.steps import Steps
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.events import ScalerUpdate, Unscale


class Scaling(Observer):
    """Follows `GradScaler`: the steps that go through it, those it leaves out, and its scale."""

    def __init__(self, watch: Watch, steps: Steps) -> None:
        self._watch = watch
        self._steps = steps
        self._recorded = 0

    def attach(self, patches: Patches) -> None:
        """Observe the class: every scaler of torch is one."""
        scaler = torch.amp.GradScaler
        patches.around(scaler, "step", self.step_before, self.step_after)
        patches.around(scaler, "unscale_", self.unscale_before, self.unscale_after)
        patches.around(scaler, "update", self.update_before, self.update_after)

    def step_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optimizer | None:
        """`scaler.step(optimizer)` is called."""
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if not isinstance(optimizer, Optimizer) or not self._watch.is_listening():
            return None
        self._steps.enter_scaler()
        return optimizer

    def step_after(self, optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
        """It returned; if no step hook was called it left the step out."""
        self._steps.in_scaler = False
        if error is None and not self._steps.scaler_stepped:
            self._steps.skipped(optimizer)

    def unscale_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Unscale | None:
        """`scaler.unscale_(optimizer)` is called: by the user, or by `scaler.step`, which does not count."""
        watch = self._watch
        optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
        if self._steps.in_scaler or not watch.window.sampled or not watch.is_listening():
            return None
        if not isinstance(optimizer, Optimizer):
            return None
        label = watch.objects.optimizer(optimizer)
        return Unscale(step=watch.window.steps, place=watch.places.here(), optimizer=label)

    def unscale_after(self, event: Unscale, result: Any, error: BaseException | None) -> None:
        """It returned."""
        if error is None:
            self._watch.emit(event)

    def update_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`scaler.update()` is called. Between sampled windows it is recorded when the skipped steps have doubled."""
        wanted = self._watch.window.sampled or self._steps.skips >= 2 * self._recorded > 0
        return args[0] if wanted and self._watch.is_listening() else None

    def update_after(self, scaler: Any, result: Any, error: BaseException | None) -> None:
        """It returned; a scaler that is switched off has no scale."""
        watch, scale = self._watch, getattr(scaler, "_scale", None)
        if error is not None or not isinstance(scale, Tensor):
            return
        self._recorded = self._steps.skips
        event = ScalerUpdate(
            step=watch.window.steps,
            place=watch.places.here(),
            scale=watch.scalars.later(scale),
            skipped=self._steps.skips,
        )
        watch.tell(event)
