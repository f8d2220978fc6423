"""`unstuck.overfit` and its kin: an experiment on live objects, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from unstuck.experiments.result import Experiment, NamedCurve

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from unstuck.experiments.context import Context
    from unstuck.findings import Finding

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
        """The losses, step by step, of each run that was made."""
        return self.experiment.curves

    @property
    def findings(self) -> list[Finding]:
        """The pitfalls that it shows."""
        from unstuck.experiments.judging import findings_in

        return findings_in(self.experiment)

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
    experiment: Callable[[Context], Experiment],
    model: nn.Module,
    loss_fn: LossFunction,
    optimizer: Optimizer | Iterable[Optimizer],
    loader: Iterable[Any],
    seconds: float,
) -> Answer:
    from unstuck.experiments.objects import ObjectContext

    return Answer(experiment(ObjectContext(model, loss_fn, optimizer, loader, seconds)))


def overfit(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Can it learn one batch by heart? Everything is left as it was."""
    from unstuck.experiments.overfit import overfit as experiment

    return _answered(experiment, model, loss_fn, optimizer, loader, seconds)


def baseline(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does it learn anything from its inputs? Everything is left as it was."""
    from unstuck.experiments.baseline import baseline as experiment

    return _answered(experiment, model, loss_fn, optimizer, loader, seconds)


def lr_range(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Which learning rates train, and where does its own lie? Everything is left as it was."""
    from unstuck.experiments.lr import lr as experiment

    return _answered(experiment, model, loss_fn, optimizer, loader, seconds)


def seeds(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does the same seed give the same losses, and how much is chance? The weights are never seeded."""
    from unstuck.experiments.seeds import seeds as experiment

    return _answered(experiment, model, loss_fn, optimizer, loader, seconds)


def independence(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does the output for one example depend on the others of its batch? Everything is left as it was."""
    from unstuck.experiments.independence import independence as experiment

    return _answered(experiment, model, loss_fn, optimizer, loader, seconds)


def causality(
    model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer, loader: Iterable[Any], seconds: float = SECONDS
) -> Answer:
    """Does a prediction of the next element see that element? Everything is left as it was."""
    from unstuck.experiments.causality import causality as experiment

    return _answered(experiment, model, loss_fn, optimizer, loader, seconds)
