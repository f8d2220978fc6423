"""M02: softmax over the batch axis, or without `dim`."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import AxisGuessed, Forward, LossCall, Place
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.facts import Called
from unstuck.source.flow import argument, behind, producers
from unstuck.source.values import Const, Instance, Tensor, Value, alternatives

rule = Rule(
    code="M02",
    name="softmax-dim",
    title="softmax over the batch axis, or without dim",
    severity=Severity.ERROR,
    explains=("M13", "O01", "O07", "P21", "R01", "R03", "R04", "R08"),
    needs=(Forward,),
)

FUNCTIONS = frozenset({"softmax", "log_softmax", "softmin"})
MODULES = frozenset({"Softmax", "LogSoftmax", "Softmin"})
LOSSES = ("nll_loss", "cross_entropy", "kl_div", "mse_loss", "l1_loss", "binary_cross_entropy")
KEEPS_ROWS = frozenset(
    "Linear Bilinear BatchNorm1d BatchNorm2d LayerNorm GroupNorm Conv1d Conv2d Conv3d relu leaky_relu elu gelu silu "
    "tanh sigmoid softplus dropout dropout1d dropout2d max_pool1d max_pool2d avg_pool2d MaxPool2d AvgPool2d "
    "AdaptiveAvgPool2d adaptive_avg_pool2d Dropout2d float to cuda cpu add sub mult div".split()
)
"""Operations that keep the batch as the first axis."""
SIZED = frozenset({"randn", "rand", "zeros", "ones"})

OVER_BATCH = (
    "Axis 0 is the batch, so examples compete with each other for a class, and the probabilities of one "
    "example do not sum to 1."
)
IMPLICIT = "Without dim torch uses axis 1 for 2 and 4 dimensions, and axis 0 for 1 and 3. With 3 that is the batch."
OVER_BMM = (
    "Without dim torch uses axis 0 of a tensor with 3 dimensions, such as the result of bmm, and that is the batch."
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A prediction normalised along dim=0 of a batch; a softmax without dim."""
    for call, makers in losses.training_losses(script, LOSSES):
        guilty = [_softmax(maker) for maker in makers]
        found = [softmax for softmax in guilty if softmax is not None and _is_over_batch(softmax)]
        if len(found) == len(makers) and not _ranks_the_batch(call.subject):
            yield _over_batch(script, found[0], call.event.place)
    for called in script.facts.calls:
        yield from _without_dim(script, called)


def _softmax(maker: Tensor) -> Tensor | None:
    """The softmax that made a prediction, also before a logarithm."""
    if maker.op == "log" and maker.inputs:
        inner = list(producers(maker.inputs[0]))
        maker = inner[0] if len(inner) == 1 and isinstance(inner[0], Tensor) else maker
    return maker if maker.op in FUNCTIONS else None


def _is_over_batch(softmax: Tensor) -> bool:
    dim = argument(softmax, "dim", 0)
    return dim == Const(0) and bool(softmax.inputs) and _is_batched(softmax.inputs[0])


def _ranks_the_batch(target: Value | None) -> bool:
    """Is the target normalised over the batch too, as in ranking the examples of a list?"""
    history = behind(target, through_cuts=True) if target is not None else ()
    return any(
        isinstance(item, Tensor) and item.op in FUNCTIONS and argument(item, "dim", 0) == Const(0) for item in history
    )


def _comes_in_batches(value: Tensor) -> bool:
    """With batch_size=None a loader returns single examples, or batches that it did not make."""
    loaders = [item for item in value.args if isinstance(item, Instance)]
    sizes = [loader.kwargs.get("batch_size", (*loader.args[1:2], Const(1))[0]) for loader in loaders]
    single = any(option == Const(None) for size in sizes for option in alternatives(size))
    return not single and (value.op == "batch" or bool(loaders))


def _is_batched(value: Value) -> bool:
    """Is the first axis certainly the batch of a loader, or of a created tensor with two axes?"""
    while isinstance(value, Tensor):
        if value.op == "batch" or (value.op == "data" and not value.inputs):
            return _comes_in_batches(value)
        if value.op == "part" and value.inputs and isinstance(value.inputs[0], Tensor) and value.inputs[0].op == "data":
            value = value.inputs[0]
        elif value.op in SIZED:
            return len(value.inputs) > 1 and all(isinstance(item, Const) for item in value.inputs[:2])
        elif value.inputs and (value.op in KEEPS_ROWS or _keeps_first_axis(value)):
            value = value.inputs[0]
        else:
            return False
    return False


def _keeps_first_axis(value: Tensor) -> bool:
    """`flatten(x, 1)` and `x.view(n, -1)`: still one row per example."""
    if value.op == "flatten":
        start = argument(value, "start_dim", 0)
        return start == Const(1) or (start is None and value.module is not None)
    return value.op in ("view", "reshape") and (len(value.args) > 1 or value.module is not None)


def _over_batch(script: Script, softmax: Tensor, loss: Place | None) -> Finding:
    editor = Editor(script)
    edits = editor.set_keyword(softmax.place, "dim", "1") if softmax.place and _names_dim(editor, softmax) else None
    return rule.finding(
        f"{softmax.op} runs over dim=0, the batch.",
        cause=OVER_BATCH,
        fix=fix_with("Use dim=1 (or -1), the class axis.", edits, "unsafe"),
        subject=Subject.at("call", "softmax", softmax.place),
        place=softmax.place,
        related=(loss,),
    )


def _names_dim(editor: Editor, softmax: Tensor) -> bool:
    node = editor.call_at(softmax.place) if softmax.place else None
    return node is not None and any(keyword.arg == "dim" for keyword in node.keywords)


def _without_dim(script: Script, called: Called) -> Iterator[Finding]:
    function = called.name.startswith("torch.nn.functional.") and called.last in FUNCTIONS
    module = called.name.startswith("torch.nn.") and called.last in MODULES
    if not (function or module) or len(called.args) > function or called.kwargs.keys() & {"dim", "_stacklevel"}:
        return
    if any(keyword.arg is None for keyword in called.node.keywords):
        return
    over_bmm = function and bool(called.args) and _is_bmm(called.args[0])
    edits = Editor(script).set_keyword(called.place, "dim", "-1")
    yield rule.finding(
        f"{called.last} has no dim" + (" and uses axis 0 of the result of bmm." if over_bmm else "."),
        cause=OVER_BMM if over_bmm else IMPLICIT,
        fix=fix_with("Pass dim: dim=-1 if the classes are the last axis, dim=1 for images.", edits, "unsafe"),
        subject=Subject.at("call", "softmax", called.place),
        place=called.place,
        related=_losses_of(script, called) if module else (),
        severity=Severity.ERROR if over_bmm else Severity.ADVICE,
        confidence=Confidence.CERTAIN if over_bmm else Confidence.LIKELY,
    )


def _is_bmm(value: Value) -> bool:
    """Certainly a tensor with three dimensions that torch.bmm made."""
    while isinstance(value, Tensor) and value.op in ("div", "mult", "add", "dropout", "masked_fill") and value.inputs:
        value = value.inputs[0]
    return isinstance(value, Tensor) and value.op in ("bmm", "baddbmm")


def _losses_of(script: Script, called: Called) -> list[Place | None]:
    """The losses that get the output of the module created here."""
    found = []
    for call in script.facts.losses:
        makers = losses.makers(call.value) if call.value is not None else []
        made = [maker.module for maker in makers if isinstance(maker, Tensor)]
        if any(module is not None and module.place == called.place for module in made):
            found.append(call.event.place)
    return found


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A prediction from a softmax over axis 0, and softmaxes without dim."""
    for calls in losses.trained(record.of(LossCall), LOSSES):
        if all(_is_over_examples(call) for call in calls):
            yield _over_examples(calls[0])
    sizes = {losses.wanted(call).shape[0] for call in record.of(LossCall) if losses.wanted(call).shape}
    for guessed in record.of(AxisGuessed):
        # Attention heads may be folded into the batch.
        first = guessed.shape[0] if len(guessed.shape) == 3 else 1
        yield _guessed(guessed, over_batch=first > 1 and any(first % size == 0 for size in sizes if size > 1))


def _is_over_examples(call: LossCall) -> bool:
    """Are rows of (batch, classes) normalised over the batch, while the target is not?"""
    given, target = losses.given(call), losses.wanted(call)
    two_axes = len(given.shape) == 2 and min(given.shape) > 1
    in_rows = call.loss in ("nll_loss", "cross_entropy") and "int" in target.dtype
    return given.axis == 0 and two_axes and (in_rows or (target.sums_to_one and not given.sums_to_one))


def _over_examples(call: LossCall) -> Finding:
    name = "log_softmax" if losses.given(call).made_by.startswith("Log") else "softmax"
    return rule.finding(
        f"{name} runs over dim=0, the batch of {losses.given(call).shape[0]}.",
        cause=OVER_BATCH,
        fix="Use dim=1 (or -1), the class axis.",
        subject=Subject.at("call", name, call.place, word="fed to"),
        place=call.place,
        evidence=[Evidence("shape", str(list(losses.given(call).shape)))],
    )


def _guessed(event: AxisGuessed, *, over_batch: bool) -> Finding:
    took = f" and uses axis 0 of {list(event.shape)}, the batch" if over_batch else ""
    return rule.finding(
        f"{event.function} has no dim{took}.",
        cause=IMPLICIT,
        fix="Pass dim: dim=-1 if the classes are the last axis, dim=1 for images.",
        subject=Subject.at("call", event.function, event.place),
        place=event.place,
        evidence=[Evidence("shape", str(list(event.shape))), Evidence("axis used", event.axis)],
        severity=Severity.ERROR if over_batch else Severity.ADVICE,
        confidence=Confidence.LIKELY,
    )
