"""What losses get, in a script, in a run or in a probe: predictions, targets and the operations that made them."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from unstuck.events import LossCall, ModelSeen, ModuleFact, Place, StateLoaded, TensorFact
from unstuck.findings import Evidence
from unstuck.record import Record
from unstuck.source import Script
from unstuck.source.edits import syntax
from unstuck.source.edits.edit import Editor, Edits
from unstuck.source.flow import producers
from unstuck.source.trace import Happened
from unstuck.source.values import Instance, Tensor, Value

GUESSED = 0.85
"""A mean loss above this share of that of the best constant answer has learned nothing from the inputs."""
FEWEST_VALUES = 20
LAYERS = ("AddmmBackward", "MmBackward", "BmmBackward", "ConvolutionBackward", "CompiledFunctionBackward")
"""Graph nodes of scores that come directly from a layer."""


def trained(calls: Iterable[LossCall], losses: Collection[str]) -> list[list[LossCall]]:
    """The calls of these losses that gradients flow from, grouped by line."""
    by_place: dict[tuple[str, Place | None], list[LossCall]] = {}
    for call in calls:
        if call.loss in losses and call.output_requires_grad and call.input is not None and call.target is not None:
            by_place.setdefault((call.loss, call.place), []).append(call)
    return list(by_place.values())


def given(call: LossCall) -> TensorFact:
    """The first argument of the loss."""
    return call.input or TensorFact()


def wanted(call: LossCall) -> TensorFact:
    """The second argument of the loss."""
    return call.target or TensorFact()


def looked_at(calls: Iterable[LossCall]) -> list[LossCall]:
    """The calls whose values were read."""
    return [call for call in calls if given(call).low is not None]


def all_made_by(calls: Sequence[LossCall], nodes: Collection[str]) -> str:
    """The one node among these that made every prediction, or ""."""
    makers = {given(call).made_by for call in calls}
    return next(iter(makers)) if len(makers) == 1 and makers <= set(nodes) else ""


def is_binary(fact: TensorFact) -> bool:
    """Is every value 0 or 1? Among numbers in [0, 1] with the same mean, these have the largest variance."""
    if fact.low != 0 or fact.high != 1 or fact.mean is None or fact.spread is None:
        return False
    return abs(fact.spread**2 - fact.mean * (1 - fact.mean)) < 1e-4


def classes_of(call: LossCall) -> int:
    """How many classes a classification loss has scores for."""
    shape = given(call).shape
    return shape[0] if len(shape) == 1 else shape[1] if shape else 0


def labels(calls: Iterable[LossCall]) -> Counter[int] | None:
    """How often each label occurred in the calls that were read; None if some were not recorded."""
    found: Counter[int] = Counter()
    for call in calls:
        classes = wanted(call).classes
        if classes is not None:
            if classes.distinct > len(classes.counts):
                return None
            found.update(classes.counts)
    return found


def are_classes(calls: Iterable[LossCall]) -> bool:
    """Are the targets labels?"""
    return any(wanted(call).classes is not None for call in calls)


def ends_at_a_guess(calls: Sequence[LossCall]) -> bool:
    """Was the loss of one line, over the second half of the run, that of the best constant answer, or above?"""
    values = [call.value for call in calls if call.value is not None]
    guess, late = constant_answer(calls), values[len(values) // 2 :]
    return guess is not None and len(values) >= FEWEST_VALUES and sum(late) / len(late) >= GUESSED * guess


def constant_answer(calls: Sequence[LossCall]) -> float | None:
    """The entropy of the labels, or the variance of the targets; None for other losses."""
    if not calls or calls[0].reduction not in ("", "mean") or any(call.weighted for call in calls):
        return None
    if are_classes(calls):
        counts = labels(calls)
        return entropy(counts.values()) if counts else None
    spreads = sorted(fact.spread for call in calls if (fact := wanted(call)).spread is not None)
    return spreads[len(spreads) // 2] ** 2 if spreads and calls[0].loss == "mse_loss" else None


def embeddings(models: Iterable[ModelSeen]) -> list[ModuleFact]:
    """The layers of the models that turn ids of a vocabulary into vectors."""
    return [module for model in models for module in model.modules if "num_embeddings" in module.numbers]


def entropy(counts: Iterable[float]) -> float:
    """The entropy of a distribution given as counts, in nats: the loss of always predicting it."""
    sizes = [count for count in counts if count > 0]
    total = sum(sizes)
    return -sum(size / total * math.log(size / total) for size in sizes)


def starts_fresh(record: Record) -> bool:
    """Does the run start with untrained weights?"""
    return not record.continues and not any(event.matched and event.step == 0 for event in record.of(StateLoaded))


def shape_and_range(call: LossCall) -> list[Evidence]:
    """Shape and range of the prediction, for a report."""
    fact = given(call)
    evidence = [Evidence("input shape", str(list(fact.shape)))]
    if fact.low is not None and fact.high is not None:
        evidence.append(Evidence("input range", f"{fact.low:.3g} to {fact.high:.3g}"))
    return evidence


def training_losses(script: Script, losses: Collection[str]) -> Iterator[tuple[Happened, list[Tensor]]]:
    """Calls of these loss functions where gradients are recorded, with what may have made the prediction.

    Skips calls whose prediction may come from something unknown.
    """
    for call in script.facts.losses:
        event = call.event
        if not isinstance(event, LossCall) or event.loss not in losses or event.output_requires_grad is False:
            continue
        made = makers(call.value) if call.value is not None else []
        known = [maker for maker in made if isinstance(maker, Tensor)]
        if made and len(known) == len(made):
            yield call, known


def makers(value: Value) -> list[Value]:
    """What made a value, looking through reshapes, casts, branches and dropout."""
    found: list[Value] = []
    for maker in producers(value):
        if isinstance(maker, Tensor) and maker.op == "dropout" and maker.inputs:
            found += makers(maker.inputs[0])
        else:
            found.append(maker)
    return found


def loss_name(call: Happened) -> str:
    """The functional name of the loss that was called."""
    assert isinstance(call.event, LossCall)
    return call.event.loss


def loss_object(call: Happened) -> Instance | None:
    """The loss module that was called, or None for a function."""
    return call.result.module if isinstance(call.result, Tensor) else None


def calls_of(script: Script, loss: Instance) -> list[Happened]:
    """Every call of one loss module."""
    return [call for call in script.facts.losses if loss_object(call) is loss]


def stands_in(editor: Editor, maker: Tensor, call: Happened) -> bool:
    """Is the operation written inside the loss call itself, so that nothing else uses its result?"""
    inner = editor.call_at(maker.place) if maker.place else None
    outer = editor.call_at(call.event.place) if call.event.place else None
    return inner is not None and outer is not None and any(node is inner for node in ast.walk(outer))


def is_function_of_torch(script: Script, node: ast.AST, name: str) -> bool:
    """Is this a call of the function in torch or the method of a tensor, and not a namesake of the user's?"""
    for called in script.facts.calls:
        if called.node is node:
            method = called.name == f".{name}" and isinstance(called.receiver, Tensor)
            return method or (called.name.startswith("torch.") and called.last == name)
    return False


def without(editor: Editor, maker: Tensor) -> Edits | None:
    """Replace the call of an activation by its argument: `torch.sigmoid(x)` and `x.sigmoid()` become `x`.

    None for a layer of a Sequential, whose call is not in the text.
    """
    node = editor.call_at(maker.place) if maker.place else None
    made_here = maker.module is not None and maker.module.place == maker.place
    if node is None or made_here or len(node.args) > 1:
        return None
    inner = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
    text = editor.text_of(inner) if inner is not None else None
    if inner is None or text is None:
        return None
    return editor.replace(node, text if isinstance(inner, syntax.ATOMS) else f"({text})")


def renamed_loss(script: Script, editor: Editor, call: Happened, function: str, module: str) -> Edits | None:
    """Call another loss instead: the function where it is called, a module where it is created.

    A module that is also called elsewhere cannot be renamed for the sake of one call.
    """
    made = loss_object(call)
    if made is None:
        return editor.rename_callee(call.event.place, function) if call.event.place else None
    places = {other.event.place for other in calls_of(script, made)}
    return editor.rename_callee(made.place, module) if made.place and places == {call.event.place} else None
