"""What the gradient manager refuses, always in one sentence."""

from __future__ import annotations


class MisuseError(RuntimeError):
    """The loop did something that would have trained a different model than it says."""


class NonFiniteGradientError(FloatingPointError):
    """A gradient is NaN or infinite; the message names the parameter it came in through."""
