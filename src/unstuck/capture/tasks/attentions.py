"""Attention, read from the graph: which positions does it hide, and does a mask hide anything?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, operation, saved, shape_of
from unstuck.capture.tasks.cells import only_child, signed
from unstuck.capture.tasks.sequences import padding_of
from unstuck.events import KeysHidden, Place, WeightsLeaked

_LARGEST = 2**24
_MOST = 4
"""Attentions of one pass that are looked at."""
_FEWEST_ROWS = 4
_DEEPEST = 4


def paddings(ids: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Which positions of the inputs are padding, for each input in which some are, and others are not."""
    found = [padding_of(one) for one in ids if len(torch.unique(one)) > 3]
    for given in inputs:
        if given.dim() == 3:
            empty = (given == 0).all(2).flip(1).long().cumprod(1).flip(1).bool()
            found.append(empty)
    return [one for one in found if _is_ragged(one)]


def _is_ragged(padding: Tensor) -> bool:
    """Are some examples padded, by different numbers of positions?"""
    lengths = (~padding).sum(1)
    some = (lengths < padding.shape[1]) & (lengths > 0)
    return int(some.sum()) >= _FEWEST_ROWS and len(torch.unique(lengths)) > 2


def _weights(nodes: Sequence[Node]) -> Iterator[tuple[Node, Tensor]]:
    for node in nodes:
        sides = len(shape_of(node)) if operation(node) in ("Softmax", "SafeSoftmax") else 0
        if sides in (3, 4) and signed(node._saved_dim) in (-1, sides - 1):
            result = saved(node, "result")
            if result is not None and result.is_cpu and result.numel() <= _LARGEST:
                yield node, result.detach()


def _hidden(nodes: Sequence[Node]) -> Iterator[Tensor]:
    """For each attention, [rows, keys]: positions that no query sees. A row is an example, or one of its heads."""
    for _, weights in _weights(nodes):
        keys = weights.reshape(-1, weights.shape[-2], weights.shape[-1])
        yield (keys == 0).all(1)
    for node in nodes:
        if operation(node).startswith("ScaledDotProduct"):
            mask, query = saved(node, "attn_mask"), saved(node, "query")
            if mask is None or query is None or mask.dim() != 4 or mask.numel() > _LARGEST:
                continue
            shut = ~mask if mask.dtype is torch.bool else mask < -1e4
            yield shut.all(2).expand(query.shape[0], shut.shape[1], shut.shape[3]).reshape(-1, shut.shape[3])


def keys_hidden(nodes: Sequence[Node], padded: Sequence[Tensor], step: int, place: Place | None) -> KeysHidden | None:
    """The first attention over a padded input that hides some positions altogether."""
    for count, hidden in enumerate(_hidden(nodes)):
        if count >= _MOST or not padded:
            return None
        for padding in padded:
            found = _compared(hidden, padding, step, place)
            if found is not None:
                return found
    return None


def _compared(hidden: Tensor, padding: Tensor, step: int, place: Place | None) -> KeysHidden | None:
    examples = len(padding)
    extra = hidden.shape[1] - padding.shape[1]
    if len(hidden) % examples or extra not in (0, 1) or not bool(hidden.any()):
        return None
    hidden = hidden.reshape(examples, -1, hidden.shape[1])[:, 0, extra:]
    mixed = padding.any(1) & ~padding.all(1)
    padding, hidden = padding[mixed], hidden[mixed]
    return KeysHidden(
        step=step,
        place=place,
        padding=int(padding.sum()),
        content=int((~padding).sum()),
        padding_hidden=int((padding & hidden).sum()),
        content_hidden=int((~padding & hidden).sum()),
    )


def leaked(nodes: Sequence[Node], step: int, place: Place | None) -> WeightsLeaked | None:
    """The first attention with a mask on its scores: what do masked positions get?"""
    for count, (node, weights) in enumerate(_weights(nodes)):
        if count >= _MOST:
            return None
        mask = _mask_below(node, weights.shape)
        if mask is None:
            continue
        open_rows = (~mask).any(-1)
        weights, mask = weights[open_rows].double(), mask[open_rows]
        if mask.numel() and bool(mask.any()):
            given = float((weights * mask).sum() / weights.sum())
            return WeightsLeaked(step=step, place=place, masked=float(mask.double().mean()), weight=given)
    return None


def _mask_below(node: Node, shape: torch.Size) -> Tensor | None:
    """What covers the scores right before a softmax: True where they were replaced, or multiplied by 0."""
    for _ in range(_DEEPEST):
        child = only_child(node)
        if child is None or shape_of(child) != tuple(shape):
            return None
        name = operation(child)
        if name == "MaskedFill":
            return _spread(saved(child, "mask"), shape)
        if name == "Where":
            condition = saved(child, "condition")
            kept = child.next_functions[0][0] is not None if child.next_functions else False
            return None if condition is None else _spread(~condition.bool() if kept else condition.bool(), shape)
        if name == "Mul":
            for side in ("self", "other"):
                factor = saved(child, side)
                if factor is not None and factor.dim() > 1 and bool(((factor == 0) | (factor == 1)).all()):
                    return _spread(factor == 0, shape)
        if name not in ("Mul", "Div"):
            return None
        node = child
    return None


def _spread(mask: Tensor | None, shape: torch.Size) -> Tensor | None:
    try:
        return None if mask is None else mask.bool().expand(shape)
    except RuntimeError:
        return None
