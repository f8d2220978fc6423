"""Everything between the loss and the updated weights: accumulate, unscale, clip, step, schedule, clear."""

from unstuck.gradients.clip import Clip, ClipAdaptive, ClipNorm, ClipValue, suggest_max_norm
from unstuck.gradients.errors import MisuseError, NonFiniteGradientError
from unstuck.gradients.manager import GradientManager
from unstuck.gradients.step import Step

__all__ = [
    "Clip",
    "ClipAdaptive",
    "ClipNorm",
    "ClipValue",
    "GradientManager",
    "MisuseError",
    "NonFiniteGradientError",
    "Step",
    "suggest_max_norm",
]
