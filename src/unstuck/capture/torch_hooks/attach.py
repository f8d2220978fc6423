"""The one list of everything we put around torch."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler, optimizer as optimizers

from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.detect.saved import watch_hooks
from unstuck.capture.measure.tensors import reading
from unstuck.capture.observers.backwards import Backwards
from unstuck.capture.observers.forwards import Forwards, Modes
from unstuck.capture.observers.gradients import Clips, Reductions, Zeroing
from unstuck.capture.observers.loss_inputs import watch_loss
from unstuck.capture.observers.losses import NAMES, Losses
from unstuck.capture.observers.progress import Progress
from unstuck.capture.observers.scaling import Scaling
from unstuck.capture.observers.schedules import Schedulers
from unstuck.capture.observers.softmaxes import NAMES as SOFTMAXES, Softmaxes
from unstuck.capture.observers.states import Loads
from unstuck.capture.observers.steps import Steps
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.watch import Watch
from unstuck.gradients.manager import GradientManager

HOOK_SECONDS = 6e-6
"""What it takes to observe one call of a module."""
HOOK_BUDGET = 0.005
"""The share of a plain window that this may take."""
_CALLS = "Module._call_impl"


class Attachment:
    """All observers of one watch, attached to torch until `remove`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.patches = Patches(watch.guard)
        self._inspector = Inspector(watch)
        self._zeroing = Zeroing(watch)
        self._schedulers = Schedulers(watch)
        self._progress = Progress(watch)
        forwards = self._forwards = Forwards(watch, self._inspector)
        backwards = self._backwards = Backwards(watch, self._inspector, forwards, self._progress)
        steps = self._steps = Steps(watch, self._inspector, backwards)
        steps.wake = self._watch_steps_again
        try:
            watch_hooks(self.patches)
            self._watch_forwards(watch, forwards)
            self._watch_backward(backwards)
            self._progress.attach(self.patches)
            self._watch_optimizers(steps)
            self._watch_objects(watch)
            self._watch_gradients(watch)
            self._watch_scaler(Scaling(watch, steps), backwards)
            self._watch_schedulers()
        except BaseException:
            self._detach()
            raise
        self.patches.settled()

    def watch_loss(self, module: ModuleType, name: str) -> None:
        """Record what a loss of the user's own is given."""
        trouble = watch_loss(self.patches, self.watch, module, name)
        if trouble:
            self.watch.note(trouble)

    def remove(self) -> None:
        """Detach from torch and write what still waits."""
        self._detach()
        with reading():
            self.watch.guard.protect("the end of the run", self._finish)()

    def _detach(self) -> None:
        self.patches.remove()

    def _finish(self) -> None:
        self._schedulers.finish()
        self._backwards.tell_between()
        self._progress.finish()
        self._steps.finish()
        self.watch.finish()
        self._inspector.finish()
        self.watch.finish()

    def _watch_forwards(self, watch: Watch, forwards: Forwards) -> None:
        modes, losses, softmaxes = Modes(watch), Losses(watch, self._inspector), Softmaxes(watch)
        # Not by global hooks: with any of these, torch calls `forward` from other lines and in one frame more.
        self.patches.around(nn.Module, "_call_impl", forwards.begin, forwards.finish)
        watch.when_sampling_changes = self._switch_hooks
        self.patches.around(nn.Module, "train", modes.before, modes.after)
        for name in NAMES:
            self.patches.around(F, name, *losses.observer(name), skip=watch.is_resting)
        for name in SOFTMAXES:
            self.patches.around(F, name, *softmaxes.observer(name), skip=watch.is_resting)

    def _switch_hooks(self, sampled: bool) -> None:
        """Between sampled windows calls of modules are observed only if that is cheap, to find NaN faster.

        Where anything was compiled, nothing is changed: a compiler may have read the code of torch's functions.
        """
        if sampled:
            self.watch.flush()
        else:
            self._steps.pace()
            self.watch.carried.rest()
        if _has_compiled():
            self._watch_steps_again()
            return
        if sampled:
            self.patches.resume(_CALLS)
        elif self._forwards.calls * HOOK_SECONDS > HOOK_BUDGET * self.watch.clock.typical_seconds:
            self.patches.suspend(_CALLS)
        if self._steps.may_rest:
            self._steps.rest()
            self.patches.suspend("step-pre-hook")
        else:
            self._watch_steps_again()

    def _watch_steps_again(self) -> None:
        self._steps.resting = False
        self.patches.resume("step-pre-hook")

    def _watch_backward(self, backwards: Backwards) -> None:
        # `Tensor.backward` calls it by this name.
        inside = self.watch.is_inside_backward
        self.patches.around(torch.autograd, "backward", backwards.before, backwards.after, skip=inside)

    def _watch_optimizers(self, steps: Steps) -> None:
        self.patches.hook("step-pre-hook", optimizers.register_optimizer_step_pre_hook, steps.before)
        self.patches.hook("step-post-hook", optimizers.register_optimizer_step_post_hook, steps.after)
        building: set[int] = set()

        def init_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optimizer | None:
            building.add(id(args[0]))
            return args[0] if isinstance(args[0], Optimizer) else None

        def init_after(optimizer: Optimizer, result: Any, error: BaseException | None) -> None:
            building.discard(id(optimizer))
            self._watch_overrides(type(optimizer), Optimizer, "zero_grad", self._zeroing)
            steps.built(optimizer, result, error)

        def group_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optimizer | None:
            return None if id(args[0]) in building else args[0]

        self.patches.around(Optimizer, "__init__", init_before, init_after)
        self.patches.around(Optimizer, "add_param_group", group_before, steps.built)

    def _watch_objects(self, watch: Watch) -> None:
        loads = Loads(watch)
        self.patches.around(nn.Module, "load_state_dict", loads.before, loads.after)

    def _watch_gradients(self, watch: Watch) -> None:
        zeroing, clips = self._zeroing, Clips(watch)
        self.patches.around(Optimizer, "zero_grad", zeroing.before, zeroing.after, skip=zeroing.is_idle)
        self.patches.around(nn.Module, "zero_grad", zeroing.before, zeroing.after, skip=zeroing.is_idle)
        for owner in (nn.utils, clip_grad):
            self.patches.around(owner, "clip_grad_norm_", clips.before_norm, clips.after, clips.prepare)
            self.patches.around(owner, "clip_grad_value_", clips.before_value, clips.after, clips.prepare)
        self.patches.around(GradientManager, "_clip", clips.manager_before, clips.manager_after)
        if torch.distributed.is_available():
            reductions = Reductions(watch)
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                self.patches.around(module, "all_reduce", reductions.before, reductions.after)

    def _watch_scaler(self, scaling: Scaling, backwards: Backwards) -> None:
        scaler = torch.amp.GradScaler
        self.patches.around(scaler, "step", scaling.step_before, scaling.step_after)
        self.patches.around(scaler, "unscale_", scaling.unscale_before, scaling.unscale_after)
        self.patches.around(scaler, "update", scaling.update_before, scaling.update_after)
        self.patches.around(scaler, "scale", lambda args, kwargs: args[1:] or None, backwards.scaled)

    def _watch_schedulers(self) -> None:
        base = lr_scheduler.LRScheduler
        self.patches.around(base, "step", self._schedulers.before, self._schedulers.after)
        self.patches.around(base, "__init__", self._scheduler_begins, self._schedulers.built)
        for kind in (
            lr_scheduler.ReduceLROnPlateau,
            lr_scheduler.SequentialLR,
            lr_scheduler.ChainedScheduler,
        ):
            self._watch_overrides(kind, base, "step", self._schedulers)
            self.patches.around(kind, "__init__", self._scheduler_begins, self._schedulers.built)

    def _scheduler_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind, schedulers = type(args[0]), self._schedulers
        self._watch_overrides(kind, lr_scheduler.LRScheduler, "step", schedulers)
        for owner in kind.__mro__:
            if owner.__module__ == lr_scheduler.__name__:
                self.patches.around(owner, "get_lr", schedulers.rate_before, schedulers.rate_after)
        return args[0]

    def _watch_overrides(self, kind: type, base: type, method: str, observer: Zeroing | Schedulers) -> None:
        """Watch a method also where subclasses of torch's class replace it."""
        for owner in kind.__mro__:
            if owner is base:
                break
            self.patches.around(owner, method, observer.before, observer.after)


def _has_compiled() -> bool:
    """Has torch.compile been at work in this process?"""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(dynamo.counters.get(kind) for kind in ("frames", "stats"))
