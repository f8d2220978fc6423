"""O15: padding counts toward the loss, as targets or as zeros in the mean."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from unstuck.events import Backward, BatchSeen, ClassFact, LossCall, ModelSeen, ModuleFact, OperationFact
from unstuck.events.losses import CLASS_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import loop_order, losses
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.flow import behind
from unstuck.source.reader import knowledge
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Instance, Tensor, Value

rule = Rule(
    code="O15",
    name="padded-loss",
    title="padding counts toward the loss",
    severity=Severity.WARNING,
    explains=("O07", "R01", "R02", "R08", "R09"),
    needs=(LossCall,),
)

MASK = pattern(r"mask|pad|valid", re.I)
DILUTED = (
    "mean() divides by all positions, padding included, so the loss and its gradients shrink with the share of "
    "padding, and batches of short sequences count less."
)
LEARNED = (
    "The model is rewarded for predicting padding, the easiest and often the most frequent target, so the loss looks "
    "better than the model is."
)
MASKED_MEAN = Subject("loss", "masked mean")
PER_POSITION = ("nllloss", "nllloss2d", "mseloss", "binarycrossentropy", "binarycrossentropywithlogits", "smoothl1loss")
FEWEST_PADS = 0.05
FEWEST_BATCHES = 3
SEQUENCE = ("view", "reshape", "flatten")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A mask multiplied in before a plain mean, and pad ids among the targets of a sequence."""
    seen: set[int] = set()
    for backward in script.facts.backwards:
        history = [v for v in behind(backward.value) if isinstance(v, Tensor)] if backward.value is not None else []
        divided = {id(value.inputs[0]) for value in history if value.op == "div" and value.inputs}
        for value in history:
            if value.op == "mean" and id(value) not in seen | divided and _is_diluted(value):
                seen.add(id(value))
                yield _diluted(script, value)
    for call in script.facts.losses if "-100" not in script.text else ():
        padding = _learned_padding(call)
        if padding is not None:
            yield _learned(script, call, *padding)


def _is_diluted(mean: Tensor) -> bool:
    """Is it `(losses * mask).mean()`, with one loss per position?"""
    if mean.args or mean.options or not mean.inputs or not isinstance(mean.inputs[0], Tensor):
        return False
    product = mean.inputs[0]
    if product.op != "mult" or not isinstance(product.node, ast.BinOp):
        return False
    sides = (product.node.left, product.node.right)
    masked = any(MASK.search(ast.unparse(side)) for side in sides)
    weighted = any(isinstance(item, Tensor) and item.op == "div" for side in product.inputs for item in behind(side))
    chosen = any(_is_confidence(side) for side in product.inputs if not _is_per_position(side))
    return masked and not weighted and not chosen and any(_is_per_position(value) for value in product.inputs)


def _is_confidence(mask: Value) -> bool:
    """Is it made of predictions, as in FixMatch: examples are left out on purpose, and the mean is over all of them?"""
    operations = {item.op for item in behind(mask, through_cuts=True) if isinstance(item, Tensor)}
    return "compare" in operations and bool(operations & {"softmax", "sigmoid"})


def _is_per_position(value: Value) -> bool:
    return any(
        isinstance(item, Tensor)
        and item.op in knowledge.LOSS_FUNCTIONS
        and item.options.get("reduction") == Const("none")
        for item in behind(value)
    )


def _diluted(script: Script, mean: Tensor) -> Finding:
    product = mean.inputs[0]
    assert isinstance(product, Tensor)
    assert isinstance(product.node, ast.BinOp)
    left, right = ast.unparse(product.node.left), ast.unparse(product.node.right)
    mask = left if MASK.search(left) else right
    edits: Edits | None = None
    if mean.place is not None:
        edits = Editor(script).replace(mean.place, f"({left} * {right}).sum() / {mask}.sum()")
    return rule.finding(
        f"Masked positions count as zeros in the mean: ({left} * {right}).mean() divides by all positions.",
        cause=DILUTED,
        fix=fix_with(f"Divide by the number of unmasked positions: .sum() / {mask}.sum().", edits, "unsafe"),
        subject=MASKED_MEAN,
        place=mean.place,
    )


def _learned_padding(call: Happened) -> tuple[Instance, object] | None:
    """The embedding that declares a pad id, when the targets are a flattened sequence and nothing ignores that id."""
    event, target = call.event, call.subject
    if not isinstance(event, LossCall) or event.loss not in CLASS_LOSSES:
        return None
    if {"ignore_index", "weight"} & call.options.keys() or call.options.get("reduction") == Const("none"):
        return None
    if not isinstance(target, Tensor) or target.op not in SEQUENCE or call.value is None:
        return None
    for model in loop_order.modules_behind([call.value]):
        for part in knowledge.parts(model):
            pad = part.kwargs.get("padding_idx") if part.last == "Embedding" else None
            # The scores must be flattened too: one row per token, not per sequence.
            per_token = isinstance(call.value, Tensor) and call.value.op in SEQUENCE
            if isinstance(pad, Const) and isinstance(pad.value, int) and per_token:
                return part, pad.value
    return None


def _learned(script: Script, call: Happened, embedding: Instance, pad: object) -> Finding:
    loss = getattr(call.event, "loss", "cross_entropy")
    return rule.finding(
        f"{loss} does not ignore the pad id {pad} among its targets.",
        cause=LEARNED,
        fix=f"Pass ignore_index={pad} to the loss.",
        subject=Subject.at("call", loss, call.event.place),
        place=call.event.place,
        related=(embedding.place,),
        confidence=Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A mean over losses that a mask has partly set to 0, and the pad id of an embedding among the targets."""
    for backward in record.of(Backward):
        mean = _masked_mean(backward)
        if mean is not None:
            yield _diluted_in_run(backward, mean.share or 0.0)
            break
    vocabularies = [module for module in losses.embeddings(record.of(ModelSeen)) if "padding_idx" in module.numbers]
    batches = [batch for batch in record.of(BatchSeen) if batch.model] if vocabularies else []
    for calls in losses.trained(record.of(LossCall), CLASS_LOSSES) if vocabularies else ():
        found = list(_learned_in_run(calls, vocabularies))
        yield from found or _tagged(calls, batches, {int(module.numbers["padding_idx"]) for module in vocabularies})


def _masked_mean(backward: Backward) -> OperationFact | None:
    """A mean of masked losses, unless a later division may correct it."""
    if backward.graph is None:
        return None
    names = backward.graph.names
    above = names[: names.index("MeanBackward0")] if "MeanBackward0" in names else names
    means = [fact for fact in backward.graph.operations if fact.name == "mean" and (fact.share or 0) >= FEWEST_PADS]
    found = [fact for fact in means if fact.behind[:1] == ("mul",) and set(fact.behind[1:2]) & set(PER_POSITION)]
    return found[0] if found and "DivBackward0" not in above else None


def _diluted_in_run(backward: Backward, share: float) -> Finding:
    return rule.finding(
        f"{100 * share:.3g} % of the positions are masked but count as zeros in the mean of the loss.",
        cause=DILUTED,
        fix="Divide by the number of unmasked positions: (losses * mask).sum() / mask.sum().",
        subject=MASKED_MEAN,
        place=backward.place,
        evidence=[Evidence("masked positions", round(100 * share, 1), "%")],
    )


def _learned_in_run(calls: list[LossCall], vocabularies: list[ModuleFact]) -> Iterator[Finding]:
    """The scores are for the vocabulary of an embedding, and its pad id is a target."""
    for module in vocabularies:
        pad = int(module.numbers["padding_idx"])
        read = [call for call in calls if losses.wanted(call).classes is not None and not call.weighted]
        own = [call for call in read if losses.classes_of(call) == module.numbers["num_embeddings"]]
        shares = [_share(call, pad) for call in own]
        if own and sum(shares) / len(shares) >= FEWEST_PADS and own[0].reduction != "none":
            share = 100 * sum(shares) / len(shares)
            yield rule.finding(
                f"{calls[0].loss} does not ignore the pad id {pad}, which is {share:.3g} % of its targets.",
                cause=LEARNED,
                fix=f"Pass ignore_index={pad} to the loss.",
                subject=Subject.at("call", calls[0].loss, calls[0].place),
                place=calls[0].place,
                evidence=[Evidence("targets that are the pad id", round(share, 1), "%")],
                confidence=Confidence.LIKELY,
            )
            return


def _tagged(calls: list[LossCall], batches: list[BatchSeen], pads: set[int]) -> Iterator[Finding]:
    """In every batch, one class has exactly as many targets as there are pads in the inputs."""
    once = {call.step: call for call in calls if sum(other.step == call.step for other in calls) == 1}
    for pad in sorted(pads):
        pairs = [
            (fact.ids.counts.get(pad, 0), call)
            for batch in batches
            for fact in batch.inputs
            if fact.ids is not None and (call := once.get(batch.step)) is not None and _is_one_each(fact.ids, call)
        ]
        # If the number never varied, it could match by coincidence.
        if len(pairs) < FEWEST_BATCHES or len({often for often, _ in pairs}) < 2:
            continue
        share = sum(often for often, _ in pairs) / sum(math.prod(losses.wanted(call).shape) for _, call in pairs)
        same = [label for label in range(losses.classes_of(calls[0])) if _matches(label, pairs)]
        if share >= FEWEST_PADS and len(same) == 1:
            yield _tagged_finding(calls[0], pad, same[0], 100 * share, len(pairs))
            return


def _is_one_each(ids: ClassFact, call: LossCall) -> bool:
    """Is there one target for each input, none of them ignored or weighted?"""
    classes = losses.wanted(call).classes
    return classes is not None and classes.total == ids.total and not call.weighted and call.reduction != "none"


def _matches(label: int, pairs: list[tuple[int, LossCall]]) -> bool:
    counts = [(often, losses.wanted(call).classes) for often, call in pairs]
    return all(classes is not None and classes.counts.get(label, 0) == often for often, classes in counts)


def _tagged_finding(call: LossCall, pad: int, label: int, share: float, batches: int) -> Finding:
    return rule.finding(
        f"{share:.3g} % of the targets of {call.loss} are padding: in every batch, class {label} has as many targets "
        f"as there are pads (id {pad}) in the inputs.",
        cause=LEARNED,
        fix=f"Pass ignore_index={label} to the loss.",
        subject=Subject.at("call", call.loss, call.place),
        place=call.place,
        evidence=[
            Evidence("targets that are padding", round(share, 1), "%", round(100 * FEWEST_PADS, 1)),
            Evidence("batches compared", batches),
        ],
    )


def _share(call: LossCall, label: int) -> float:
    classes = losses.wanted(call).classes
    return classes.counts.get(label, 0) / classes.total if classes is not None and classes.total else 0.0
