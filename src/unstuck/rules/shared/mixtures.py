"""What `independence` showed: the operations in which examples of a batch meet though they must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unstuck.findings.mixing import Mix, Mixing
    from unstuck.findings.results import Experiment


def of(experiment: Experiment, *mixes: Mix) -> list[Mixing]:
    """Those of these kinds, one for each line."""
    found = [one for one in experiment.mixing if one.mix in mixes]
    return list({(one.mix, one.place): one for one in reversed(found)}.values())[::-1]


def named(one: Mixing) -> str:
    """What the operation is called, and where it is."""
    return f"{one.operation} at {one.place}"
