"""What only `check` asks of an optimizer, since it takes a look at every number."""

from __future__ import annotations

import msgspec
from torch.optim import Optimizer

from unstuck.capture.measure.describe import too_small_steps
from unstuck.events import OptimizerSeen


def with_small_steps(optimizer: Optimizer, seen: OptimizerSeen) -> OptimizerSeen:
    """The same facts, with the share of half-precision numbers that a step would leave as they are."""
    shares = too_small_steps(optimizer)
    groups = (msgspec.structs.replace(group, too_small=share) for group, share in zip(seen.groups, shares, strict=True))
    return msgspec.structs.replace(seen, groups=tuple(groups))
