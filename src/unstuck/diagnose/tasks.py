"""What there is to try, in order, as far as the time allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from unstuck.findings.investigation import Reason, Skipped
from unstuck.trials.context import NoTime


class Task(msgspec.Struct, frozen=True, eq=False):
    """Something to try."""

    what: str
    """As `Skipped.what`."""
    perform: Callable[[], Reason | None]
    """Try it; why it is not needed, if it is not. Raises `NoTime` if it does not fit into what is left."""


def work(tasks: Iterable[Task]) -> list[Skipped]:
    """Perform what there is time for, in this order, and give back what was not tried.

    What did not fit is looked at again after the others: they may have shown that runs start sooner than was thought.
    """
    skipped: list[Skipped] = []
    waiting = list(tasks)
    late: dict[Task, NoTime] = {}
    while waiting:
        late = {}
        for task in waiting:
            try:
                reason = task.perform()
            except NoTime as error:
                late[task] = error
            else:
                skipped += [Skipped(task.what, reason)] if reason else []
        if len(late) == len(waiting):
            break
        waiting = list(late)
    return [*skipped, *(Skipped(task.what, Reason.BUDGET, why.needed, why.left) for task, why in late.items())]
