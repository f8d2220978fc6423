"""G09: gradients vanish before they reach the first layers, and the loss is stuck."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unstuck.events import Activations, ModelSeen, OptimizerStep, TensorGauges
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics

rule = Rule(
    code="G09",
    name="vanishing-gradients",
    title="gradients vanish before they reach the first layers, and the loss is stuck",
    severity=Severity.WARNING,
    explains=("G18", "O07", "O22", "R08"),
    needs=(OptimizerStep, TensorGauges),
    needs_one_optimizer=True,
)

FADING = 1000.0
"""Gradients of late layers as a multiple of those of early ones."""
NOTHING = 1e-6
"""A total norm below this."""
FEWEST_LAYERS = 4
FEWEST_STEPS = 20
SOLVED = 1e-6
"""A loss below this needs no gradient."""
CAUSE = (
    "Each layer passes on less gradient than it receives, and these factors multiply over the depth. The "
    "first layers get almost none and stay as they were initialised."
)
SQUASHING = frozenset(("sigmoid", "tanh", "logsigmoid", "softsign", "hardtanh", "hardsigmoid"))
REPLACE = "Use ReLU or GELU instead of sigmoid and tanh, initialise for them"
KEEP = "Initialise the weights for the activations"
FIX = (
    "{} (nn.init.kaiming_normal_), add LayerNorm or BatchNorm to each block and skip connections around it. A "
    "higher learning rate alone does not help."
)


class Fading(NamedTuple):
    """The gradients of the last layers and of the first."""

    total: float
    early: float
    late: float
    first: str
    last: str

    @property
    def ratio(self) -> float:
        """A late layer's gradient divided by an early one's."""
        return self.late / self.early if self.early else math.inf


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Compare gradients along the depth, in the order in which layers ran, if the loss does not move."""
    fading = judged(record)
    if fading is None:
        return
    trend = dynamics.trend(record)
    stuck = f"the loss is stuck at {trend.last:.4g}"
    if fading.ratio > FADING:
        times = f"{fading.ratio:,.0f} times smaller than" if math.isfinite(fading.ratio) else "zero, unlike"
        message = f"The gradients of the first layers are {times} those of the last, and {stuck}."
    else:
        message = f"All gradients together have a norm of {fading.total:.1e}, and {stuck}."
    yield rule.finding(
        message,
        cause=CAUSE,
        fix=FIX.format(REPLACE if _squashes(record) else KEEP),
        subject=Subject("parameter", fading.first),
        place=dynamics.model_place(record),
        related=(dynamics.step_place(record),),
        evidence=[
            Evidence(f"gradient of {fading.first}", fading.early),
            Evidence(f"gradient of {fading.last}", fading.late),
            Evidence("norm of all gradients", fading.total, "", NOTHING),
        ],
    )


def _squashes(record: Record) -> bool:
    """Does the model use activations that saturate at both ends?"""
    kinds = {module.kind.lower() for model in record.of(ModelSeen) for module in model.modules}
    called = {kind for event in record.of(Activations) for kind in event.kinds}
    return bool(SQUASHING & (kinds | called))


@dynamics.remembered
def judged(record: Record) -> Fading | None:
    """The gradients along the depth, if they vanish while the loss is stuck."""
    trend = dynamics.trend(record)
    norms = [norm for _, norm in dynamics.grad_norms(record)]
    if dynamics.sole_optimizer(record) is None or not dynamics.is_stuck(record) or len(norms) < FEWEST_STEPS:
        return None
    total = dynamics.median(norms) or 0.0
    if total == 0 or trend.last is None or abs(trend.last) < SOLVED:
        return None
    layers = sorted(_layers(record), key=lambda layer: layer[0])
    if not layers:
        return None
    early, late = _ends(layers)
    fading = Fading(total, early, late, layers[0][2], layers[-1][2])
    deep = len(layers) >= FEWEST_LAYERS and fading.ratio > FADING and _is_gradual(layers)
    return fading if deep or total < NOTHING else None


def _ends(layers: Sequence[tuple[int, float, str]]) -> tuple[float, float]:
    """The typical gradient of the first third and of the last."""
    third = max(1, len(layers) // 3)
    early = dynamics.median([size for _, size, _ in layers[:third]]) or 0.0
    return early, dynamics.median([size for _, size, _ in layers[-third:]]) or 0.0


def _is_gradual(layers: Sequence[tuple[int, float, str]]) -> bool:
    """Do they fade along a branch, too? A policy and a value that run one after the other are not a chain."""
    branches: dict[str, list[tuple[int, float, str]]] = {}
    for layer in layers:
        branches.setdefault(layer[2].partition(".")[0], []).append(layer)
    several = [branch for branch in branches.values() if len(branch) > 2]
    if len(several) < 2:
        return True
    return any(late > math.sqrt(FADING) * early for early, late in map(_ends, several))


def _layers(record: Record) -> Iterator[tuple[int, float, str]]:
    """Depth, typical gradient per element and name of each weight that got a gradient."""
    for series in dynamics.weights(record):
        norms = dynamics.known(series.grad_norm)
        if norms and series.depth >= 0:
            yield series.depth, (dynamics.median(norms) or 0.0) / math.sqrt(series.size), series.name
