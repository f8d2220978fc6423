"""The arguments of a loss in the form that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from unstuck.events.losses import CLASS_LOSSES
from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor

    from unstuck.capture.trial.lab import Lab

SMALLEST = 1e-12
"""The least probability whose logarithm is taken."""
ROUNDING = 1e-2
"""How far above 1 a probability may lie in half precision."""
COMPARING = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)


class Form(StrEnum):
    """What is done to the arguments."""

    UNDO_SOFTMAX = "undo-softmax"
    UNDO_SIGMOID = "undo-sigmoid"
    LOG_SOFTMAX = "log-softmax"
    LOG = "log"
    SAME_SHAPE = "same-shape"
    SWAPPED = "swapped"
    CLASSES_IN_PLACE = "classes-in-place"


WORDS = {
    Form.UNDO_SOFTMAX: "logits instead of probabilities",
    Form.UNDO_SIGMOID: "logits instead of probabilities",
    Form.LOG_SOFTMAX: "log-probabilities instead of raw scores",
    Form.LOG: "log-probabilities instead of probabilities",
    Form.SAME_SHAPE: "the target in the shape of the prediction",
    Form.SWAPPED: "the arguments of the loss swapped",
    Form.CLASSES_IN_PLACE: "the scores with their classes on the second axis",
}
FUNCTIONS = {
    Form.UNDO_SOFTMAX: ("cross_entropy",),
    Form.UNDO_SIGMOID: ("binary_cross_entropy_with_logits",),
    Form.LOG_SOFTMAX: ("nll_loss",),
    Form.LOG: ("nll_loss",),
    Form.SAME_SHAPE: COMPARING,
    Form.SWAPPED: (*COMPARING, "kl_div"),
    Form.CLASSES_IN_PLACE: CLASS_LOSSES,
}
"""Which losses take such arguments."""


class GiveLoss(Intervention, frozen=True):
    """Give losses their arguments in the form they take: undo a softmax or sigmoid, apply a missing one, or give the
    target the shape of the prediction."""

    form: Form
    function: str = ""
    """Only this function of torch.nn.functional; empty: all that take such arguments."""

    @property
    def words(self) -> str:
        return f"the loss given {WORDS[self.form]}"

    def apply(self, lab: Lab) -> None:
        import torch
        import torch.nn.functional as F
        from torch import Tensor

        def giving(original: Callable[..., Any]) -> Callable[..., Any]:
            def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
                if isinstance(input, Tensor) and isinstance(target, Tensor):
                    input, target = _changed(self.form, input, target)
                return original(input, target, *args, **kwargs)

            return loss

        for name in (self.function,) if self.function else FUNCTIONS[self.form]:
            lab.wrap(F, name, giving)
        if self.form is Form.CLASSES_IN_PLACE:
            # A loss that is written out takes a softmax of its scores.
            for owner in (F, torch, Tensor):
                for name in ("softmax", "log_softmax"):
                    lab.wrap(owner, name, _softmax_in_place)


def _softmax_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    def softmax(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        axis = args[0] if args else kwargs.get("dim")
        is_flat = input.dim() == 2 and axis in (1, -1)  # not the softmax of an attention
        given = _changed(Form.CLASSES_IN_PLACE, input, input)[0] if is_flat else input
        return original(given, *args, **kwargs)

    return softmax


def _changed(form: Form, given: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    import torch
    import torch.nn.functional as F

    from unstuck.capture.detect.graph import lost_classes
    from unstuck.capture.observers.losses import class_axis

    match form:
        case Form.UNDO_SOFTMAX if _are_probabilities(given):
            return given.clamp_min(SMALLEST).log(), target
        case Form.UNDO_SIGMOID if _are_probabilities(given):
            return torch.logit(given, eps=1e-7), target
        case Form.LOG_SOFTMAX:
            return F.log_softmax(given, class_axis(given)), target
        case Form.LOG:
            return given.clamp_min(SMALLEST).log(), target
        case Form.SAME_SHAPE if given.numel() == target.numel():
            return given, target.reshape(given.shape)
        case Form.CLASSES_IN_PLACE if (found := lost_classes(given)) and math.prod(found[0]) == given.numel():
            shape, axis = found
            rows = given.reshape(shape).movedim(axis, -1)
            return rows.reshape(len(given), *given.shape[2:], given.shape[1]).movedim(-1, 1), target
        case Form.SWAPPED if target.requires_grad and not given.requires_grad:
            return target, given
    return given, target


def _are_probabilities(given: Tensor) -> bool:
    """Can they be? Another loss of the same kind may rightly be given scores."""
    return bool(((given >= 0) & (given <= 1 + ROUNDING)).all())
