"""A view, reshape, gather or scatter that fails, explained with the sizes on both sides."""

from __future__ import annotations

import math

from unstuck.events import Crash, InputFact
from unstuck.events.torch_errors import INDEX_SIZES, RESHAPED_SIZES, TorchError
from unstuck.rules.shared.crashes import Explanation, Reading, shaped
from unstuck.rules.wiring.shape_mismatch import Mismatch

SAME_SIZE = "view() and reshape() keep every element: the new sizes must have the same product."
BATCH = "The last batch of an epoch can be smaller, and a fixed number does not adapt to it."
OTHER_SHAPE = "Use a shape with the same number of elements; -1 stands for the size that follows from the others."
SAME_RANK = (
    "The index gives, for each element of the result, a position along one axis: it needs as many axes as the tensor."
)


def _view(crash: Crash) -> Explanation | None:
    """`x.view(-1, 400)` of a tensor with 256 numbers per sample, or `x.view(32, -1)` of a batch of 8."""
    match = RESHAPED_SIZES.search(crash.message)
    if match is None:
        return None
    asked, size = [int(side) for side in match.group(1).split(",")], int(match.group(2))
    fact = next((fact for fact in crash.variables if fact.shape and math.prod(fact.shape) == size), None)
    if fact is None or not fact.shape:
        return _view_of_unnamed(crash, asked, size)
    per_sample = math.prod(fact.shape[1:])
    message = (
        f"`{fact.name}` has shape {shaped(fact.shape)}, {per_sample} numbers per sample, and cannot become "
        f"{shaped(tuple(asked))}."
    )
    if _names_another_batch(asked, fact.shape):
        sides = ", ".join(str(side) for side in asked[1:])
        fix = f"Take the batch size from the tensor: `{fact.name}.reshape({fact.name}.shape[0], {sides})`."
        return Explanation(message, f"{asked[0]} is not the size of this batch, {fact.shape[0]}. {BATCH}", fix)
    return Explanation(message, SAME_SIZE, _resized(fact.name, fact.shape, asked))


def _names_another_batch(asked: list[int], shape: tuple[int, ...]) -> bool:
    """Is only the first size wrong, being a batch size that this batch does not have?"""
    rest = math.prod(side for side in asked[1:] if side != -1)
    per_sample = math.prod(shape[1:])
    fits = per_sample % rest == 0 if -1 in asked[1:] else rest == per_sample
    return len(asked) > 1 and asked[0] not in (-1, shape[0]) and rest > 0 and fits


def _resized(name: str, shape: tuple[int, ...], asked: list[int]) -> str:
    per_sample, wanted = math.prod(shape[1:]), math.prod(asked[1:])
    if len(asked) == 2 and len(shape) > 2:
        return (
            f"Write `{name}.flatten(1)`, which gives ({shape[0]}, {per_sample}), and build the next layer with "
            f"in_features={per_sample}."
        )
    if len(asked) > 2 and len(shape) == 2 and asked[0] in (-1, shape[0]) and wanted > 0:
        return (
            f"{shaped(tuple(asked[1:]))} has {wanted} numbers: give the layer before it {wanted} outputs, or "
            f"use sizes with the product {per_sample}."
        )
    return OTHER_SHAPE


def _view_of_unnamed(crash: Crash, asked: list[int], size: int) -> Explanation:
    """The tensor has no name: `self.conv(x).view(-1, 400)`."""
    rows = {fact.shape[0] for fact in crash.variables if fact.shape}
    batch = rows.pop() if len(rows) == 1 else 0
    known = f", {size // batch} for each of {batch}," if batch and size % batch == 0 else ""
    fix = OTHER_SHAPE
    if len(asked) == 2 and known:
        fix = (
            f"If the first axis is the batch, write `.flatten(1)` instead, which gives ({batch}, "
            f"{size // batch}), and build the next layer with in_features={size // batch}."
        )
    return Explanation(f"A tensor of {size} numbers{known} cannot become {shaped(tuple(asked))}.", SAME_SIZE, fix)


def _not_contiguous(crash: Crash) -> Explanation | None:
    """A view of a transposed tensor."""
    named = [fact for fact in crash.variables if fact.shape]
    what = f"`{named[0].name}` of shape {shaped(named[0].shape)}" if len(named) == 1 else "This tensor"
    return Explanation(
        f"{what} is not contiguous in memory, so view() cannot make the new shape.",
        "transpose, permute and slices only change how memory is read, and view() cannot copy.",
        "Write reshape(...) instead of view(...): it copies if it has to.",
    )


def _index_rank(crash: Crash) -> Explanation | None:
    """`q.gather(1, actions)` with one action per row."""
    index = next(
        (fact for fact in crash.variables if fact.shape is not None and fact.dtype in ("int64", "int32")), None
    )
    if index is None or index.shape is None:
        return None
    others = [fact for fact in crash.variables if fact is not index and fact.shape]
    gathers = TorchError.GATHER_INDEX.is_in(crash.message)
    name = "gather" if gathers else "scatter"
    source = others[0] if len(others) == 1 and others[0].shape else None
    of = f"`{source.name}` of shape {shaped(source.shape)}" if source else "a tensor with another number of axes"
    return Explanation(
        f"{name} gets the index `{index.name}` of shape {shaped(index.shape)} for {of}.",
        SAME_RANK,
        _with_axis(index.name, _missing_axis(index, source), gathers),
    )


def _missing_axis(index: InputFact, source: InputFact | None) -> int:
    """Where to insert an axis; at the end if unknown."""
    shape = source.shape or () if source else ()
    own = index.shape or ()
    axes = [axis for axis in range(len(shape)) if shape[:axis] + shape[axis + 1 :] == own]
    return axes[-1] if axes else len(own)


def _with_axis(name: str, axis: int, gathers: bool) -> str:
    fix = f"Add the missing axis to the index: `{name}.unsqueeze({axis})`"
    if gathers:
        return f"{fix}, and remove it from the result with `.squeeze({axis})`."
    return f"{fix}. For one-hot rows you can also use `torch.nn.functional.one_hot({name}, classes)`."


def _larger_index(crash: Crash) -> Explanation | None:
    """An index with more rows than the tensor."""
    match = INDEX_SIZES.search(crash.message)
    if match is None:
        return None
    index, own = (shaped(tuple(int(side) for side in sides.split(","))) for sides in match.groups()[:2])
    return Explanation(
        f"An index of shape {index} is used on a tensor of shape {own} along axis {match.group(3)}.",
        f"On every axis but {match.group(3)} the index must not be larger than the tensor.",
        "Take both from the same batch, so that they have the same number of rows.",
    )


RESHAPING: tuple[Reading, ...] = (
    (Mismatch.RESHAPE, (TorchError.RESHAPE,), _view),
    (Mismatch.NOT_CONTIGUOUS, (TorchError.NOT_CONTIGUOUS,), _not_contiguous),
    (Mismatch.INDEX, (TorchError.INDEX_AXES,), _index_rank),
    (Mismatch.INDEX, (TorchError.LARGER_INDEX,), _larger_index),
)
