"""For pytest: `unstuck_check`, `unstuck_relations`, `unstuck_isolate`, and failures that show the report alone.

pytest loads this at every start, so it imports nothing of torch and nothing of ours until a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from unstuck.check.objects import Report
    from unstuck.experiments.notebook import Answer
    from unstuck.findings import Severity

SEVERITIES = ("error", "warning", "advice")


@pytest.fixture
def unstuck_check() -> Callable[..., Report]:
    """`unstuck.check` that fails the test, by default from warnings on; what it returns can be looked at further."""

    def check(
        model: Any, loss_fn: Any = None, optimizer: Any = None, batch: Any = None, fail_on: str = "warning"
    ) -> Report:
        __tracebackhide__ = True
        severity = _severity(fail_on)
        from unstuck.check.objects import check as look_at

        report = look_at(model, loss_fn, optimizer, batch)
        if severity is not None and report.verdict.reaches(severity):
            pytest.fail(f"unstuck check of {type(model).__name__}\n\n{report.findings}", pytrace=False)
        return report

    return check


@pytest.fixture
def unstuck_relations() -> Callable[..., Answer]:
    """`unstuck.relations` that fails the test, by default from warnings on."""

    def relations(
        model: Any, loss_fn: Any, optimizer: Any, loader: Any, seconds: float = 60.0, fail_on: str = "warning"
    ) -> Answer:
        __tracebackhide__ = True
        severity = _severity(fail_on)
        from unstuck.experiments.notebook import problem_with, relations as ask

        answer = ask(model, loss_fn, optimizer, loader, seconds)
        problem = problem_with(answer, severity) if severity is not None else ""
        if problem:
            pytest.fail(f"unstuck relations of {type(model).__name__}\n\n{problem}", pytrace=False)
        return answer

    return relations


@pytest.fixture
def unstuck_isolate() -> Callable[..., Answer]:
    """`unstuck.isolate` that fails the test if the training learns nothing, and says which part is at fault."""

    def isolate(model: Any, loss_fn: Any, optimizer: Any, loader: Any, seconds: float = 60.0) -> Answer:
        __tracebackhide__ = True
        from unstuck.experiments.notebook import isolate as ask, why_not_learned

        answer = ask(model, loss_fn, optimizer, loader, seconds)
        problem = why_not_learned(answer)
        if problem:
            pytest.fail(f"unstuck isolate of {type(model).__name__}\n\n{problem}", pytrace=False)
        return answer

    return isolate


def _severity(fail_on: str) -> Severity | None:
    """From which severity on a test fails; None for never."""
    if fail_on not in (*SEVERITIES, "never"):
        raise ValueError(f"fail_on must be one of {', '.join(SEVERITIES)} and never, not {fail_on!r}.")
    from unstuck.findings import Severity

    return None if fail_on == "never" else Severity(fail_on)
