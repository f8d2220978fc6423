"""Layers that were given a shape they cannot take, explained with the layer's own sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

from unstuck.events import Crash
from unstuck.rules.shared.crashes import Explanation, count, given, layer, sentence, shaped, word

Sides = tuple[int, ...]
_NORM = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}
_DIMENSIONS = {"1": ("(N, C, L)", 3), "2": ("(N, C, H, W)", 4), "3": ("(N, C, D, H, W)", 5)}


def _shape(crash: Crash) -> Sides | None:
    """What the layer was given."""
    for name in ("input", "query", "x"):
        fact = given(crash, name)
        if fact is not None:
            return fact.shape
    return None


def _name(crash: Crash) -> str:
    """What the user's line calls the input."""
    return crash.names.get("input", "x")


def linear(crash: Crash) -> Explanation | None:
    """The last axis has another size than in_features."""
    shape, wanted, out = _shape(crash), count(crash, "in_features"), count(crash, "out_features")
    if not shape or wanted is None:
        return None
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} features and was given {shape[-1]} (input of shape {shaped(shape)}).",
        "A Linear works on the last axis of its input, which must have as many numbers as in_features says.",
        _linear_fix(crash, shape, wanted, out),
    )


def _linear_fix(crash: Crash, shape: Sides, wanted: int, out: int | None) -> str:
    name, features = _name(crash), math.prod(shape[1:])
    images = len(shape) == 4
    samples = shape[-1] // wanted if shape[-1] % wanted == 0 else 0
    if math.prod(shape[:-1]) == 1 and samples > 1:
        return (
            f"{samples} samples of {wanted} features stand in one row: write flatten(1), which keeps the batch apart."
        )
    if len(shape) > 2 and features == wanted:
        return f"Flatten everything but the batch first: `{name}.flatten(1)` has {wanted} features."
    if images:
        return f"Flatten the images first, `{name}.flatten(1)`, and build the layer as nn.Linear({features}, {out})."
    if len(shape) == 2 and shape[0] == wanted:
        return f"Rows and columns look swapped: pass `{name}.T`. Else build the layer as nn.Linear({shape[-1]}, {out})."
    return f"Build the layer as nn.Linear({shape[-1]}, {out}), or bring {wanted} features to it."


def channels(crash: Crash) -> Explanation | None:
    """The axis of the channels has another size than in_channels."""
    shape, wanted = _shape(crash), count(crash, "in_channels")
    if not shape or wanted is None or len(shape) < 2:
        return None
    batched = len(shape) == _dimensions(crash)[1]
    found = shape[1] if batched else shape[0]
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} channel{'s' * (wanted != 1)} and was given {found} (input of shape "
        f"{shaped(shape)}).",
        f"Its input has the shape {_dimensions(crash)[0]}: the channels come before the positions.",
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
        return f"The channels are the last axis here: pass `{name}.permute({order})`."
    if len(shape) == full - 1 and wanted == 1:
        return f"The axis of the channels is missing: pass `{name}.unsqueeze(1)`."
    if len(shape) == full - 1 and shape[-1] == wanted:
        order = ", ".join(str(axis) for axis in (last, *range(last)))
        return f"This is one sample with the channels last: pass `{name}.permute({order}).unsqueeze(0)`."
    out = count(crash, "out_channels")
    gray = f", or repeat the gray channel: `{name}.repeat_interleave({wanted}, 1)`" if (found, wanted) == (1, 3) else ""
    return f"Build the layer with in_channels={found}: {crash.module_kind}({found}, {out}, ...){gray}."


def axes(crash: Crash) -> Explanation | None:
    """A convolution or a normalisation was given too few or too many axes."""
    shape = _shape(crash)
    if not shape or not crash.module_kind:
        return None
    if crash.module_kind.startswith("BatchNorm") or crash.module_kind.startswith("InstanceNorm"):
        other = _NORM.get(len(shape), "")
        other = other if crash.module_kind.startswith("Batch") else other.replace("Batch", "Instance")
        fix = (
            f"For an input of {len(shape)} axes use nn.{other}." if other else "Bring the input to (N, C) or more axes."
        )
    else:
        fix = f"Bring the input to {_dimensions(crash)[0]}: reshape() or unsqueeze() adds axes, flatten() removes them."
        if "Conv" not in crash.module_kind:
            fix = "Bring the input to the number of axes it takes."
    return Explanation(
        f"{sentence(layer(crash))} was given an input of {len(shape)} ax{'e' if len(shape) != 1 else 'i'}s, "
        f"{shaped(shape)}.",
        f"torch says: {crash.message.splitlines()[0].rstrip('.')}.",
        fix,
    )


def too_small(crash: Crash) -> Explanation | None:
    """Nothing is left of the image."""
    shape = _shape(crash)
    if not shape or not crash.module_kind:
        return None
    window = word(crash, "kernel_size") or str(count(crash, "kernel_size") or "")
    return Explanation(
        f"{sentence(layer(crash))} was given positions of size {shaped(shape[2:] if len(shape) > 3 else shape[1:])}, "
        f"smaller than its window{f' of {window}' if window else ''} (input of shape {shaped(shape)}).",
        "Every convolution without padding and every pooling before it has made the image smaller.",
        "Use larger inputs, padding in the convolutions, or fewer pooling layers.",
    )


def one_value(crash: Crash) -> Explanation | None:
    """BatchNorm in training with one value per channel."""
    shape = _shape(crash)
    if not shape:
        return None
    last = f" It is the first such batch after {crash.step} steps: the last of an epoch is what is left over." * (
        crash.step > 0
    )
    return Explanation(
        f"{sentence(layer(crash))} got one value per channel to normalise (input of shape {shaped(shape)}).",
        f"In training BatchNorm needs a mean and a variance over at least two values.{last}",
        "Pass drop_last=True to the DataLoader, or use batches of 2 and more; to try one sample, call model.eval().",
    )


def norm_features(crash: Crash) -> Explanation | None:
    """BatchNorm or LayerNorm of another size."""
    shape = _shape(crash)
    if not shape:
        return None
    if crash.module_kind == "LayerNorm":
        wanted: int | str | None = word(crash, "normalized_shape")
        fix = f"Build it as nn.LayerNorm({shape[-1]}), the size of the last axis."
        return Explanation(
            f"{sentence(layer(crash))} normalises {wanted} and was given an input of shape {shaped(shape)}.",
            "The last axes of the input must be the normalised shape.",
            fix,
        )
    wanted = count(crash, "num_features")
    if wanted is None or len(shape) < 2:
        return None
    fix = f"Build it as nn.{crash.module_kind}({shape[1]})."
    if len(shape) == 3 and shape[-1] == wanted:
        fix = f"The channels are the last axis here: pass `{_name(crash)}.transpose(1, 2)`."
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} channels and was given {shape[1]} (input of shape {shaped(shape)}).",
        "The channels are axis 1 of the input.",
        fix,
    )


def recurrent(crash: Crash) -> Explanation | None:
    """The last axis of a sequence has another size than input_size."""
    shape, wanted = _shape(crash), count(crash, "input_size")
    if not shape or wanted is None:
        return None
    fix = f"Build the layer with input_size={shape[-1]}: nn.{crash.module_kind}({shape[-1]}, "
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} features per position and was given {shape[-1]} (input of shape "
        f"{shaped(shape)}).",
        "The features are the last axis of the input.",
        f"{fix}{count(crash, 'hidden_size')}, ...), or bring {wanted} features to it.",
    )


def hidden(crash: Crash) -> Explanation | None:
    """The state belongs to a batch of another size."""
    shape = _shape(crash)
    if not shape or not crash.module_kind:
        return None
    return Explanation(
        f"{sentence(layer(crash))} was given a hidden state that does not fit its input of shape {shaped(shape)}: "
        f"{crash.message[:1].lower()}{crash.message.splitlines()[0][1:].rstrip('.')}.",
        "A hidden state has the shape (layers, batch, hidden), also with batch_first=True, and the batch of the input.",
        "Begin every batch with a fresh state of its size; if it is carried on, pass drop_last=True to the DataLoader.",
    )


def attention(crash: Crash) -> Explanation | None:
    """The last axis has another size than embed_dim."""
    shape, wanted = _shape(crash), count(crash, "embed_dim")
    if not shape or wanted is None:
        return None
    return Explanation(
        f"{sentence(layer(crash))} takes {wanted} features and was given {shape[-1]} (query of shape {shaped(shape)}).",
        "The features are the last axis of query, key and value.",
        f"Build it with d_model or embed_dim {shape[-1]}, or bring {wanted} features to it with a Linear.",
    )


LAYERS: dict[tuple[str, ...], Callable[[Crash], Explanation | None]] = {
    ("shapes cannot be multiplied", "size mismatch, got input"): linear,
    ("channels, but got",): channels,
    ("(batched) input to conv", "D input (got", "Expected input to be 2D or 3D"): axes,
    ("Kernel size can't be greater than actual input size", "Output size is too small"): too_small,
    ("Expected more than 1 value per channel when training",): one_value,
    ("running_mean should contain", "Given normalized_shape"): norm_features,
    ("must be equal to input_size",): recurrent,
    ("Expected hidden",): hidden,
    ("was expecting embedding dimension of",): attention,
}
