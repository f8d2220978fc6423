"""`unstuck.overfit` and the like: an experiment on live objects in one call, and two of them as assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from unstuck.experiments import find_experiment, findings_in
from unstuck.findings.results import Experiment, ExperimentVerdict, NamedCurve

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from unstuck.findings import Finding, Severity
    from unstuck.findings.verdict import Verdict

LossFunction = Callable[[Any, Any], Any] | None
SECONDS = 60.0


class Answer:
    """What an experiment showed. `print` it to read it."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    @property
    def verdict(self) -> str:
        """One word, such as `passed`."""
        return self.experiment.verdict

    @property
    def curves(self) -> tuple[NamedCurve, ...]:
        """The losses of each run, step by step."""
        return self.experiment.curves

    @property
    def findings(self) -> list[Finding]:
        """The pitfalls that it shows."""
        return findings_in(self.experiment)

    @property
    def verdict_of_rules(self) -> Verdict:
        """Its findings, merged and ready for a report."""
        from unstuck.findings import merge
        from unstuck.findings.verdict import Verdict

        return Verdict(diagnoses=tuple(merge(self.findings)))

    def plot(self) -> Any:
        """Draw the curves with matplotlib, if it is installed, and return the axes."""
        try:
            from matplotlib import pyplot
        except ModuleNotFoundError:
            raise ModuleNotFoundError("Drawing needs matplotlib: pip install matplotlib") from None
        _, axes = pyplot.subplots()
        for named in self.curves:
            xs: Sequence[float] = self.experiment.xs or named.curve.steps
            axes.plot(xs, [float("nan") if loss is None else loss for loss in named.curve.losses], label=named.label)
        axes.set(xlabel=self.experiment.x_axis, ylabel="loss", title=f"{self.experiment.name}: {self.verdict}")
        if self.experiment.xs:
            axes.set_xscale("log")
        axes.legend()
        return axes

    def __str__(self) -> str:
        lines = [self.experiment.sentence, *self.experiment.caveats]
        return "\n".join([*lines, *(f"{found.code} {found.name}: {found.message}" for found in self.findings)])

    def __repr__(self) -> str:
        return f"<unstuck.{self.experiment.name}: {self.verdict}. {self.experiment.sentence}>"


def _answered(
    name: str,
    model: nn.Module,
    loss_fn: LossFunction,
    optimizer: Optimizer | Iterable[Optimizer],
    loader: Iterable[Any],
    seconds: float,
) -> Answer:
    from unstuck.trials.objects import ObjectContext

    context = ObjectContext(model, loss_fn, optimizer, loader, seconds)
    kind = find_experiment(name)
    assert kind is not None
    if kind.takes_several_runs:
        context.learn_pace()
    return Answer(kind.answer(context))


def overfit(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Can it overfit a single batch? Everything is left as it was."""
    return _answered("overfit", model, loss_fn, optimizer, loader, seconds)


def baseline(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does it learn anything from its inputs? Everything is left as it was."""
    return _answered("baseline", model, loss_fn, optimizer, loader, seconds)


def lr_range(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Which learning rates train, and where does its own lie? Everything is left as it was."""
    return _answered("lr", model, loss_fn, optimizer, loader, seconds)


def seeds(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does the same seed give the same losses, and how much is chance? The weights are never seeded."""
    return _answered("seeds", model, loss_fn, optimizer, loader, seconds)


def independence(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does the output for one example depend on the others of its batch? Everything is left as it was."""
    return _answered("independence", model, loss_fn, optimizer, loader, seconds)


def causality(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does a prediction of the next element see that element? Everything is left as it was."""
    return _answered("causality", model, loss_fn, optimizer, loader, seconds)


def relations(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does what must hold for any model hold for this one? Everything is left as it was."""
    return _answered("relations", model, loss_fn, optimizer, loader, seconds)


def layers(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Where in the model does the target stop being readable? Everything is left as it was."""
    return _answered("layers", model, loss_fn, optimizer, loader, seconds)


def isolate(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Which part is at fault: the data, the model, the loss or the update? Everything is left as it was."""
    return _answered("isolate", model, loss_fn, optimizer, loader, seconds)


def assert_relations(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> None:
    """Raise AssertionError, with the report, if a relation that must hold for any model is broken; for tests.

    Advice alone does not fail. Everything is left as it was.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test, and not this one
    from unstuck.findings import Severity

    answer = relations(model, loss_fn, optimizer, loader, seconds)
    problem = problem_with(answer, Severity.WARNING)
    if problem:
        raise AssertionError(f"{type(model).__name__} breaks what must hold for any model:\n\n{problem}")


def assert_learns(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> None:
    """Raise AssertionError if some hundred steps learn nothing, with the part that is at fault; for tests.

    A run whose loss still falls is slow, and passes. Everything is left as it was. Raises ValueError if it cannot be
    said, as where no step was taken, or where there was time for too few.
    """
    __tracebackhide__ = True
    answer = isolate(model, loss_fn, optimizer, loader, seconds)
    problem = why_not_learned(answer)
    if problem:
        raise AssertionError(f"{type(model).__name__} does not learn:\n\n{problem}")


def problem_with(answer: Answer, severity: Severity) -> str:
    """Its findings as a report, if one is at least this severe."""
    from unstuck.findings.result import Result
    from unstuck.report import terminal, text

    verdict = answer.verdict_of_rules
    if not verdict.reaches(severity):
        return ""
    return terminal.plain(text.render(Result(command=answer.experiment.name, verdict=verdict))).rstrip("\n")


def why_not_learned(answer: Answer) -> str:
    """What `isolate` found at fault, or that it found nothing; empty if the run learns. Raises ValueError."""
    from unstuck.experiments.isolate import STEPS

    done = answer.experiment
    if done.verdict is ExperimentVerdict.LEARNS or done.measures.get("still_falls"):
        return ""
    if not done.measures.get("as_it_is"):
        raise ValueError(f"It cannot be said whether it learns. {done.sentence}")
    steps = done.measures.get("steps")
    if isinstance(steps, int) and steps < STEPS:
        raise ValueError(f"It cannot be said whether it learns: only {steps} of {STEPS} steps fit; give more seconds.")
    return str(answer)
