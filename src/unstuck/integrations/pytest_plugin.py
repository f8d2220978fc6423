"""For pytest: the fixture `unstuck_check`, and failures that show the report and nothing else.

pytest loads this at every start, so it imports nothing of torch and nothing of ours until a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from unstuck.check.objects import Report

SEVERITIES = ("error", "warning", "advice")


@pytest.fixture
def unstuck_check() -> Callable[..., Report]:
    """`unstuck.check` that fails the test, by default from warnings on; what it returns can be looked at further."""

    def check(
        model: Any, loss_fn: Any = None, optimizer: Any = None, batch: Any = None, fail_on: str = "warning"
    ) -> Report:
        __tracebackhide__ = True
        if fail_on not in (*SEVERITIES, "never"):
            raise ValueError(f"fail_on must be one of {', '.join(SEVERITIES)} and never, not {fail_on!r}.")
        from unstuck.check.objects import check as look_at
        from unstuck.findings import Severity

        report = look_at(model, loss_fn, optimizer, batch)
        if fail_on != "never" and report.verdict.reaches(Severity(fail_on)):
            pytest.fail(f"unstuck check of {type(model).__name__}\n\n{report.findings}", pytrace=False)
        return report

    return check
