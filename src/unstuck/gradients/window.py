"""An accumulation window: how much each micro-batch weighs, and what the sum is divided by in the end.

The divisor is known only when the window closes: an epoch may end early, and token counts differ. So every loss is
weighted as in an ordinary window, which keeps gradients in their usual range, and the closed window has one factor
that makes the result exact. In an ordinary window that factor is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from unstuck.gradients.errors import MisuseError

Count: TypeAlias = int | float | Tensor
Reduction: TypeAlias = Literal["mean", "sum"]
AcrossRanks: TypeAlias = Callable[[Count], Tensor]


class Window:
    """The micro-steps of one optimizer step."""

    def __init__(self, accumulate: int, reduction: Reduction, ranks: int, across_ranks: AcrossRanks) -> None:
        self.accumulate = accumulate
        self.reduction = reduction
        self.ranks = ranks
        self._across_ranks = across_ranks
        self._usual: Count | None = None  # items in the first micro-batch of the run, the same on every rank
        self.reset()

    def reset(self) -> None:
        """Begin the next window."""
        self.micro_steps = 0
        self.total: Count = 0
        self._current: Count | None = None
        self._counted: bool | None = None
        self._ranks_are_alike = True

    @property
    def has_items(self) -> bool:
        """Whether the items of this window were counted."""
        return bool(self._counted)

    def weigh(self, loss: Tensor, count: Count | None, size: int | None) -> Tensor:
        """The loss as it goes into the sum; `size` replaces a count that the user did not give."""
        explicit = count is not None
        if count is None and self.reduction == "mean":
            count = size
        self._note(count, explicit)
        if count is None:
            alone = self.accumulate == 1 or self.reduction == "sum"
            return loss if alone else loss / self.accumulate
        if self._stands_alone():
            return loss if self.reduction == "mean" else loss / _at_least_one(count)
        unit = self._unit(count, explicit) * self.accumulate
        return loss / unit if self.reduction == "sum" else _without_empty(loss, count) * (count / unit)

    def close_micro_step(self) -> None:
        """The next backward belongs to the next micro-batch."""
        self.micro_steps += 1
        self._current = None

    def factor(self) -> float | Tensor:
        """What the summed gradients are multiplied by to be those of one large batch."""
        if self.reduction == "sum" and not self._counted:
            return float(self.ranks)  # ranks are averaged, and a sum is meant
        if not self._counted:
            return self.accumulate / self.micro_steps
        if self._stands_alone():
            return 1.0
        if self._ranks_are_alike or self.ranks == 1:
            return self._expected() / _at_least_one(self.total)
        self.total = self._across_ranks(self.total)
        return self._expected() * self.ranks / _at_least_one(self.total)

    def _note(self, count: Count | None, explicit: bool) -> None:
        if self._counted is not None and self._counted != (count is not None):
            raise MisuseError("Give backward() a count in every micro-step of a window or in none of them.")
        if isinstance(count, Tensor) and count.numel() != 1:
            raise MisuseError(
                f"count is how many items the loss is over, one number, and has the shape {[*count.shape]}."
            )
        self._counted = count is not None
        if count is None:
            return
        self._ranks_are_alike = self._ranks_are_alike and not explicit
        if self._current is None:
            self.total = self.total + (count.detach() if isinstance(count, Tensor) else count)
            self._current = count
        elif self._current is not count and not _same_number(self._current, count):
            raise MisuseError(
                "The losses of one micro-step were given different counts: add them up and call backward() once."
            )

    def _stands_alone(self) -> bool:
        """One micro-batch makes the step, and no rank with other counts takes part."""
        return self.accumulate == 1 and (self.ranks == 1 or self._ranks_are_alike)

    def _unit(self, count: Count, explicit: bool) -> Count:
        if self._usual is None:
            usual = self._across_ranks(count) / self.ranks if explicit and self.ranks > 1 else count
            self._usual = _at_least_one(usual)
        return self._usual

    def _expected(self) -> Count:
        assert self._usual is not None
        return self._usual * self.accumulate

    def state_dict(self) -> dict[str, Any]:
        """What a window that is still open must remember."""
        names = ("micro_steps", "total", "_counted", "_usual", "_ranks_are_alike")
        return {name.strip("_"): getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the window up where it was left."""
        self.reset()
        self.micro_steps, self.total, self._counted = state["micro_steps"], state["total"], state["counted"]
        self._usual, self._ranks_are_alike = state["usual"], state["ranks_are_alike"]


def _at_least_one(count: Count) -> Count:
    return count.detach().clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _same_number(one: Count, other: Count) -> bool:
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other


def _without_empty(loss: Tensor, count: Count) -> Tensor:
    """A mean over nothing is NaN, and weighs nothing."""
    if isinstance(count, Tensor):
        return torch.where(count.detach().to(loss.device) > 0, loss, torch.zeros_like(loss))
    return loss if count else torch.where(torch.zeros_like(loss, dtype=torch.bool), loss, torch.zeros_like(loss))
