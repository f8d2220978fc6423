"""Layers that got a shape they cannot take, explained with the layer's own sizes."""

from __future__ import annotations

import math

from unstuck.events import Crash
from unstuck.events.torch_errors import TorchError
from unstuck.rules.shared.crashes import Explanation, Reading, count, given, layer, sentence, shaped, word
from unstuck.rules.wiring.shape_mismatch import Mismatch

Sides = tuple[int, ...]
_NORM = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}
_DIMENSIONS = {"1": ("(N, C, L)", 3), "2": ("(N, C, H, W)", 4), "3": ("(N, C, D, H, W)", 5)}


def _shape(crash: Crash) -> Sides | None:
    """The input of the layer."""
    for name in ("input", "query", "x"):
        fact = given(crash, name)
        if fact is not None:
            return fact.shape
    return None


def _name(crash: Crash) -> str:
    """The name of the input in the user's line."""
    return crash.names.get("input", "x")


def _linear(crash: Crash) -> Explanation | None:
    """The last axis has another size than in_features."""
    shape, wanted, out = _shape(crash), count(crash, "in_features"), count(crash, "out_features")
    if not shape or wanted is None:
        return None
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} features but got {shape[-1]} (input of shape {shaped(shape)}).",
        "A Linear layer works on the last axis of its input, whose size must be in_features.",
        _linear_fix(crash, shape, wanted, out),
    )


def _linear_fix(crash: Crash, shape: Sides, wanted: int, out: int | None) -> str:
    name, features = _name(crash), math.prod(shape[1:])
    images = len(shape) == 4
    samples = shape[-1] // wanted if shape[-1] % wanted == 0 else 0
    if math.prod(shape[:-1]) == 1 and samples > 1:
        return (
            f"{samples} samples of {wanted} features are flattened into one row: write flatten(1), which keeps "
            "the batch axis."
        )
    if len(shape) > 2 and features == wanted:
        return f"Flatten everything but the batch axis first: `{name}.flatten(1)` has {wanted} features."
    if images:
        return f"Flatten the images first, `{name}.flatten(1)`, and build the layer as nn.Linear({features}, {out})."
    if len(shape) == 2 and shape[0] == wanted:
        return (
            f"Rows and columns look swapped: pass `{name}.T`. Otherwise build the layer as nn.Linear({shape[-1]}, "
            f"{out})."
        )
    return f"Build the layer as nn.Linear({shape[-1]}, {out}), or pass {wanted} features to it."


def _channels(crash: Crash) -> Explanation | None:
    """The axis of the channels has another size than in_channels."""
    shape, wanted = _shape(crash), count(crash, "in_channels")
    if not shape or wanted is None or len(shape) < 2:
        return None
    batched = len(shape) == _dimensions(crash)[1]
    found = shape[1] if batched else shape[0]
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} channel{'s' * (wanted != 1)} but got {found} (input of shape "
        f"{shaped(shape)}).",
        f"Its input has shape {_dimensions(crash)[0]}: the channels come before the spatial axes.",
        _channels_fix(crash, shape, wanted, found),
    )


def _dimensions(crash: Crash) -> tuple[str, int]:
    digit = next((letter for letter in crash.module_kind if letter in _DIMENSIONS), "2")
    return _DIMENSIONS[digit]


def _channels_fix(crash: Crash, shape: Sides, wanted: int, found: int) -> str:
    name, full = _name(crash), _dimensions(crash)[1]
    last = len(shape) - 1
    if shape[-1] == wanted and len(shape) == full:
        order = ", ".join(str(axis) for axis in (0, last, *range(1, last)))
        return f"The channels are the last axis of this input: pass `{name}.permute({order})`."
    if len(shape) == full - 1 and wanted == 1:
        return f"The channel axis is missing: pass `{name}.unsqueeze(1)`."
    if len(shape) == full - 1 and shape[-1] == wanted:
        order = ", ".join(str(axis) for axis in (last, *range(last)))
        return f"This is one sample with channels last: pass `{name}.permute({order}).unsqueeze(0)`."
    out = count(crash, "out_channels")
    gray = f", or repeat the gray channel: `{name}.repeat_interleave({wanted}, 1)`" if (found, wanted) == (1, 3) else ""
    return f"Build the layer with in_channels={found}: {crash.module_kind}({found}, {out}, ...){gray}."


def _axes(crash: Crash) -> Explanation | None:
    """A convolution or a normalisation got too few or too many axes."""
    shape = _shape(crash)
    if not shape or not crash.module_kind:
        return None
    if crash.module_kind.startswith("BatchNorm") or crash.module_kind.startswith("InstanceNorm"):
        other = _NORM.get(len(shape), "")
        other = other if crash.module_kind.startswith("Batch") else other.replace("Batch", "Instance")
        fix = (
            f"For an input of {len(shape)} axes use nn.{other}."
            if other
            else "Give the input the shape (N, C) or more axes."
        )
    else:
        fix = (
            f"Give the input the shape {_dimensions(crash)[0]}: reshape() or unsqueeze() adds axes, flatten() "
            "removes them."
        )
        if "Conv" not in crash.module_kind:
            fix = "Give the input as many axes as the layer takes."
    return Explanation(
        f"{sentence(layer(crash))} got an input of {len(shape)} ax{'e' if len(shape) != 1 else 'i'}s, {shaped(shape)}.",
        f"torch says: {crash.message.splitlines()[0].rstrip('.')}.",
        fix,
    )


def _too_small(crash: Crash) -> Explanation | None:
    """The image is smaller than the window."""
    shape = _shape(crash)
    if not shape or not crash.module_kind:
        return None
    window = word(crash, "kernel_size") or str(count(crash, "kernel_size") or "")
    return Explanation(
        f"{sentence(layer(crash))} got an image of size {shaped(shape[2:] if len(shape) > 3 else shape[1:])}, "
        f"smaller than its window{f' of {window}' if window else ''} (input of shape {shaped(shape)}).",
        "Every convolution without padding and every pooling layer before it makes the image smaller.",
        "Use larger inputs, padding in the convolutions, or fewer pooling layers.",
    )


def _one_value(crash: Crash) -> Explanation | None:
    """BatchNorm in training with one value per channel."""
    shape = _shape(crash)
    if not shape:
        return None
    last = f" It happened after {crash.step} steps: the last batch of an epoch holds only the remaining samples." * (
        crash.step > 0
    )
    return Explanation(
        f"{sentence(layer(crash))} got one value per channel to normalise (input of shape {shaped(shape)}).",
        f"In training mode BatchNorm needs a mean and a variance over at least two values.{last}",
        "Pass drop_last=True to the DataLoader, or use batches of at least 2. To try a single sample, call "
        "model.eval() first.",
    )


def _normalised(crash: Crash) -> Explanation | None:
    """BatchNorm or LayerNorm of another size."""
    shape = _shape(crash)
    if not shape:
        return None
    if crash.module_kind == "LayerNorm":
        wanted: int | str | None = word(crash, "normalized_shape")
        fix = f"Build it as nn.LayerNorm({shape[-1]}), the size of the last axis."
        return Explanation(
            f"{sentence(layer(crash))} normalises {wanted} but got an input of shape {shaped(shape)}.",
            "The last axes of the input must equal the normalised shape.",
            fix,
        )
    wanted = count(crash, "num_features")
    if wanted is None or len(shape) < 2:
        return None
    fix = f"Build it as nn.{crash.module_kind}({shape[1]})."
    if len(shape) == 3 and shape[-1] == wanted:
        fix = f"The channels are the last axis of this input: pass `{_name(crash)}.transpose(1, 2)`."
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} channels but got {shape[1]} (input of shape {shaped(shape)}).",
        "The channels are axis 1 of the input.",
        fix,
    )


def _recurrent(crash: Crash) -> Explanation | None:
    """The last axis of a sequence has another size than input_size."""
    shape, wanted = _shape(crash), count(crash, "input_size")
    if not shape or wanted is None:
        return None
    fix = f"Build the layer with input_size={shape[-1]}: nn.{crash.module_kind}({shape[-1]}, "
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} features per position but got {shape[-1]} (input of shape "
        f"{shaped(shape)}).",
        "The features are the last axis of the input.",
        f"{fix}{count(crash, 'hidden_size')}, ...), or pass {wanted} features to it.",
    )


def _hidden_state(crash: Crash) -> Explanation | None:
    """The state belongs to a batch of another size."""
    shape = _shape(crash)
    if not shape or not crash.module_kind:
        return None
    return Explanation(
        f"{sentence(layer(crash))} got a hidden state that does not match its input of shape {shaped(shape)}: "
        f"{crash.message[:1].lower()}{crash.message.splitlines()[0][1:].rstrip('.')}.",
        "A hidden state has the shape (layers, batch, hidden), even with batch_first=True, and the batch size "
        "of the input.",
        "Start every batch with a new state of its size. If you carry the state over, pass drop_last=True to "
        "the DataLoader.",
    )


def _attention(crash: Crash) -> Explanation | None:
    """The last axis has another size than embed_dim."""
    shape, wanted = _shape(crash), count(crash, "embed_dim")
    if not shape or wanted is None:
        return None
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} features but got {shape[-1]} (query of shape {shaped(shape)}).",
        "The features are the last axis of query, key and value.",
        f"Build it with d_model or embed_dim {shape[-1]}, or project the input to {wanted} features with a "
        "Linear layer.",
    )


LAYERS: tuple[Reading, ...] = (
    (Mismatch.FEATURES, (TorchError.PRODUCT, TorchError.LINEAR_SIZE), _linear),
    (Mismatch.CHANNELS, (TorchError.CHANNELS,), _channels),
    (Mismatch.AXES, (TorchError.AXES,), _axes),
    (Mismatch.TOO_SMALL, (TorchError.TOO_SMALL,), _too_small),
    (Mismatch.ONE_VALUE, (TorchError.ONE_VALUE,), _one_value),
    (Mismatch.FEATURES, (TorchError.NORMALISED_SIZE,), _normalised),
    (Mismatch.FEATURES, (TorchError.RECURRENT_SIZE,), _recurrent),
    (Mismatch.HIDDEN_STATE, (TorchError.HIDDEN_STATE,), _hidden_state),
    (Mismatch.FEATURES, (TorchError.EMBEDDING_SIZE,), _attention),
)
