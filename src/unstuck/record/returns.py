"""What an agent earns per episode: the returns at the beginning of a run against those at its end."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import EpisodesEnded, Place, RunStatus

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST = 20
"""Episodes that say anything at all."""
FEWEST_STOPPED = 200
"""Episodes of a run that was ended early, before it is said not to learn: many agents find their first reward late."""
CERTAIN = 4.0
"""A difference must exceed its own standard error this many times."""
POSSIBLE = 3.0
"""One that may be there all the same is not denied."""
NOTICEABLE = 0.65
"""The chance that an episode of the end beats one of the beginning from which on the agent clearly learns; 0.5 if
nothing has changed."""


class Course(StrEnum):
    """Where returns went."""

    RISES = "rises"
    CREEPS = "creeps"
    """It rises, by less than `NOTICEABLE`."""
    STAYS = "stays"
    """A noticeable rise would have been seen, and there is none."""
    FALLS = "falls"
    UNCLEAR = "unclear"
    """Too few episodes for their noise."""


class Returns(msgspec.Struct, frozen=True, kw_only=True):
    """The returns of the episodes of one training."""

    course: Course
    environment: str = ""
    episodes: int = 0
    first: float = 0.0
    """The mean return of the first episodes."""
    last: float = 0.0
    """Of the last ones."""


def returns_of(record: Record) -> Returns | None:
    """From the line that played most episodes while the training went on; None if there are too few."""
    lines: dict[tuple[Place | None, str], list[EpisodesEnded]] = {}
    for event in record.of(EpisodesEnded):
        lines.setdefault((event.place, event.environment), []).append(event)
    # What is played after the last step is an evaluation.
    end = max((step for step, _ in record.losses), default=-1) + 1
    played = max(
        ((_played(events, end), events) for events in lines.values()), key=lambda one: len(one[0]), default=None
    )
    if played is None or len(played[0]) < FEWEST:
        return None
    values, events = played
    ended = record.ended
    # Who ended it matters: a run that was cut short has not had its chance.
    is_whole = ended is not None and ended.status in (RunStatus.FINISHED, RunStatus.EXITED)
    course = course_of(values)
    contested = any(event.contested for event in events)
    if course in (Course.STAYS, Course.FALLS) and (contested or (not is_whole and len(values) < FEWEST_STOPPED)):
        course = Course.UNCLEAR
    some = max(FEWEST // 2, len(values) // 10)
    first, last = _mean(values[:some]), _mean(values[-some:])
    if course in (Course.RISES, Course.CREEPS) and last <= first:
        course = Course.UNCLEAR  # more episodes end a little better, and some far worse
    return Returns(
        course=course,
        environment=events[0].environment,
        episodes=sum(event.each * len(event.returns) for event in events),
        first=first,
        last=last,
    )


def _played(events: Sequence[EpisodesEnded], end: int) -> list[float]:
    """In order; where early values stand for fewer episodes than late ones, they are averaged likewise."""
    largest = max(event.each for event in events)
    found: list[float] = []
    pending: list[float] = []
    covered = 0
    for event in events:
        for step, value in zip(event.steps, event.returns, strict=False):
            if step < end and value is not None:
                pending.append(value)
                covered += event.each
                if covered >= largest:
                    found.append(_mean(pending))
                    pending, covered = [], 0
    return found


def course_of(values: Sequence[float]) -> Course:
    """By ranks, so that neither the unit of a reward nor single lucky episodes matter."""
    third, tenth = len(values) // 3, max(FEWEST // 2, len(values) // 10)
    if len(values) < FEWEST:
        return Course.UNCLEAR
    late = values[-max(tenth, third) :]
    # Who learns in the first few of many episodes has learned by the end of the first third.
    sizes = [FEWEST // 2]
    while sizes[-1] < third:
        sizes.append(min(third, 3 * sizes[-1]))
    compared = [_compared(values[:size], late) for size in sizes]
    # A few first episodes that happen to be bad are not enough: only a clear rise counts there.
    rising = [
        chance
        for at, (chance, error) in enumerate(compared, 1)
        if chance - 0.5 > CERTAIN * error and (chance >= NOTICEABLE or at == len(compared))
    ]
    # Having learned, it may have forgotten again.
    chance, error = _compared(values[:tenth], values[-tenth:])
    if rising and chance + CERTAIN * error > 0.5:
        return Course.RISES if max(rising) >= NOTICEABLE else Course.CREEPS
    chance, error = compared[-1]
    if 0.5 - chance > CERTAIN * error:
        return Course.FALLS
    maybe = any(chance - 0.5 > POSSIBLE * error for chance, error in compared)
    return Course.STAYS if chance + POSSIBLE * error < NOTICEABLE and not maybe else Course.UNCLEAR


def _compared(early: Sequence[float], late: Sequence[float]) -> tuple[float, float]:
    """The chance that one of the late values beats one of the early ones, and its standard error if nothing has
    changed (Mann and Whitney, with ties)."""
    ordered = sorted(early)
    wins = math.fsum((bisect_left(ordered, v) + bisect_right(ordered, v)) / 2 for v in late)
    both = sorted((*early, *late))
    size = len(both)
    ties, begin = 0, 0
    while begin < size:
        end = bisect_right(both, both[begin])
        ties += (end - begin) ** 3 - (end - begin)
        begin = end
    pairs = len(early) * len(late)
    variance = pairs / 12 * (size + 1 - ties / (size * (size - 1)))
    return wins / pairs, math.sqrt(max(0.0, variance)) / pairs


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
