"""Loops that would train something else than they say, refused in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from unstuck.events.torch_errors import TorchError
from unstuck.gradients.errors import MisuseError
from unstuck.gradients.seal import Seal

FAILED = "backward() failed in this window: call discard() to drop it before you go on."
NO_EPOCH = (
    "accumulate={} needs to know where an epoch ends, so that its last window does not leak into the next: "
    "loop over manager.batches(loader)."
)
LEFT_OPEN = (
    "The epoch before was left with {} micro-steps that were not stepped: "
    "call finish() to step them or discard() to drop them before the next epoch."
)
NESTED = "A loop over batches() of this manager is still running: end it, or call discard(), before the next one."
UNSTEPPED = "step() is missing: every backward() in a loop over batches() needs one."
NO_BACKWARD = "step() needs a backward() through this manager since the last step()."
NO_GRADIENT = "No parameter of the optimizer has a gradient: the loss does not depend on any of them."
UNFINISHED = "finish() comes after step(): call discard() to drop a micro-step that was not finished."
NOT_EXCHANGED = (
    "The ranks have not exchanged the gradients of this unfinished window, so it cannot be stepped: call discard()."
)
MID_MICRO_STEP = "call state_dict() after step(), not between backward() and step()."
FSDP_WINDOW = "FSDP keeps the gradients of an open window to itself: save after a full window."


def check_loss(loss: Tensor) -> None:
    """A loss is one number that still knows how it was computed."""
    if not isinstance(loss, Tensor):
        raise MisuseError(f"backward() needs the loss as a tensor, and was given a {type(loss).__name__}.")
    if loss.numel() != 1:
        raise MisuseError(
            f"backward() needs one number, and the loss has the shape {[*loss.shape]}: take its mean or sum."
        )
    if not loss.requires_grad:
        raise MisuseError(
            "The loss is cut off from the parameters (no_grad(), detach() or item() on the way), so it has no gradient."
        )


def check_no_strays(parameters: Sequence[Tensor]) -> None:
    """A window begins without gradients."""
    if all([parameter.grad is None for parameter in parameters]):  # noqa: C419 (a list is faster, and this is every step)
        return
    strays = sum(parameter.grad is not None for parameter in parameters)
    raise MisuseError(
        f"{strays} parameters already have a gradient that did not come through this manager "
        "(loss.backward() by hand?): call discard() to drop it, or manager.backward(loss) instead."
    )


def check_untouched(seal: Seal | None) -> None:
    """What backward left is what the step uses."""
    broken = seal.broken_by() if seal else None
    if broken:
        raise MisuseError(
            f"The gradients of an open window were {broken}: leave that to the manager (clip=, scaler=, noise=), "
            "and call discard() to drop the window."
        )


def check_schedule(schedulers: Sequence[LRScheduler], expected: Sequence[int] | None) -> None:
    """A scheduler the manager has is stepped by the manager alone."""
    for scheduler, before in zip(schedulers, expected or (), strict=False):
        if scheduler.last_epoch > before:
            raise MisuseError(
                f"{type(scheduler).__name__} was stepped by hand: the manager steps it after each optimizer step."
            )


def explained(error: RuntimeError) -> MisuseError | None:
    """An error of torch that means a misplaced call, in plain words; None for all others. Torch gives no sign but
    the text."""
    if TorchError.SECOND_BACKWARD.is_in(str(error)):
        return MisuseError(
            "This loss was used before: each backward() needs a loss of its own, computed after the last step()."
        )
    if TorchError.CHANGED_IN_PLACE.is_in(str(error)):
        return MisuseError(
            "Something the loss was computed from has changed since, as the weights do in step(): "
            f"call backward() before it. ({str(error).splitlines()[0]})"
        )
    if TorchError.UNSCALED_TWICE.is_in(str(error)):
        return MisuseError(
            "The gradients were unscaled by hand: leave that to the manager, and call discard() to drop them."
        )
    return None
