"""M19: a tensor of the wrong type, or no tensor at all."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.findings import Finding, Severity, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class WrongType(Variant):
    """What has the wrong type."""

    NOT_A_TENSOR = "not-a-tensor", "a tuple, dict, list, array or None instead of a tensor"
    LAYER_INPUT = "layer-input", "the input of a layer has another type than its weights"
    OPERANDS = "operands", "two tensors of one operation have different types"
    IDS = "ids", "the ids for an embedding are not integers"
    BINARY_TARGET = "binary-target", "the targets of a binary loss are not floats"
    INDEX = "index", "an index is not an integer"
    INTEGERS = "integers", "an operation for floats gets integers"
    TARGET = "target", "prediction and target have different types, and backward() fails"


rule = Rule(
    code="M19",
    name="dtype-mismatch",
    title="a layer or a loss gets a type it does not take: float64, integers, a tuple, None",
    severity=Severity.ERROR,
    variants=WrongType.titles(),
)


@rule.in_run
def in_run(record: Record) -> Iterable[Finding]:
    """torch names the types; the crash shows which tensors have them."""
    from unstuck.rules.wiring.dtype_mismatch import crash

    return crash.find(record)
