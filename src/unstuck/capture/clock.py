"""Which stretches of a run are recorded: all at first, then as many as the budget of time allows."""

from __future__ import annotations

from collections import deque
from time import perf_counter

DENSE = 50
MIDDLE = 1000
BUDGET = 0.0075
"""The share of a run's time that recorded windows may cost on top of plain ones, once the dense start is over."""
LONGEST_ACCUMULATION = 64
"""Backwards without a step, after which each further one is a window of its own: `step()` may be missing."""
EVENTS_PER_WINDOW = 64
"""Of each kind: an evaluation over a whole data set happens inside one window."""
_REMEMBERED = 15
_CLOSE = 3


class Clock:
    """Counts steps and windows. A window lasts from the end of one optimizer step to the end of the next.

    In `sampled` windows everything is recorded, in `measured` ones the gauges are read. `every` asks for gauges in each
    so-manieth window, from the first, whatever it costs; `closely` for everything in all windows around one step.
    """

    def __init__(self, every: int | None = None, closely: int | None = None) -> None:
        self.steps = 0
        self.sampled = self.measured = True
        self.optimizers = 1
        """How many optimizers take turns; see `take_turns`."""
        self.every = every
        self.closely = closely
        self.windows = 0
        self._wake = 0
        """Until this window nothing changes."""
        self._backwards = 0
        self._longest = LONGEST_ACCUMULATION
        self._counts: dict[type, int] = {}
        self._began = perf_counter()
        self._plain: deque[float] = deque(maxlen=_REMEMBERED)
        self._recorded: deque[float] = deque(maxlen=_REMEMBERED)
        self._stretch = 1
        """How many times longer than planned the pauses are, to stay within the budget."""

    def take_turns(self, optimizers: int) -> None:
        """So many optimizers step one after the other."""
        if optimizers != self.optimizers:
            self.optimizers, self._wake = optimizers, 0

    def step_taken(self) -> None:
        """An optimizer stepped: its window ends."""
        self.steps += 1
        if self._backwards > 1:
            self._longest = max(LONGEST_ACCUMULATION, 2 * self._backwards)
        self._backwards = 0
        self._next_window()

    def step_skipped(self) -> None:
        """A scaler left a step out: its window ends all the same."""
        self._backwards = 0
        self._next_window()

    def backward_done(self) -> bool:
        """Count a backward; True if it ended a window, because no step does."""
        self._backwards += 1
        if self._backwards <= self._longest:
            return False
        self._next_window()
        return True

    @property
    def is_survey(self) -> bool:
        """Is this window one in which models are looked through parameter by parameter?"""
        return self.sampled and (self.steps < 5 or self.steps % 10 == 0)

    @property
    def elapsed(self) -> float:
        """Seconds since this window began."""
        return perf_counter() - self._began

    @property
    def typical_seconds(self) -> float:
        """How long a window usually takes; before there are plain ones, half of what recorded ones take."""
        if self._plain:
            return _median(self._plain)
        return _median(self._recorded) / 2 if self._recorded else 0.0

    def has_room(self, kind: type) -> bool:
        """May another event of this kind be written in this window?"""
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return count < EVENTS_PER_WINDOW

    @property
    def _turns(self) -> int:
        """Optimizers that take turns are recorded for a few turns in a row, or a period that divides evenly would
        always show the same one."""
        return 1 if self.optimizers <= 1 else 3 * self.optimizers

    @property
    def _planned(self) -> int:
        """The windows from one recorded stretch to the next, before the budget is asked."""
        return 10 if self.windows < MIDDLE * self._turns else 100

    @property
    def _is_close(self) -> bool:
        return self.closely is not None and abs(self.steps - self.closely) <= _CLOSE

    def _next_window(self) -> None:
        now = perf_counter()
        (self._recorded if self.sampled else self._plain).append(now - self._began)
        self._began = now
        self.windows += 1
        if self.windows >= self._wake:
            self._begin()

    def _begin(self) -> None:
        """Decide what this window is, and until when nothing changes."""
        was_sampled = self.sampled
        stretch, within = divmod(self.windows, self._span)
        chosen = within < self._turns
        self.sampled = self._is_close or (chosen and stretch % self._period == 0)
        self.measured = self.sampled and not self._is_sparing if self.every is None else chosen or self.sampled
        self._counts.clear()
        if was_sampled and not self.sampled:
            self._adapt()
        in_turn = self.every is not None and self.every > 1  # measured windows and others
        resting = not self.sampled and not (in_turn and self.measured) and self.closely is None
        ahead = self._span * (1 if in_turn else self._period)
        self._wake = (self.windows // ahead + 1) * ahead if resting else 0

    @property
    def _span(self) -> int:
        """Windows from one that may be chosen to the next."""
        return (self.every or 1) * self._turns

    @property
    def _period(self) -> int:
        """How many spans lie between two that are recorded."""
        return 1 if self._is_dense else max(1, self._planned * self._stretch // (self.every or 1))

    @property
    def _is_dense(self) -> bool:
        return self.windows < DENSE * self._turns

    @property
    def _is_sparing(self) -> bool:
        """In the dense start only some of the recorded windows are measured too."""
        turns = self._turns
        return self._is_dense and self.windows >= 5 * turns and self.windows % (5 * turns) >= turns

    def _adapt(self) -> None:
        """Lengthen the pauses if recorded windows take so much longer than plain ones that the budget is broken."""
        if len(self._plain) < _REMEMBERED or self._is_dense:
            return
        plain, recorded = _median(self._plain), _median(self._recorded)
        needed = (recorded - plain) / (BUDGET * plain * self._planned) if plain > 0 else 1.0
        self._stretch = max(1, min(100, round(needed)))


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]
