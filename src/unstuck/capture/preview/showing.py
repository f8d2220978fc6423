"""Tensors as a person can look at them: pictures, series, rows of a table, ids."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.measure.tensors import HALVES, is_plain
from unstuck.capture.preview.predicting import four_digits
from unstuck.capture.preview.vocabulary import Ids
from unstuck.events import Drawn, Filters, Form, TensorShown

Decode = Callable[[Ids], list[str]]
MOST_DRAWN = 16
MOST_SIDE = 96
"""Pixels of a picture's longer side."""
MOST_NUMBERS = 64
MOST_IDS = 400
MOST_COMPARED = 2048
MOST_ELEMENTS = 1 << 22
"""Of a larger tensor, only so many elements are measured."""
MOST_FILTERS = 48
FILTER_SIDE = 32
FLAT_PICTURES = {784: (1, 28, 28), 3072: (3, 32, 32)}
"""Rows of so many numbers are pictures of these sizes."""
OUTLIERS = 4.0
"""If the range is so many times that of the inner 98 %, pictures are drawn by the inner one."""


def shown(name: str, tensor: Tensor, decode: Decode) -> TensorShown:
    """An input in numbers, and its first examples. `decode` turns token ids into text, if it can."""
    whole = tensor.detach()
    if whole.is_sparse or whole.is_complex() or whole.is_meta or whole.is_quantized:
        return TensorShown(name=name, dtype=_kind(whole), shape=tuple(whole.shape))
    part = whole[: max(1, MOST_ELEMENTS * len(whole) // max(1, whole.numel()))] if whole.dim() else whole
    part = part.cpu()
    values = _some(part)
    finite = values[torch.isfinite(values)]
    some = finite[:: max(1, len(finite) // 100_000)]
    levels = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99], dtype=values.dtype)
    is_mask = not whole.is_floating_point() and whole.dim() > 1 and bool(((values == 0) | (values == 1)).all())
    form, scaling, drawn = (Form.NONE, "", []) if is_mask else _drawn(part[:MOST_DRAWN] if part.dim() else part, decode)
    rows = part.reshape(len(part), -1) if part.dim() and part.numel() and not is_mask else values.reshape(-1, 1)[:0]
    return TensorShown(
        name=name,
        dtype=_kind(whole),
        shape=tuple(whole.shape),
        low=_short(finite.min()) if len(finite) else None,
        high=_short(finite.max()) if len(finite) else None,
        mean=_short(finite.mean()) if len(finite) else None,
        spread=_short(finite.std(correction=0)) if len(finite) else None,
        quantiles=tuple(float(f"{float(v):.5g}") for v in torch.quantile(some, levels)) if len(some) else (),
        broken=1 - len(finite) / max(1, len(values)),
        examples=len(whole) if whole.dim() else 0,
        constant=int((rows == rows[:, :1]).all(1).sum()) if rows.shape[1] > 1 else 0,
        duplicates=_duplicates(rows[:MOST_COMPARED]) if rows.shape[1] > 1 else 0,
        form=form,
        scaling=scaling,
        drawn=tuple(drawn),
    )


def _some(part: Tensor) -> Tensor:
    """The values that numbers rest on, wide enough for them."""
    flat = part.reshape(-1)
    flat = flat[:: -(-len(flat) // MOST_ELEMENTS)] if len(flat) > MOST_ELEMENTS else flat
    return flat.float() if flat.dtype in HALVES or flat.dtype is torch.float32 else flat.double()


def labelled(tensor: TensorShown, targets: Sequence[str]) -> TensorShown:
    """With a word for what each example should have been."""
    if not targets:
        return tensor
    pairs = zip(tensor.drawn, targets, strict=False)
    drawn = tuple(msgspec.structs.replace(one, target=word) for one, word in pairs)
    return msgspec.structs.replace(tensor, drawn=(*drawn, *tensor.drawn[len(drawn) :]))


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _short(value: Any) -> float | None:
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def _duplicates(rows: Tensor) -> int:
    """How many rows equal an earlier one."""
    distinct = {row.contiguous().view(torch.uint8).numpy().tobytes() for row in rows}
    return len(rows) - len(distinct)


def _drawn(examples: Tensor, decode: Decode) -> tuple[Form, str, list[Drawn]]:
    """How they are drawn, how values became pixels, and the examples."""
    if not examples.dim() or not examples.numel():
        return Form.NONE, "", []
    pictures = as_pictures(examples)
    if pictures is not None:
        pixels, scaling = _grey_levels(_thinned(pictures))
        return Form.PICTURES, scaling, [_picture(one) for one in pixels]
    flat = examples.reshape(len(examples), -1)
    if not examples.is_floating_point():
        return Form.IDS, "", _ids(flat, decode)
    form = Form.TABLE if flat.shape[1] <= 24 else Form.SERIES
    return form, "", [Drawn(numbers=_numbers(row, form is Form.SERIES)) for row in flat]


def as_pictures(examples: Tensor) -> Tensor | None:
    """(N, 1 or 3, H, W), if they can be seen as such."""
    shape = tuple(examples.shape)
    if not examples.numel():
        return None
    byte = examples.dtype == torch.uint8
    if not (examples.is_floating_point() or byte):
        return None
    if len(shape) == 5:
        return as_pictures(examples[:, :, 0])
    if len(shape) == 4 and shape[1] not in (1, 3, 4) and shape[3] in (1, 3, 4):
        return as_pictures(examples.permute(0, 3, 1, 2))
    if len(shape) == 4 and min(shape[2:]) > 1:
        return examples[:, :3] if shape[1] in (3, 4) else examples[:, :1]
    if len(shape) == 3 and min(shape[1:]) >= 4:
        return examples[:, None]
    if len(shape) == 2 and shape[1] in FLAT_PICTURES:
        return examples.reshape(-1, *FLAT_PICTURES[shape[1]])
    return None


def _grey_levels(pictures: Tensor) -> tuple[Tensor, str]:
    """Bytes, and in words what is black and what is white."""
    if pictures.dtype == torch.uint8:
        return _shrunk(pictures.float(), MOST_SIDE), "shown as they are: 0 is black, 255 white"
    values = pictures.float()
    finite = values[torch.isfinite(values)]
    if not len(finite):
        return _shrunk(torch.zeros_like(values), MOST_SIDE), "no value is finite"
    low, high, inner = float(finite.min()), float(finite.max()), ""
    some = finite[:: max(1, len(finite) // 50_000)]
    first, last = (float(level) for level in torch.quantile(some, torch.tensor([0.01, 0.99])))
    if low >= 0 and 0.5 < high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and 127 < high <= 255:
        low, high = 0.0, 255.0
    elif high - low > OUTLIERS * (last - first) > 0:
        low, high, inner = first, last, ", which leaves out the outermost 2 %"
    if high <= low:
        return _shrunk(torch.full_like(values, 127.0), MOST_SIDE), f"every value is {low:.4g}"
    levels = (torch.nan_to_num(values, low, high, low) - low) / (high - low) * 255
    return _shrunk(levels, MOST_SIDE), f"scaled to be shown: {low:.4g} is black, {high:.4g} white{inner}"


def _thinned(pictures: Tensor) -> Tensor:
    """Every Nth pixel of very large pictures."""
    step = max(1, max(pictures.shape[2:]) // (4 * MOST_SIDE))
    return pictures[:, :, ::step, ::step]


def _shrunk(pictures: Tensor, most: int) -> Tensor:
    side = max(pictures.shape[2:])
    if side > most:
        size = [max(1, round(length * most / side)) for length in pictures.shape[2:]]
        pictures = F.interpolate(pictures, size=size, mode="area")
    return pictures.round().clamp(0, 255).to(torch.uint8)


def _picture(pixels: Tensor) -> Drawn:
    """From (C, H, W) bytes."""
    channels, height, width = pixels.shape
    laid_out = pixels.permute(1, 2, 0).contiguous()
    return Drawn(height, width, channels, ctypes.string_at(laid_out.data_ptr(), laid_out.numel()))


def _numbers(row: Tensor, thinned: bool) -> tuple[float | None, ...]:
    if thinned and len(row) > 2 * MOST_NUMBERS:
        row = row[:: len(row) // (2 * MOST_NUMBERS)]
    return tuple(four_digits(value) for value in row.tolist()[: 2 * MOST_NUMBERS])


def _ids(rows: Tensor, decode: Decode) -> list[Drawn]:
    ids = [[int(value) for value in row] for row in rows[:, :MOST_IDS].tolist()]
    texts = decode(ids) or [""] * len(ids)
    return [
        Drawn(numbers=tuple(float(value) for value in row[:MOST_NUMBERS]), text=text)
        for row, text in zip(ids, texts, strict=True)
    ]


def first_layer(model: nn.Module, pictures: tuple[int, ...]) -> tuple[str, nn.Module, tuple[int, int, int]] | None:
    """The layer that is given the pictures, of which one has this shape (C, H, W), and the shape of its filters.

    A weight that is computed, as spectral norm does, is not asked for: that would change what it is the next time.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            weight = module._parameters.get("weight")
            if weight is None or not is_plain(weight):
                return None
            channels, height, width = weight.shape[1:]
            fits = channels in (1, 3, 4) and module.groups == 1 and max(height, width) > 1
            return (name, module, (3 if channels == 4 else channels, height, width)) if fits else None
        if isinstance(module, nn.Linear) and module.in_features == math.prod(pictures) and len(pictures) == 3:
            if not is_plain(module._parameters.get("weight")):
                return None
            channels, height, width = pictures
            return name, module, (channels, height, width) if channels in (1, 3) else (1, channels * height, width)
    return None


def filters(weight: Tensor, shape: tuple[int, int, int], step: int) -> Filters:
    """The weights of a first layer as pictures."""
    rows = weight.detach()[:MOST_FILTERS].float().cpu()
    pictures = rows[:, : shape[0]] if rows.dim() == 4 else rows.reshape(-1, *shape)
    finite = torch.nan_to_num(pictures, 0.0, 0.0, 0.0)
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    bytes_ = _shrunk(128 + finite * (127 / scale if scale else 0.0), FILTER_SIDE)
    return Filters(step=step, scale=scale, pictures=tuple(_picture(one) for one in bytes_))
