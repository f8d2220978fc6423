"""Which stretches of a run are recorded: all at first, then one window in ten, then in a hundred."""

from __future__ import annotations

DENSE = 50
MIDDLE = 1000
LONGEST_ACCUMULATION = 64
"""Backwards without a step, after which each further one is a window of its own: `step()` may be missing."""
EVENTS_PER_WINDOW = 64
"""Of each kind: an evaluation over a whole data set happens inside one window."""


class Clock:
    """Counts steps and windows. A window lasts from the end of one optimizer step to the end of the next."""

    def __init__(self) -> None:
        self.steps = 0
        self.sampled = True
        self.optimizers = 1
        """How many optimizers take turns."""
        self._windows = 0
        self._backwards = 0
        self._counts: dict[type, int] = {}

    def step_taken(self) -> None:
        """An optimizer stepped: its window ends."""
        self.steps += 1
        self.step_skipped()

    def step_skipped(self) -> None:
        """A scaler left a step out: its window ends all the same."""
        self._backwards = 0
        self._next_window()

    def backward_done(self) -> bool:
        """Count a backward; True if it ended a window, because no step does."""
        self._backwards += 1
        if self._backwards <= LONGEST_ACCUMULATION:
            return False
        self._next_window()
        return True

    @property
    def is_survey(self) -> bool:
        """Is this window one in which models are looked through parameter by parameter?"""
        return self.sampled and (self.steps < 5 or self.steps % 10 == 0)

    def has_room(self, kind: type) -> bool:
        """May another event of this kind be written in this window?"""
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return count < EVENTS_PER_WINDOW

    def _next_window(self) -> None:
        self._windows += 1
        self.sampled = is_sampled(self._windows, self.optimizers)
        self._counts.clear()


def is_sampled(window: int, optimizers: int = 1) -> bool:
    """Is this window recorded? Optimizers that take turns are recorded for a few turns in a row, or a period
    that divides evenly would always show the same one."""
    turns = 1 if optimizers <= 1 else 3 * optimizers
    if window < DENSE * turns:
        return True
    period = 10 if window < MIDDLE * turns else 100
    return window % (period * turns) < turns
