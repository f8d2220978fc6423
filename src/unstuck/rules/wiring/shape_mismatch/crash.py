"""M18 in a crash: whose shapes did not match, and how to make them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import Crash
from unstuck.events.losses import CLASS_LOSSES
from unstuck.events.torch_errors import PRODUCT_SIZES, SAMPLE_SIZES, TorchError
from unstuck.findings import Finding, Subject
from unstuck.record import Record
from unstuck.rules.shared.crashes import Explanation, Reading, called, crash_of, evidence_at, given, shaped
from unstuck.rules.wiring.shape_mismatch import Mismatch, rule
from unstuck.rules.wiring.shape_mismatch.layers import LAYERS
from unstuck.rules.wiring.shape_mismatch.reshaping import RESHAPING

SIZES = (TorchError.NOT_BROADCAST, TorchError.TARGET_SHAPE)


def find(record: Record) -> Iterator[Finding]:
    """torch says which sizes do not match; the crash shows which tensors have them."""
    for variant, kinds, explanation in READINGS:
        crash = crash_of(record, *kinds)
        said = explanation(crash) if crash is not None and crash.function not in CLASS_LOSSES else None
        if crash is not None and said is not None:
            yield rule.finding(
                said.message,
                cause=said.cause,
                fix=said.fix,
                subject=Subject("module", crash.module) if crash.module else Subject.at("call", "shapes", crash.place),
                place=crash.place,
                evidence=evidence_at(crash),
                variant=variant,
            )
            return


def _target(crash: Crash) -> Explanation | None:
    """The prediction and the target of an element-wise loss."""
    scores, target = given(crash, "input"), given(crash, "target")
    if scores is None or target is None:
        return None
    first, second = scores.shape or (), target.shape or ()
    if first == (*second, 1) or second == (*first, 1):
        return None  # (N, 1) against (N,) has a rule of its own
    fix = f"Give both the same shape: the model returns {shaped(first)}."
    if math.prod(first) == math.prod(second):
        name = crash.names.get("target", "target")
        fix = f"They have the same number of elements: pass `{name}.reshape({shaped(first)})` if the order matches."
    elif len(first) == 2 and second == first[:1]:
        fix = (
            f"If the target is a class id, use cross_entropy; if it is a number, give the last layer 1 output "
            f"instead of {first[1]}."
        )
    return Explanation(
        f"{crash.function} compares a prediction of shape {shaped(first)} with {called(crash, 'target', 'a target')} "
        f"of shape {shaped(second)}.",
        "Each element of the prediction is compared with the element of the target at the same position.",
        fix,
    )


def _operands(crash: Crash) -> Explanation | None:
    """An operation in the user's line between tensors that it names."""
    named = [fact for fact in crash.variables if fact.shape]
    if crash.module_kind or len(named) < 2 or given(crash, "target") is not None:
        return None
    listed = ", ".join(f"`{fact.name}` {shaped(fact.shape)}" for fact in named[:-1])
    fix = "Make the shapes match with reshape, transpose or another size of the layer before."
    if TorchError.NOT_BROADCAST.is_in(crash.message):
        fix = (
            "Axes are compared starting with the last. Make them equal, or 1 where one should be repeated, "
            "with reshape, unsqueeze or transpose."
        )
    elif not TorchError.NOT_CONCATENATED.is_in(crash.message) and len(named) == 2 and named[0].shape == named[1].shape:
        fix = f"The inner sizes of a product must be equal: `{named[0].name} @ {named[1].name}.transpose(-2, -1)`."
    return Explanation(
        f"The shapes do not match: {listed} and `{named[-1].name}` {shaped(named[-1].shape)}.",
        f"torch says: {crash.message.splitlines()[0].rstrip('.')}.",
        fix,
    )


def _compiled(crash: Crash) -> Explanation | None:
    """A matrix product inside torch.compile, where the layer is unknown."""
    match = PRODUCT_SIZES.search(crash.message)
    if match is None:
        return None
    left, right = ([int(side) for side in sides.split(",")] for sides in match.groups())
    return Explanation(
        f"A Linear layer, or another matrix product, takes {right[0]} features but got {left[-1]} (input of "
        f"shape {shaped(tuple(left))}).",
        "The last axis of the input must have size in_features.",
        f"Build the layer as nn.Linear({left[-1]}, {right[-1]}), or pass {right[0]} features to it. Without "
        "torch.compile the report names the layer.",
    )


def _unequal_samples(crash: Crash) -> Explanation | None:
    match = SAMPLE_SIZES.search(crash.message)
    if match is None:
        return None
    first, second = (shaped(tuple(int(side) for side in sides.split(",") if side.strip())) for sides in match.groups())
    return Explanation(
        f"The samples of one batch have different shapes: {first} and {second}.",
        "A batch is one tensor, so all its samples must have the same shape.",
        "Crop or resize the samples in the dataset, or pad them in a collate_fn "
        "(torch.nn.utils.rnn.pad_sequence for sequences).",
    )


def _not_scalar(crash: Crash) -> Explanation | None:
    loss = given(crash, "loss")
    if loss is None:
        return None
    name = next((fact.name for fact in crash.variables if fact.shape == loss.shape), "")
    what = f"`{name}`" if name else "a tensor"
    return Explanation(
        f"backward() is called on {what} of shape {shaped(loss.shape)}, not on a scalar.",
        "A gradient is the derivative of one number. A loss with reduction='none', or the output of the "
        "model, has many.",
        f"Reduce it first: `{name or 'loss'}.mean().backward()`.",
    )


READINGS: tuple[Reading, ...] = (
    *LAYERS,
    (Mismatch.TARGET, SIZES, _target),
    (
        Mismatch.OPERANDS,
        (
            *SIZES,
            TorchError.PRODUCT,
            TorchError.NOT_CONCATENATED,
            TorchError.BATCHED_PRODUCT,
            TorchError.VECTOR_PRODUCT,
        ),
        _operands,
    ),
    (Mismatch.FEATURES, (TorchError.COMPILED_PRODUCT,), _compiled),
    (Mismatch.SAMPLES, (TorchError.UNEQUAL_SAMPLES,), _unequal_samples),
    (Mismatch.NOT_SCALAR, (TorchError.NOT_SCALAR,), _not_scalar),
    *RESHAPING,
)
