"""The facts of one optimizer step. Numbers stay on the device until somebody reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Number: TypeAlias = float | Tensor


@dataclass(slots=True, kw_only=True, repr=False, eq=False)
class Step:
    """What one call of `manager.step()` did; a fact on a device is fetched when it is read."""

    index: int
    """How many optimizer steps have been taken, this one included."""
    micro_steps: int
    """How many micro-batches the window holds so far."""
    updated: bool = False
    """Whether the weights were updated: the window was full and the gradients were finite."""
    skipped: bool = False
    """Whether the window was full and the update was left out, because a gradient was not finite."""
    rewound: bool = False
    """Whether weights and optimizers were put back to the last snapshot."""
    lr: tuple[Number, ...] = ()
    """The learning rate of every parameter group, as used by this step."""
    norm_: Number | None = None
    norm_after_: Number | None = None
    limit_: Number | None = None
    scale_: Number = 1.0
    items_: Number | None = None

    @property
    def norm(self) -> float | None:
        """The norm of the whole gradient before clipping; None while the window is open, or if nobody needed it."""
        return None if self.norm_ is None else float(self.norm_)

    @property
    def norm_after(self) -> float | None:
        """The norm of the gradient the optimizer was given."""
        return None if self.norm_after_ is None else float(self.norm_after_)

    @property
    def limit(self) -> float | None:
        """The threshold of a global clip at this step."""
        return None if self.limit_ is None else float(self.limit_)

    @property
    def clipped(self) -> bool:
        """Whether clipping made the gradient smaller."""
        before, after = self.norm, self.norm_after
        return before is not None and after is not None and after < before * (1 - 1e-6)

    @property
    def scale(self) -> float:
        """The loss scale of the GradScaler, 1 without one."""
        return float(self.scale_)

    @property
    def items(self) -> int | None:
        """The effective batch: how many examples or tokens the gradient is the mean of, if they were counted."""
        return None if self.items_ is None else int(self.items_)

    def __repr__(self) -> str:
        window = f"{self.micro_steps} micro-step{'s' * (self.micro_steps != 1)}"
        if not (self.updated or self.skipped):
            return f"<window of step {self.index + 1}: {window} so far>"
        parts = [f"step {self.index}" + ("" if self.norm is None else f": gradient norm {self.norm:.4g}")]
        if self.skipped:
            parts.append("rewound" if self.rewound else "skipped")
        elif self.clipped:
            parts.append(f"clipped to {self.norm_after:.4g}")
        parts.append(window if self.items is None else f"{window}, {self.items} items")
        return f"<{', '.join(parts)}>"
