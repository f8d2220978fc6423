"""The moves of an environment: which state followed which, and what each move earned."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from torch import Tensor

_MOST_KNOWN = 20_000
_MOST_LISTED = 5_000
_BY_CHANCE = 1e-6
_MOST_ALIKE = 8
"""Different moves between the same states."""
_LARGEST = 2**15
"""Numbers in an observation that is still looked at."""


class Move(NamedTuple):
    """One call of `step`."""

    action: float | None
    reward: float
    over: bool
    """Did the episode end here, by itself or by a limit of time?"""
    final: bool
    """Did it end by itself, so that nothing can be earned afterwards?"""


class Moves:
    """What was seen of all environments of a program."""

    def __init__(self) -> None:
        self.between: dict[tuple[int, int], list[Move]] = {}
        """By the marks of a state and of the one that followed."""
        self.into: dict[int, list[Move]] = {}
        """The moves that led to a state."""
        self.out_of: dict[int, list[Move]] = {}
        """The moves that were made there."""
        self.states: set[int] = set()
        self.recent: list[Move] = []
        """Since the last `forget_recent`."""
        self.environments: set[int] = set()
        """Whose moves they are."""
        self.tells_limits = False
        """Did an environment tell its own end from a limit of time?"""
        self.reused = 0
        """How often an observation was the array of an earlier one that is still in use, with other numbers in it."""
        self.count = self.stayed = 0
        """Moves in all, and those that left the state as it was."""
        self._last: dict[int, weakref.ref[Any]] = {}
        self._now: dict[int, int | None] = {}
        self._length: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """How many episodes had each length."""

    def reset(self, environment: int, result: Any) -> None:
        """An environment began another episode."""
        first = _observation(result)
        self._now[environment] = self._seen(first)
        self._keep(environment, first)
        if self.recent and not self.recent[-1].over:
            self.recent[-1] = self.recent[-1]._replace(over=True)

    def moved(self, environment: int, action: Any, result: tuple[Any, ...], reward: float, over: bool) -> None:
        """It was given an action."""
        before, after = self._now.get(environment), self._seen(result[0])
        self.count += 1
        self.stayed += before == after
        self._now[environment] = after
        last = self._last.get(environment)
        if last is not None and before != after and _is_same_memory(last(), result[0]):
            self.reused += 1
        self._keep(environment, result[0])
        length = self._length.get(environment, 0) + 1
        self._length[environment] = 0 if over else length
        if over and len(self._ends) <= 1:
            self._ends[length] = self._ends.get(length, 0) + 1
        # With two flags the second is a limit of time; with one, only its cause says what it was.
        two, info = _has_two_flags(result), result[-1]
        final = over and (bool(result[2]) if two else not _was_cut(info))
        self.tells_limits = self.tells_limits or two or bool(over and _of_limits(info))
        move = Move(_plain(action), reward, over, final)
        if len(self.recent) < _MOST_LISTED:
            self.recent.append(move)
            self.environments.add(environment)
        if before is not None and after is not None and len(self.between) < _MOST_KNOWN:
            for known in (
                self.between.setdefault((before, after), []),
                self.into.setdefault(after, []),
                self.out_of.setdefault(before, []),
            ):
                if move not in known and len(known) < _MOST_ALIKE:
                    known.append(move)

    @property
    def end_by_time(self) -> bool:
        """Are all episodes of the same length? Then they end because time is up, and a target may look further."""
        return len(self._ends) == 1 and next(iter(self._ends.values())) > 1

    def may_all_stay(self, states: list[int]) -> bool:
        """Could as many moves as there are states all have been such that lead back to where they were made?"""
        if not all((mark, mark) in self.between for mark in states):
            return False
        return (self.stayed / max(self.count, 1)) ** len(states) > _BY_CHANCE

    def forget_recent(self) -> None:
        """What follows belongs to another update."""
        self.recent = []
        self.environments.clear()

    def _keep(self, environment: int, observation: Any) -> None:
        try:
            self._last[environment] = weakref.ref(observation)
        except TypeError:  # a list
            self._last.pop(environment, None)

    def _seen(self, observation: Any) -> int | None:
        mark = mark_of(observation) if len(self.states) < _MOST_KNOWN else None
        if mark is not None:
            self.states.add(mark)
        return mark


def _is_same_memory(last: Any, now: Any) -> bool:
    if last is None or last is now:
        return last is not None
    if isinstance(last, Tensor) and isinstance(now, Tensor):
        return last.data_ptr() == now.data_ptr()
    numpy = sys.modules.get("numpy")
    arrays = numpy is not None and isinstance(last, numpy.ndarray) and isinstance(now, numpy.ndarray)
    return arrays and bool(last.ctypes.data == now.ctypes.data)


def mark_of(observation: Any) -> int | None:
    """A number that stands for the values, however they are stored; None if it is not a row of numbers."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(observation, Tensor):
        if type(observation) is not Tensor or not observation.is_cpu or not 1 < observation.numel() <= _LARGEST:
            return None
        observation = observation.detach().numpy()
    elif type(observation) in (list, tuple):
        if not 1 < len(observation) <= _LARGEST or not all(type(one) in (int, float) for one in observation):
            return None
    elif type(observation).__module__ != "numpy" or not 1 < getattr(observation, "size", 0) <= _LARGEST:
        return None
    values = numpy.asarray(observation)
    return hash(values.astype(numpy.float32).tobytes()) if values.dtype.kind in "fiub" else None


def marks_of_rows(batch: Tensor) -> list[int]:
    """The same for each example of a batch."""
    rows = batch.detach().numpy().astype("float32", copy=False)
    return [hash(row.tobytes()) for row in rows]


def _observation(result: Any) -> Any:
    """What `reset` returned, without the information that newer environments add."""
    return result[0] if type(result) is tuple and len(result) == 2 and isinstance(result[1], dict) else result


def _has_two_flags(result: tuple[Any, ...]) -> bool:
    return len(result) > 3 and not isinstance(result[3], dict) and (len(result) > 4 or _is_flag(result[3]))


def _was_cut(info: Any) -> bool:
    return any(map(bool, _of_limits(info)))


def _of_limits(info: Any) -> list[Any]:
    """What the information says about limits of time. Only real flags are asked: an array has no truth."""
    pairs = info.items() if isinstance(info, dict) else ()
    return [value for key, value in pairs if isinstance(key, str) and "trunc" in key.lower() and _is_flag(value)]


def _is_flag(value: Any) -> bool:
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def _plain(action: Any) -> float | None:
    if type(action) in (int, float, bool):
        return float(action)
    if isinstance(action, Tensor):
        return float(action) if action.numel() == 1 and action.is_cpu and type(action) is Tensor else None
    single = type(action).__module__ == "numpy" and getattr(action, "size", 0) == 1
    return float(action.item()) if single and action.dtype.kind in "fiub" else None
