"""M18: a layer, a loss or an operation is given a shape it cannot take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unstuck.events import Crash, InputFact
from unstuck.findings import Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import Explanation, called, crash_of, evidence_at, given, shaped
from unstuck.rules.wiring._layer_shapes import LAYERS
from unstuck.rules.wiring._rearranged import REARRANGED

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="M18",
    name="shape-mismatch",
    title="a layer, a loss or backward() is given a shape it cannot take",
    severity=Severity.ERROR,
)

_UNEQUAL = pattern(r"stack expects each tensor to be equal size, but got \[([\d, ]*)\] at entry 0 and \[([\d, ]*)\]")
_REDUCED = pattern(r"must have same reduction dim, but got \[([\d, ]+)\] X \[([\d, ]+)\]")
BY_CLASS = ("cross_entropy", "nll_loss")
"""These have a rule of their own."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """torch says which numbers do not fit; the wreck shows whose they are."""
    for signs, explanation in (LAYERS | OPERATIONS | REARRANGED).items():
        crash = crash_of(record, *signs)
        said = explanation(crash) if crash is not None and crash.function not in BY_CLASS else None
        if crash is not None and said is not None:
            yield _finding(crash, said)
            return


def _finding(crash: Crash, said: Explanation) -> Finding:
    subject = Subject("module", crash.module) if crash.module else Subject("call", f"shapes at {crash.place}")
    return rule.finding(
        said.message,
        cause=said.cause,
        fix=said.fix,
        subject=subject,
        place=crash.place,
        evidence=evidence_at(crash),
    )


def _sizes(crash: Crash) -> Explanation | None:
    return _loss_sizes(crash) if given(crash, "target") is not None else _two_tensors(crash)


def _loss_sizes(crash: Crash) -> Explanation | None:
    """The prediction and the target of an element-wise loss."""
    scores, target = given(crash, "input"), given(crash, "target")
    if scores is None or target is None or is_column(scores, target):
        return None
    first, second = scores.shape or (), target.shape or ()
    fix = f"Bring both to the same shape: {shaped(first)} is what the model gives."
    if math.prod(first) == math.prod(second):
        name = crash.names.get("target", "target")
        fix = f"They have the same number of elements: pass `{name}.reshape({shaped(first)})` if the order is the same."
    elif len(first) == 2 and second == first[:1]:
        fix = (
            f"If the target is a class id, use cross_entropy; if it is a number, give the last layer 1 output "
            f"instead of {first[1]}."
        )
    return Explanation(
        f"{crash.function} compares a prediction of shape {shaped(first)} with {called(crash, 'target', 'a target')} "
        f"of shape {shaped(second)}.",
        "Each number of the prediction is compared with the number of the target in the same place.",
        fix,
    )


def is_column(scores: InputFact, target: InputFact) -> bool:
    """(N, 1) against (N,), which has a rule of its own."""
    first, second = scores.shape or (), target.shape or ()
    return (first, second) in (((*second, 1), second), (first, (*first, 1)))


def _two_tensors(crash: Crash) -> Explanation | None:
    """An operation of the user's own line between tensors that it names."""
    named = [fact for fact in crash.variables if fact.shape]
    if crash.module_kind or len(named) < 2:
        return None
    listed = ", ".join(f"`{fact.name}` {shaped(fact.shape)}" for fact in named[:-1])
    fix = "Bring them to shapes that fit, with reshape, transpose or another size of the layer before."
    if "must match the size of" in crash.message:
        fix = (
            "Axes are compared from the last one on; make them equal, or 1 where one is to be repeated, with reshape, "
            "unsqueeze or transpose."
        )
    elif "except in dimension" not in crash.message and len(named) == 2 and named[0].shape == named[1].shape:
        fix = f"Of a product, the inner sizes must be the same: `{named[0].name} @ {named[1].name}.transpose(-2, -1)`."
    return Explanation(
        f"The shapes do not fit: {listed} and `{named[-1].name}` {shaped(named[-1].shape)}.",
        f"torch says: {crash.message.splitlines()[0].rstrip('.')}.",
        fix,
    )


def _compiled(crash: Crash) -> Explanation | None:
    """A matrix product inside torch.compile, where the layer cannot be named."""
    match = _REDUCED.search(crash.message)
    if match is None:
        return None
    left, right = ([int(side) for side in sides.split(",")] for sides in match.groups())
    return Explanation(
        f"A Linear, or another matrix product, takes {right[0]} features and was given {left[-1]} (input of shape "
        f"{shaped(tuple(left))}).",
        "The last axis of the input must have as many numbers as in_features says.",
        f"Build the layer as nn.Linear({left[-1]}, {right[-1]}), or bring {right[0]} features to it. Without "
        "torch.compile the report names the layer.",
    )


def _unequal_samples(crash: Crash) -> Explanation | None:
    match = _UNEQUAL.search(crash.message)
    if match is None:
        return None
    first, second = (shaped(tuple(int(side) for side in sides.split(",") if side.strip())) for sides in match.groups())
    return Explanation(
        f"The samples of one batch have different shapes: {first} and {second}.",
        "A batch is one tensor, so that all samples in it must have the same shape.",
        "Crop or resize the samples in the data set, or pad them in a collate_fn "
        "(torch.nn.utils.rnn.pad_sequence for sequences).",
    )


def _not_scalar(crash: Crash) -> Explanation | None:
    loss = given(crash, "loss")
    if loss is None:
        return None
    name = next((fact.name for fact in crash.variables if fact.shape == loss.shape), "")
    what = f"`{name}`" if name else "a tensor"
    return Explanation(
        f"backward() is called on {what} of shape {shaped(loss.shape)}, not on one number.",
        "A gradient says how one number changes. A loss with reduction='none', or the output of the model, is many.",
        f"Reduce it first: `{name or 'loss'}.mean().backward()`.",
    )


OPERATIONS: dict[tuple[str, ...], Callable[[Crash], Explanation | None]] = {
    ("must match the size of tensor b", "must be the same as input size", "different to the input size"): _sizes,
    (
        "shapes cannot be multiplied",
        "Sizes of tensors must match except in dimension",
        "Expected size for first two dimensions of batch2 tensor",
        "inconsistent tensor size, expected tensor",
    ): _two_tensors,
    ("must have same reduction dim",): _compiled,
    ("stack expects each tensor to be equal size",): _unequal_samples,
    ("grad can be implicitly created only for scalar outputs",): _not_scalar,
}
