"""`unstuck.diagnose(model, loss_fn, optimizer, loader)`: the same triage on live objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstuck.diagnose.triage import Triage
from unstuck.findings import Diagnosis, Severity
from unstuck.findings.investigation import Investigation
from unstuck.findings.verdict import Verdict
from unstuck.trials.runner import Outcome

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from unstuck.trials.objects import ObjectContext

SECONDS = 60.0


class Diagnosed:
    """What an investigation of live objects found out. `print` it to read it."""

    def __init__(self, investigation: Investigation) -> None:
        self.investigation = investigation

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What was found, the first being what to fix first."""
        return self.investigation.result.verdict.diagnoses

    @property
    def principal(self) -> Diagnosis | None:
        """The answer, if there is one louder than advice."""
        return self.investigation.principal

    @property
    def ok(self) -> bool:
        """No error and no warning; advice is allowed."""
        return not self.investigation.result.verdict.reaches(Severity.WARNING)

    def to_html(self) -> str:
        """The report as a page, with the curves."""
        from unstuck.view.html import page

        return page(self.investigation)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        from unstuck.report import investigation, terminal

        return terminal.plain(investigation.render(self.investigation)).strip("\n")

    def __repr__(self) -> str:
        found = self.principal
        nothing = "no cause found" if self.investigation.result.verdict.in_trouble else "nothing found"
        return f"<unstuck.diagnose: {f'{found.lead.code} {found.lead.name}' if found else nothing}>"


def diagnose(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any] | None,
    optimizer: Optimizer | Iterable[Optimizer],
    loader: Iterable[Any],
    seconds: float = SECONDS,
) -> Diagnosed:
    """Find out why a model does not learn, by training it on the side. Everything is left as it was.

    `loader` gives batches and can be gone through again, such as a DataLoader or a list. With `loss_fn=None` the model
    returns its own loss.
    """
    from unstuck.trials.objects import ObjectContext

    context = ObjectContext(model, loss_fn, optimizer, loader, seconds)
    return Diagnosed(_OfObjects(context, model, loss_fn, optimizer).answer())


class _OfObjects(Triage):
    def __init__(self, context: ObjectContext, model: Any, loss_fn: Any, optimizer: Any) -> None:
        super().__init__(context, Path())
        self._check = (model, loss_fn, optimizer, context.first_batch())

    def watched(self) -> Outcome:
        from unstuck.check.objects import check

        self._findings += [finding for found in check(*self._check).diagnoses for finding in found.findings]
        return super().watched()

    def protected(self, outcome: Outcome) -> str:
        return "Model, optimizer, loader and random numbers are as they were."

    def next_command(self, verdict: Verdict) -> str:
        return "unstuck.diagnose(...) again, once that is changed" if verdict.diagnoses else "train"
