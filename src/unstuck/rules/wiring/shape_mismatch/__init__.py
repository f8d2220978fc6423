"""M18: a layer, a loss or an operation gets a shape it cannot take."""

from __future__ import annotations

from unstuck.findings import Severity, Variant
from unstuck.rule import Rule, find_in


class Mismatch(Variant):
    """What does not match."""

    FEATURES = "features", "a layer gets another number of features than it was built for"
    CHANNELS = "channels", "a convolution gets another number of channels than it was built for"
    AXES = "axes", "a layer gets too few or too many axes"
    TOO_SMALL = "too-small", "an image is smaller than the window of a layer"
    ONE_VALUE = "one-value", "BatchNorm gets one value per channel in training"
    HIDDEN_STATE = "hidden-state", "a recurrent layer gets the hidden state of another batch size"
    TARGET = "target", "prediction and target have different shapes"
    OPERANDS = "operands", "two tensors of one operation have shapes that do not match"
    SAMPLES = "samples", "the samples of one batch have different shapes"
    NOT_SCALAR = "not-scalar", "backward() is called on more than one number"
    RESHAPE = "reshape", "view() or reshape() to another number of elements"
    NOT_CONTIGUOUS = "not-contiguous", "view() of a tensor that is not contiguous"
    INDEX = "index", "gather() or scatter() with an index of the wrong shape"


rule = Rule(
    code="M18",
    name="shape-mismatch",
    title="a layer, a loss or backward() gets a shape it cannot take",
    severity=Severity.ERROR,
    variants=Mismatch.titles(),
)

rule.in_run(find_in("unstuck.rules.wiring.shape_mismatch.crash"))
