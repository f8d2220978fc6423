"""O16: NLLLoss given raw scores or probabilities instead of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unstuck.events import Backward, LossCall, Setup
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.flow import behind, producers
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Group, Tensor


class Input(Variant):
    """What nll_loss gets instead of log-probabilities."""

    RAW_SCORES = "raw-scores", "NLLLoss gets raw scores"
    PROBABILITIES = "probabilities", "NLLLoss gets probabilities without the logarithm"
    SQUASHED = "squashed", "NLLLoss gets the output of an activation such as sigmoid or ReLU"


rule = Rule(
    code="O16",
    name="nll-needs-log-probs",
    title="NLLLoss on raw scores or plain probabilities",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "M14", "O01", "O07", "O25", "P21", "R01", "R03", "R08"),
    needs=(LossCall,),
    changes_loss=True,
    variants=Input.titles(),
)

SCORES = frozenset(
    "Linear Bilinear LazyLinear Conv1d Conv2d Conv3d LazyConv1d LazyConv2d LazyConv3d ConvTranspose1d ConvTranspose2d "
    "ConvTranspose3d BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm GroupNorm linear conv1d conv2d conv3d".split()
)
"""Layers whose output can be any number."""
SQUASHED = frozenset({"sigmoid", "tanh", "relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "softplus"})
PICKS = "nll_loss picks the number at the target's index and negates it, without any logarithm:"
CAUSES = {
    Input.RAW_SCORES: f"{PICKS} the loss falls forever as that number grows, and nothing lowers the other scores.",
    Input.SQUASHED: f"{PICKS} the loss is lowest when all classes have the highest score at once.",
    Input.PROBABILITIES: f"{PICKS} on probabilities it runs from 0 to -1, and a confidently wrong example gets almost "
    "no gradient.",
}
SQUASHERS = {"SigmoidBackward0": "sigmoid", "TanhBackward0": "tanh", "ReluBackward0": "relu"}
ABOVE_ZERO = 1e-3
"""Beyond rounding."""
SOFTMAX_NAMES = {"softmax": "log_softmax", "Softmax": "LogSoftmax"}


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every path into nll_loss ends in something other than a log-probability."""
    for call, makers in losses.training_losses(script, ("nll_loss",)):
        if not _is_averaged(call) or _is_completed(script, call):
            continue
        if all(maker.op == "softmax" for maker in makers):
            fix = _with_log(script, call, makers)
            yield _finding(Input.PROBABILITIES, call, makers, "plain probabilities (softmax)", fix)
        elif all(maker.op in SCORES for maker in makers):
            edits = losses.renamed_loss(script, Editor(script), call, "cross_entropy", "CrossEntropyLoss")
            text = "Use cross_entropy (CrossEntropyLoss), which applies log_softmax to raw scores."
            yield _finding(Input.RAW_SCORES, call, makers, "raw scores", fix_with(text, edits, "safe"))
        elif all(maker.op in SCORES or maker.op in SQUASHED for maker in makers):
            squashed = next(maker.op for maker in makers if maker.op in SQUASHED)
            text = f"Pass log_softmax of the scores without {squashed}, or use CrossEntropyLoss on them."
            yield _finding(Input.SQUASHED, call, makers, f"the output of {squashed}", Fix(text))


def _is_averaged(call: Happened) -> bool:
    """Without the mean, nll_loss is also used to pick each target's score or probability, for a weight or a metric."""
    options = call.options
    return options.get("reduction", Const("mean")) == Const("mean") and not options.keys() & {"reduce", "size_average"}


def _is_completed(script: Script, call: Happened) -> bool:
    """Is the loss part of a formula: `nll_loss(s, y) + logsumexp(s)` or `1 + nll_loss(p, y)`?"""
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
    """Is it `1 + loss`, a sum with a nonzero constant?"""
    if value.op not in ("add", "sub"):
        return False
    number = any(isinstance(side, Const) and side.value not in (0, None) for side in value.inputs)
    return number and any(made is call.result for side in value.inputs for made in producers(side))


def _finding(variant: Input, call: Happened, makers: Sequence[Tensor], given: str, fix: Fix) -> Finding:
    return rule.finding(
        f"nll_loss expects log-probabilities but gets {given}.",
        cause=CAUSES[variant],
        fix=fix,
        subject=Subject.at("call", "nll_loss", call.event.place),
        place=call.event.place,
        related=[maker.place for maker in makers],
        variant=variant,
    )


def _with_log(script: Script, call: Happened, makers: Sequence[Tensor]) -> Fix:
    """log_softmax instead of softmax; safe if only the loss reads it."""
    editor = Editor(script)
    edits = _renamed_softmax(script, editor, makers[0]) if len(makers) == 1 else None
    local = edits is not None and losses.stands_in(editor, makers[0], call)
    return fix_with("Use log_softmax instead of softmax.", edits, "safe" if local else "unsafe")


def _renamed_softmax(script: Script, editor: Editor, maker: Tensor) -> Edits | None:
    node = editor.call_at(maker.place) if maker.place else None
    name = editor.text_of(node.func) if node is not None else None
    last = name.rpartition(".")[2] if name else ""
    if node is None or last not in SOFTMAX_NAMES or not losses.is_function_of_torch(script, node, last):
        return None
    return editor.rename_callee(node, SOFTMAX_NAMES[last])


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The probed batch reached nll_loss as something other than log-probabilities."""
    yield from _from_calls(setup.losses, setup.backwards)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The input of nll_loss came straight from a layer or a softmax, or is above 0."""
    yield from _from_calls(record.of(LossCall), record.of(Backward))


def _from_calls(calls: Iterable[LossCall], backwards: Iterable[Backward]) -> Iterator[Finding]:
    groups = losses.trained(calls, ("nll_loss",))
    if not groups or any(_completes(backward) for backward in backwards):
        return
    for group in groups:
        means = [call for call in group if call.reduction == "mean"]
        makers = {losses.given(call).made_by for call in means}
        highs = [fact.high for call in losses.looked_at(means) if (fact := losses.given(call)).high is not None]
        if not means or any(maker.startswith("LogSoftmax") for maker in makers):
            continue
        if makers == {"SoftmaxBackward0"}:
            fix = "Use log_softmax instead of softmax."
            yield _measured(Input.PROBABILITIES, means, "plain probabilities (softmax)", fix)
        elif all(maker.startswith(losses.LAYERS[:4]) for maker in makers) or (highs and max(highs) > ABOVE_ZERO):
            squashed = next((word for node, word in SQUASHERS.items() if makers == {node}), "")
            given = f"the output of {squashed}" if squashed else f"numbers up to {max(highs, default=0):.3g}"
            fix = "Use cross_entropy (CrossEntropyLoss) on the raw scores, which applies log_softmax to them."
            yield _measured(Input.SQUASHED if squashed else Input.RAW_SCORES, means, given, fix)


def _completes(backward: Backward) -> bool:
    """Is it `nll_loss(s, y) + logsumexp(s)`, which adds the normalization by hand?"""
    return backward.graph is not None and "LogsumexpBackward0" in backward.graph.names


def _measured(variant: Input, calls: Sequence[LossCall], given: str, fix: str) -> Finding:
    values = [call.value for call in calls if call.value is not None]
    evidence = [Evidence("calls seen", len(calls)), *losses.shape_and_range(calls[0])]
    if values:
        evidence.append(Evidence("loss", f"{values[0]:.3g} to {values[-1]:.3g}"))
    return rule.finding(
        f"nll_loss expects log-probabilities, which are never above 0, but gets {given}.",
        cause=CAUSES[variant],
        fix=fix,
        subject=Subject.at("call", "nll_loss", calls[0].place),
        place=calls[0].place,
        evidence=evidence,
        variant=variant,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Pass logarithms to the loss, of scores or of probabilities."""
    from unstuck.interventions import GiveLoss

    yield (GiveLoss("log" if finding.variant == Input.PROBABILITIES else "log-softmax"),)
