"""M19: a tensor of the wrong type, or no tensor at all."""

from __future__ import annotations

from unstuck.findings import Severity, Variant
from unstuck.rule import Rule, find_in


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

rule.in_run(find_in("unstuck.rules.wiring.dtype_mismatch.crash"))
