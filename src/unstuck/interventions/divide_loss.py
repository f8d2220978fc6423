"""Another loss to back-propagate: smaller, or with the other sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor

    from unstuck.capture.trial.lab import Lab


class DivideLoss(Intervention, frozen=True):
    """Back-propagate the loss divided by a number. What the script prints of it stays the same."""

    by: float

    WORDS = "the loss divided by {0.by:.4g}"

    def apply(self, lab: Lab) -> None:
        import torch

        def dividing(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(loss: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
                share = torch.full_like(loss, 1 / self.by) if gradient is None else gradient / self.by
                return original(loss, share, *args, **kwargs)

            return backward

        lab.wrap(torch.Tensor, "backward", dividing)


class NegateLoss(Intervention, frozen=True):
    """Back-propagate the loss with the other sign. What the script prints of it stays the same."""

    WORDS = "the sign of the gradient flipped"

    def apply(self, lab: Lab) -> None:
        import torch

        def negating(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(loss: Tensor, gradient: Any = None, *args: Any, **kwargs: Any) -> Any:
                negative = -torch.ones_like(loss) if gradient is None else -gradient
                return original(loss, negative, *args, **kwargs)

            return backward

        lab.wrap(torch.Tensor, "backward", negating)
