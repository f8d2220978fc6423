"""What losses were given, in a run or in a probe: shared by the rules about predictions and targets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from unstuck.events import LossCall, ModelSeen, ModuleFact, Place, StateLoaded, TensorFact
from unstuck.findings import Evidence

if TYPE_CHECKING:
    from unstuck.record import Record

REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
LAYERS = ("AddmmBackward", "MmBackward", "BmmBackward", "ConvolutionBackward", "CompiledFunctionBackward")
"""What stands behind scores that come from a layer as they are."""


def trained(calls: Iterable[LossCall], losses: Collection[str]) -> list[list[LossCall]]:
    """The calls of these losses that gradients flow from, by the line they stand in."""
    by_place: dict[tuple[str, Place | None], list[LossCall]] = {}
    for call in calls:
        if call.loss in losses and call.output_requires_grad and call.input is not None and call.target is not None:
            by_place.setdefault((call.loss, call.place), []).append(call)
    return list(by_place.values())


def given(call: LossCall) -> TensorFact:
    """What the loss was given first."""
    return call.input or TensorFact()


def wanted(call: LossCall) -> TensorFact:
    """What the loss was given second."""
    return call.target or TensorFact()


def looked_at(calls: Iterable[LossCall]) -> list[LossCall]:
    """The calls whose values were read."""
    return [call for call in calls if given(call).low is not None]


def all_made_by(calls: Sequence[LossCall], nodes: Collection[str]) -> str:
    """The one node among these that made every prediction, or nothing."""
    makers = {given(call).made_by for call in calls}
    return next(iter(makers)) if len(makers) == 1 and makers <= set(nodes) else ""


def is_binary(fact: TensorFact) -> bool:
    """Is every value 0 or 1? Of all numbers in [0, 1] with one mean, these have the largest spread."""
    if fact.low != 0 or fact.high != 1 or fact.mean is None or fact.spread is None:
        return False
    return abs(fact.spread**2 - fact.mean * (1 - fact.mean)) < 1e-4


def classes_of(call: LossCall) -> int:
    """How many classes a classification loss was given scores for."""
    shape = given(call).shape
    return shape[0] if len(shape) == 1 else shape[1] if shape else 0


def labels(calls: Iterable[LossCall]) -> Counter[int] | None:
    """How often each label occurred in the calls that were read; None if some were not kept."""
    found: Counter[int] = Counter()
    for call in calls:
        classes = wanted(call).classes
        if classes is not None:
            if classes.distinct > len(classes.counts):
                return None
            found.update(classes.counts)
    return found


def embeddings(models: Iterable[ModelSeen]) -> list[ModuleFact]:
    """The layers of the models that turn ids of a vocabulary into vectors."""
    return [module for model in models for module in model.modules if "num_embeddings" in module.numbers]


def entropy(counts: Iterable[float]) -> float:
    """Of a distribution given as counts, in nats: the loss of always predicting just that."""
    sizes = [count for count in counts if count > 0]
    total = sum(sizes)
    return -sum(size / total * math.log(size / total) for size in sizes)


def starts_fresh(record: Record) -> bool:
    """Does the run begin with weights that nothing was loaded into?"""
    return not any(event.matched and event.step == 0 for event in record.of(StateLoaded))


def shape_and_range(call: LossCall) -> list[Evidence]:
    """What the prediction was, for a report."""
    fact = given(call)
    evidence = [Evidence("input shape", str(list(fact.shape)))]
    if fact.low is not None and fact.high is not None:
        evidence.append(Evidence("input range", f"{fact.low:.3g} to {fact.high:.3g}"))
    return evidence
