"""`unstuck.check` and `assert_trains`: the pitfalls that live objects show before training."""

from __future__ import annotations

from typing import Any

from unstuck.findings import Diagnosis, Severity
from unstuck.findings.result import Result
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge


class Report:
    """What a check found. `print` it to read it."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What was found, the first being what to fix first."""
        return self.verdict.diagnoses

    @property
    def ok(self) -> bool:
        """No error and no warning; advice is allowed."""
        return not self.verdict.reaches(Severity.WARNING)

    def __bool__(self) -> bool:
        """So that `assert unstuck.check(...)` means what it says."""
        return self.ok

    def __str__(self) -> str:
        from unstuck.report import terminal, text

        return terminal.plain(text.render(Result(command="check", verdict=self.verdict))).rstrip("\n")

    @property
    def findings(self) -> str:
        """The findings alone, without what was and was not checked."""
        from unstuck.report import terminal, text

        alone = Verdict(diagnoses=self.verdict.diagnoses)
        return terminal.plain(text.render(Result(command="check", verdict=alone))).rstrip("\n")

    def __repr__(self) -> str:
        codes = ", ".join(diagnosis.lead.code for diagnosis in self.diagnoses)
        return f"<unstuck.check: {codes or f'nothing found in {self.verdict.scope}'}>"


def check(model: Any, loss_fn: Any = None, optimizer: Any = None, batch: Any = None) -> Report:
    """Look at live objects before training, and say what would keep them from learning.

    `batch` is what the loop draws, an `(inputs, targets)` pair: with it one step is probed on the side, and
    the objects are left as they were. Leave out what you do not have; the report says what was not checked.
    """
    from unstuck.check.probe import probe

    return Report(judge(setup=probe(model, loss_fn, optimizer, batch)))


def assert_trains(model: Any, loss_fn: Any, batch: Any, optimizer: Any = None) -> None:
    """Raise AssertionError, with the report, if `check` finds an error or a warning; for tests.

    Like `check` it leaves everything as it was. Advice alone does not fail.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test, and not this one
    report = check(model, loss_fn, optimizer, batch)
    if not report.ok:
        raise AssertionError(f"{type(model).__name__} would not train as it should:\n\n{report.findings}")
