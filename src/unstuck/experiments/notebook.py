"""`unstuck.overfit` and the like: an experiment on live objects, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from unstuck.experiments import find_experiment, findings_in
from unstuck.findings.results import Experiment, NamedCurve

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

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
        """The losses of each run, step by step."""
        return self.experiment.curves

    @property
    def findings(self) -> list[Finding]:
        """The pitfalls that it shows."""
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
