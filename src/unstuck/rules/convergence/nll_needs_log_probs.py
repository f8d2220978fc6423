"""O16: NLLLoss given raw scores or probabilities, where it wants log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.findings import Finding, Fix, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.rules import predictions
from unstuck.source.edit import Editor, Edits, fix_with
from unstuck.source.flow import behind, producers
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Group, Tensor

if TYPE_CHECKING:
    from unstuck.source import Script

rule = Rule(
    code="O16",
    name="nll-needs-log-probs",
    title="NLLLoss on raw scores or plain probabilities",
    severity=Severity.ERROR,
    explains=("O01", "O07", "M14", "G08", "G10", "R01"),
)

SCORES = frozenset(
    "Linear Bilinear LazyLinear Conv1d Conv2d Conv3d LazyConv1d LazyConv2d LazyConv3d ConvTranspose1d ConvTranspose2d "
    "ConvTranspose3d BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm GroupNorm linear conv1d conv2d conv3d".split()
)
"""Layers whose output can be any number."""
SQUASHED = frozenset({"sigmoid", "tanh", "relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "softplus"})
NO_FLOOR = (
    "nll_loss only picks the number at the target's place and negates it, without any logarithm: the loss sinks "
    "without end as that one number grows, and nothing holds the other classes down."
)
ALL_HIGH = (
    "nll_loss only picks the number at the target's place and negates it, without any logarithm: the loss is lowest "
    "when all classes have the highest score at once."
)
NEGATED = (
    "nll_loss only picks the number at the target's place and negates it, without any logarithm: on probabilities it "
    "runs from 0 to -1, and an example that is confidently wrong gets almost no gradient."
)
SOFTMAX_NAMES = {"softmax": "log_softmax", "Softmax": "LogSoftmax"}


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every way into nll_loss ends in something that is no log-probability."""
    for call, makers in predictions.training_losses(script, ("nll_loss",)):
        if not _is_averaged(call) or _is_completed(script, call):
            continue
        if all(maker.op == "softmax" for maker in makers):
            yield _finding(call, makers, "plain probabilities (softmax)", NEGATED, _with_log(script, call, makers))
        elif all(maker.op in SCORES for maker in makers):
            yield _finding(call, makers, "raw scores", NO_FLOOR, _to_cross_entropy(script, call))
        elif all(maker.op in SCORES or maker.op in SQUASHED for maker in makers):
            squashed = next(maker.op for maker in makers if maker.op in SQUASHED)
            fix = f"Give it log_softmax of the scores without {squashed}, or use CrossEntropyLoss on them."
            yield _finding(call, makers, f"the output of {squashed}", ALL_HIGH, Fix(fix))


def _is_averaged(call: Happened) -> bool:
    """Without the mean, nll_loss also serves to pick each target's score or probability, for a weight or a metric."""
    options = call.options
    return options.get("reduction", Const("mean")) == Const("mean") and not options.keys() & {"reduce", "size_average"}


def _is_completed(script: Script, call: Happened) -> bool:
    """Is the picked number part of a formula: `nll_loss(s, y) + logsumexp(s)` or `1 + nll_loss(p, y)`?"""
    for backward in script.facts.backwards:
        history = [value for value in behind(backward.value or Group([])) if isinstance(value, Tensor)]
        if not any(value is call.result for value in history):
            continue
        if any(value.op == "logsumexp" or _is_log_of_sum(value) or _is_counted_from(value, call) for value in history):
            return True
    return False


def _is_log_of_sum(value: Tensor) -> bool:
    inner = list(producers(value.inputs[0])) if value.op == "log" and value.inputs else []
    return any(isinstance(item, Tensor) and item.op == "sum" for item in inner)


def _is_counted_from(value: Tensor, call: Happened) -> bool:
    """`1 + loss`: a number other than 0 directly beside the loss."""
    if value.op not in ("add", "sub"):
        return False
    number = any(isinstance(side, Const) and side.value not in (0, None) for side in value.inputs)
    return number and any(made is call.result for side in value.inputs for made in producers(side))


def _finding(call: Happened, makers: Sequence[Tensor], given: str, cause: str, fix: Fix) -> Finding:
    return rule.finding(
        Witness.SOURCE,
        f"nll_loss wants log-probabilities and is given {given}.",
        cause=cause,
        fix=fix,
        subject=Subject("call", f"nll_loss at {call.event.place}"),
        place=call.event.place,
        related=[maker.place for maker in makers],
    )


def _to_cross_entropy(script: Script, call: Happened) -> Fix:
    edits = predictions.renamed_loss(script, Editor(script), call, "cross_entropy", "CrossEntropyLoss")
    return fix_with("Use cross_entropy (CrossEntropyLoss), which applies log_softmax to raw scores.", edits, "safe")


def _with_log(script: Script, call: Happened, makers: Sequence[Tensor]) -> Fix:
    """log_softmax in place of softmax; safe where only the loss sees it."""
    editor = Editor(script)
    edits = _renamed_softmax(script, editor, makers[0]) if len(makers) == 1 else None
    local = edits is not None and predictions.stands_in(editor, makers[0], call)
    return fix_with("Use log_softmax in place of softmax.", edits, "safe" if local else "unsafe")


def _renamed_softmax(script: Script, editor: Editor, maker: Tensor) -> Edits | None:
    node = editor.call_at(maker.place) if maker.place else None
    name = editor.text_of(node.func) if node is not None else None
    last = name.rpartition(".")[2] if name else ""
    if node is None or last not in SOFTMAX_NAMES or not predictions.is_function_of_torch(script, node, last):
        return None
    return editor.rename_callee(node, SOFTMAX_NAMES[last])
