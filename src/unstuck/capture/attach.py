"""The one list of everything we put around torch."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as optimizers

from unstuck.capture.backwards import Backwards
from unstuck.capture.forwards import Forwards, Modes
from unstuck.capture.gradients import Clips, Zeroing
from unstuck.capture.loss_inputs import watch_loss
from unstuck.capture.losses import NAMES, Losses
from unstuck.capture.nonfinite import Inspector
from unstuck.capture.patches import Patches
from unstuck.capture.steps import Schedulers, Steps
from unstuck.capture.untrained import Untrained
from unstuck.capture.watch import Watch


class Attachment:
    """All observers of one watch, attached to torch until `remove`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.patches = Patches(watch.guard)
        self._forward_hook = -1
        self._inspector = Inspector(watch)
        self._zeroing = Zeroing(watch)
        self._schedulers = Schedulers(watch)
        forwards = Forwards(watch, self._inspector)
        backwards = Backwards(watch, self._inspector, forwards)
        steps = Steps(watch, self._inspector, backwards, Untrained(watch))
        try:
            self._watch_forwards(watch, forwards)
            self._watch_backward(backwards)
            self._watch_optimizers(steps)
            self._watch_gradients(watch)
            self._watch_scaler(steps, backwards)
            self._watch_schedulers()
        except BaseException:
            self._detach()
            raise

    def watch_loss(self, module: ModuleType, name: str) -> None:
        """Record what a loss of the user's own is given."""
        trouble = watch_loss(self.patches, self.watch, module, name)
        if trouble:
            self.watch.note(trouble)

    def remove(self) -> None:
        """Detach from torch and write what still waits."""
        self._detach()
        self.watch.guard.protect("the end of the run", self._finish)()

    def _detach(self) -> None:
        self.patches.remove()
        # The handle of a global hook forgets to remove this entry.
        getattr(modules, "_global_forward_hooks_with_kwargs", {}).pop(self._forward_hook, None)

    def _finish(self) -> None:
        self.watch.finish()
        self._inspector.finish()
        self.watch.finish()

    def _watch_forwards(self, watch: Watch, forwards: Forwards) -> None:
        modes, losses = Modes(watch), Losses(watch, self._inspector)
        register = modules.register_module_forward_hook
        options = {"always_call": True, "with_kwargs": True}
        known = inspect.signature(register).parameters
        self.patches.hook("forward-pre-hook", modules.register_module_forward_pre_hook, forwards.before)
        accepted = {name: value for name, value in options.items() if name in known}
        self._forward_hook = self.patches.hook("forward-hook", register, forwards.after, **accepted).id
        # A compiled module warns its user of global hooks, but ours are not the user's.
        self.patches.replace(modules, "_has_any_global_hook", _has_foreign_global_hook)
        self.patches.around(nn.Module, "train", modes.before, modes.after)
        for name in NAMES:
            self.patches.around(F, name, *losses.observer(name))

    def _watch_backward(self, backwards: Backwards) -> None:
        self.patches.around(torch.Tensor, "backward", backwards.before, backwards.after)
        self.patches.around(torch.autograd, "backward", backwards.before, backwards.after)

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

    def _watch_gradients(self, watch: Watch) -> None:
        zeroing, clips = self._zeroing, Clips(watch)
        self.patches.around(Optimizer, "zero_grad", zeroing.before, zeroing.after)
        self.patches.around(nn.Module, "zero_grad", zeroing.before, zeroing.after)
        for owner in (nn.utils, clip_grad):
            self.patches.around(owner, "clip_grad_norm_", clips.before_norm, clips.after, clips.prepare)
            self.patches.around(owner, "clip_grad_value_", clips.before_value, clips.after, clips.prepare)

    def _watch_scaler(self, steps: Steps, backwards: Backwards) -> None:
        scaler = torch.amp.GradScaler
        self.patches.around(scaler, "step", steps.scaler_step_before, steps.scaler_step_after)
        self.patches.around(scaler, "unscale_", steps.unscale_before, steps.unscale_after)
        self.patches.around(scaler, "scale", lambda args, kwargs: args[1:] or None, backwards.scaled)

    def _watch_schedulers(self) -> None:
        base = lr_scheduler.LRScheduler
        self.patches.around(base, "step", self._schedulers.before, self._schedulers.after)
        self.patches.around(base, "__init__", self._scheduler_is_built, lambda *_: None)
        for kind in (
            lr_scheduler.ReduceLROnPlateau,
            lr_scheduler.SequentialLR,
            lr_scheduler.ChainedScheduler,
        ):
            self._watch_overrides(kind, base, "step", self._schedulers)

    def _scheduler_is_built(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._watch_overrides(type(args[0]), lr_scheduler.LRScheduler, "step", self._schedulers)

    def _watch_overrides(self, kind: type, base: type, method: str, observer: Zeroing | Schedulers) -> None:
        """Watch a method also where subclasses of torch's class replace it."""
        for owner in kind.__mro__:
            if owner is base:
                break
            self.patches.around(owner, method, observer.before, observer.after)


def _has_foreign_global_hook() -> bool:
    """Torch's own question, not counting the two hooks of ours."""
    forward = len(modules._global_forward_pre_hooks) + len(modules._global_forward_hooks)
    return forward > 2 or bool(modules._global_backward_pre_hooks or modules._global_backward_hooks)
