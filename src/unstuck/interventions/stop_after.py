"""Ends a run once it has shown enough."""

from __future__ import annotations

from unstuck.interventions.base import Intervention


class StopAfter(Intervention, frozen=True):
    """End the run after so many optimizer steps; or after `enough` of them, once so many seconds have passed.

    Whoever runs the trial counts the steps.
    """

    steps: int
    enough: int | None = None
    seconds: float = 0.0

    def is_reached(self, steps: int, seconds: float) -> bool:
        """Is it time to end?"""
        return steps >= self.steps or (self.enough is not None and steps >= self.enough and seconds >= self.seconds)
