"""What torch's exceptions say.

They have no codes: only the text distinguishes one from another. Every part of a message that anything in unstuck looks
for is in this file, so that a torch that words one differently is followed here.
"""

from __future__ import annotations

from enum import Enum

from unstuck.lazy import pattern


class TorchError(Enum):
    """A kind of exception, by the parts of messages of which it has one. A message may be of several kinds."""

    # Gradients
    SECOND_BACKWARD = "backward through the graph a second time"
    CHANGED_IN_PLACE = "has been modified by an inplace operation"
    LEAF_CHANGED_IN_PLACE = "leaf Variable that requires grad is being used in an in-place operation"
    NO_GRAPH = "element 0 of tensors does not require grad"
    NOT_SCALAR = "grad can be implicitly created only for scalar outputs"
    NO_BACKWARD_METHOD = "has no attribute 'backward'"

    # Memory and devices
    OUT_OF_MEMORY = "out of memory", "can't allocate memory", "not enough memory"
    SEVERAL_DEVICES = (
        "Expected all tensors to be on the same device",
        "tensors are not at the same device",
        "is not on the expected device",
    )
    UNLIKE_WEIGHT = "should be the same"
    """The type of an input, which includes its device."""
    SAVED_ON_ABSENT_DEVICE = "Attempting to deserialize object on"
    NO_GPU = (
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver",
        "No CUDA GPUs are available",
        "torch.cuda.is_available() is False",
    )
    META_DEVICE = "meta"

    # Values
    INPUT_NO_PROBABILITY = "all elements of input should be between 0 and 1"
    TARGET_NO_PROBABILITY = "all elements of target should be between 0 and 1"
    NO_ROW = "index out of range in self", "which is not in the valid range"
    NO_ELEMENT = "is out of bounds for dimension"
    NO_CLASS = "Class values must be smaller than num_classes", "Class values must be non-negative"
    TARGET_OUT_OF_BOUNDS = "is out of bounds"
    DEVICE_ASSERT = "device-side assert triggered"

    # Targets of losses that take class ids
    TARGET_TYPE = "expected target dtype to be", "expected scalar type Long", "not implemented for"
    TARGET_WITH_EXTRA_AXIS = "multi-target not supported", "1D target tensor expected"
    PROBABILITIES_NOT_FLOATING = "Expected floating point type for target with class probabilities"
    TARGET_NOT_SPATIAL = "only batches of spatial targets supported"
    TARGET_SIZE = "Expected target size"
    BATCH_SIZES = "Expected input batch_size"
    CLASS_WEIGHTS = "weight tensor should be defined"

    # Types
    TYPES = (
        "must have the same dtype",
        "to have the same dtype",
        "should be the same",
        "expected scalar type",
        "expect parameter to have scalar type",
        "not implemented for",
    )
    IDS_TYPE = "Expected tensor for argument #1 'indices'"
    NOT_CASTABLE = "can't be cast to the desired output type"
    NOT_FLOAT = "expected scalar type Float"
    GRADIENT_TYPE = "Found dtype"
    INDEX_TYPE = "Expected dtype int32/int64 for index", "tensors used as indices must be"
    INTEGERS = "not implemented for 'Long'", "could not infer output dtype", "not implemented for 'Int'"

    # Shapes that a layer or a loss does not take
    PRODUCT = "shapes cannot be multiplied"
    LINEAR_SIZE = "size mismatch, got input"
    CHANNELS = "channels, but got"
    AXES = "(batched) input to conv", "D input (got", "Expected input to be 2D or 3D"
    TOO_SMALL = "Kernel size can't be greater than actual input size", "Output size is too small"
    ONE_VALUE = "Expected more than 1 value per channel when training"
    NORMALISED_SIZE = "running_mean should contain", "Given normalized_shape"
    RECURRENT_SIZE = "must be equal to input_size"
    HIDDEN_STATE = "Expected hidden"
    EMBEDDING_SIZE = "was expecting embedding dimension of"
    COMPILED_PRODUCT = "must have same reduction dim"
    TARGET_SHAPE = "must be the same as input size", "different to the input size"

    # Shapes that an operation does not take
    NOT_BROADCAST = "must match the size of tensor b"
    NOT_CONCATENATED = "Sizes of tensors must match except in dimension"
    BATCHED_PRODUCT = "Expected size for first two dimensions of batch2 tensor"
    VECTOR_PRODUCT = "inconsistent tensor size, expected tensor"
    UNEQUAL_SAMPLES = "stack expects each tensor to be equal size"
    RESHAPE = "is invalid for input of size"
    NOT_CONTIGUOUS = "view size is not compatible with input tensor's size and stride"
    INDEX_AXES = "Index tensor must have the same number of dimensions as"
    GATHER_INDEX = "as input tensor"
    LARGER_INDEX = "to be no larger than self"

    # Objects of the training
    EMPTY_PARAMETER_LIST = "optimizer got an empty parameter list"
    STATE_DICT = "in loading state_dict for"
    PAST_LAST_STEP = "The specified number of total steps is"
    NO_METRIC = "ReduceLROnPlateau.step() missing", "step() missing 1 required positional argument: 'metrics'"
    UNSCALED_TWICE = "unscale_() has already been called"
    UNSCALED_AFTER_STEP = "unscale_() is being called after step()"
    STEPPED_TWICE = "step() has already been called since"
    NO_INF_CHECKS = "No inf checks were recorded prior to update"

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def is_in(self, message: str) -> bool:
        """Is this message of this kind?"""
        return any(part in message for part in self._parts)


# What messages say in addition, by the groups of these expressions.
CHANGED_TENSOR = pattern(r"\[torch\.\w*Tensor \[([\d, ]*)\]\](?:, which is output \d+ of (\w+))?")
CHANGED_VERSION = pattern(r"\[torch\.\w*Tensor \[([\d, ]*)\]\].* is at version (\d+); expected version")
NOT_A_TENSOR = pattern(r"argument '(\w+)' \(position (\d+)\) must be Tensor, not ([\w.]+)")
NO_METHOD = pattern(r"'([\w.]+)' object has no attribute '(\w+)'")
INPUT_AND_WEIGHT_TYPES = pattern(r"Input type \(torch\.(cuda\.)?\w+\) and (?:weight|bias) type \(torch\.(cuda\.)?\w+\)")
DEVICE = pattern(r"\b(?:cuda(?::\d+)?|cpu|mps(?::\d+)?|xpu(?::\d+)?|meta)\b")
INDEX_AND_SIZE = pattern(r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)")
RESHAPED_SIZES = pattern(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)")
INDEX_SIZES = pattern(
    r"expected index \[([\d, ]+)\] to be no larger than self \[([\d, ]+)\] apart from dimension (\d+)"
)
SAMPLE_SIZES = pattern(
    r"stack expects each tensor to be equal size, but got \[([\d, ]*)\] at entry 0 and \[([\d, ]*)\]"
)
PRODUCT_SIZES = pattern(r"must have same reduction dim, but got \[([\d, ]+)\] X \[([\d, ]+)\]")
STATE_SIZES = pattern(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([^\]]*)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([^\]]*)\]\)"
)
MEMORY_REQUESTED = pattern(r"[Tt]ried to allocate ([\d.]+ (?:[KMGT]i?B|bytes))")
MEMORY_OF_DEVICE = pattern(r"total capacity of ([\d.]+ [KMGT]i?B)")
MEMORY_FREE = pattern(r"of which ([\d.]+ (?:[KMGT]i?B|bytes)) is free")
MEMORY_OF_TENSORS = pattern(r"([\d.]+ [KMGT]i?B) is allocated by PyTorch")
MEMORY_UNUSED = pattern(r"([\d.]+ [KMGT]i?B) is reserved by PyTorch but unallocated")
