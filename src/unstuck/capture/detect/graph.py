"""Reads the autograd graph: what made a tensor, what autograd saved, where NaN or infinity can have begun.

Also what a loss ends in: formulas near an edge, limits, masked means, sums of terms. Nodes are known by their names,
and no hook of the user's runs.
"""

from __future__ import annotations

import functools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from unstuck.capture.detect.shapes import note_inputs, shape_from_saved
from unstuck.capture.measure.tensors import finite_range, flaw, is_finite, is_plain, reading
from unstuck.capture.torch_hooks.internals import SavedTensor, has_shapes
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.events import GraphFact, OperationFact, TermFact

knows_hooks = hasattr(SavedTensor, "unpack_hook") and hasattr(SavedTensor, "data")
"""Can a saved tensor be asked for its hook, and for its value without that? Not in torch 2.4."""
_hooks_were_used = False
"""Where that cannot be asked: has any part of this process hooked saved tensors?"""


def saved(node: Any, name: str) -> Tensor | None:
    """What a node of the graph kept under this name, also whole numbers; None if it cannot be had."""
    raw: Any = getattr(node, f"_raw_saved_{name}", None)
    if not isinstance(raw, SavedTensor):  # a function of the user's own keeps a tuple
        return None
    value: Any = None
    try:
        # `_saved_x` would run unpack hooks of the user's (a checkpoint recomputes there); `.data` does not.
        if knows_hooks:
            value = raw.data if raw.unpack_hook is None else None
        elif not _hooks_were_used:
            value = getattr(node, f"_saved_{name}")
    except RuntimeError:  # freed by a backward
        return None
    readable = isinstance(value, Tensor) and type(value) in (Tensor, torch.nn.Parameter) and not value.is_meta
    return value if readable and value.layout is torch.strided else None


def saved_list(node: Any, name: str) -> list[Tensor | None]:
    """What a node kept under this name, where that is several tensors; empty if it cannot be had."""
    raws: Any = getattr(node, f"_raw_saved_{name}", None)
    if not isinstance(raws, tuple) or (_hooks_were_used and not knows_hooks):
        return []
    try:
        if knows_hooks:
            found = [raw.data if isinstance(raw, SavedTensor) and raw.unpack_hook is None else None for raw in raws]
        else:
            found = list(getattr(node, f"_saved_{name}"))
    except RuntimeError:  # freed by a backward
        return []
    return [value if isinstance(value, Tensor) else None for value in found]


def watch_hooks(patches: Patches) -> None:
    """Notice hooks on saved tensors, where torch cannot be asked for them."""
    if not knows_hooks:
        patches.around(saved_tensors_hooks, "__enter__", _entered, lambda token, result, error: None)


def _entered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _hooks_were_used
    _hooks_were_used = True


Node = Any
_MOST_NODES = 20_000
_LONGEST_CHAIN = 32
_MOST_SUSPECTS = 8

_SEE_THROUGH = frozenset(
    {
        "View", "UnsafeView", "Reshape", "ReshapeAlias", "ViewAs", "T", "Transpose", "Permute",
        "Squeeze", "Unsqueeze", "Index", "Select", "Slice", "Gather", "ToCopy", "Clone", "Contiguous",
        "Expand", "Alias", "Narrow", "Flatten", "Unflatten", "SwapAxes", "Movedim", "Copy",
    }
)  # fmt: skip
_PICKS_ROWS = frozenset({"Index", "IndexSelect"})
_RISKY = frozenset(
    {
        "Log", "Log2", "Log10", "Log1P", "Sqrt", "Rsqrt", "Div", "Pow", "Exp", "Exp2", "Expm1",
        "Reciprocal", "LinalgVectorNorm", "Norm", "Std", "Var", "Acos", "Asin", "Acosh", "Atanh",
        "Atan2", "Tan", "Cosh", "Sinh", "Lgamma", "Digamma", "Erfinv", "Logit", "Cdist",
        "LinalgInvEx", "LinalgSolveEx",
    }
)  # fmt: skip
_AGAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "Log": torch.log,
    "Log2": torch.log2,
    "Log10": torch.log10,
    "Log1P": torch.log1p,
    "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt,
    "Reciprocal": torch.reciprocal,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Acosh": torch.acosh,
    "Atanh": torch.atanh,
    "Exp": torch.exp,
    "Logit": torch.logit,
}


class Token:
    """Put into the metadata of a node, it goes when the node goes.

    A node outlives its Python object, so a weak reference to that says nothing; what is in the metadata of a node
    lives exactly as long as the node.
    """

    __slots__ = ("__weakref__",)


def made_by(tensor: Tensor) -> str:
    """The node behind a tensor, seen through reshapes, selections and casts, such as `SoftmaxBackward0`."""
    node = origin(tensor)
    return "" if node is None else str(node.name())


def origin(tensor: Tensor) -> Node:
    """The node that `made_by` names; None for a tensor without history."""
    node: Node = tensor.grad_fn
    for _ in range(_LONGEST_CHAIN):
        if node is None or not is_see_through(node) or not node.next_functions:
            break
        node = node.next_functions[0][0]
    return node


def softmax_axis(node: Node) -> int | None:
    """The axis that a softmax ran over, counted from 0."""
    if node is None or operation(node) not in ("Softmax", "LogSoftmax"):
        return None
    dim: object = getattr(node, "_saved_dim", None)
    if not isinstance(dim, int) or dim < 2**63:
        return dim if isinstance(dim, int) else None
    # A negative axis is kept as an unsigned number.
    shape = shape_of(node)
    result = None if shape else saved(node, "result")
    sides = len(shape) if result is None else result.dim()
    return dim - 2**64 + sides if sides else None


def shape_of(node: Node) -> tuple[int, ...]:
    """The shape of what an operation returned; empty where it had none, or torch does not say."""
    if not has_shapes:
        return shape_from_saved(node, saved)
    metadata = getattr(node, "_input_metadata", ())
    try:
        return tuple(int(side) for side in metadata[0].shape) if metadata else ()
    except (RuntimeError, AttributeError, TypeError):  # a nested tensor has no such shape
        return ()


_IN_ORDER = frozenset({"View", "UnsafeView", "Reshape", "ReshapeAlias", "ViewAs", "Squeeze", "Unsqueeze", "ToCopy"})
"""Operations that hand on all numbers in the same order."""
_MOVES_AXES = frozenset({"Permute", "Transpose", "T", "Clone", "Movedim"})


def is_in_order(node: Node) -> bool:
    """Does it hand on all numbers in the same order?"""
    return operation(node) in _IN_ORDER


def lost_classes(scores: Tensor) -> tuple[tuple[int, ...], int] | None:
    """Where a reshape has taken the classes off the axis on which a loss expects them, the second: the shape before it
    and the axis there. None where they are in their place, or that is not known."""
    node, shape = scores.grad_fn, tuple(scores.shape)
    # Rows that were picked, such as those of pixels with a label, are rows of what was reshaped.
    while node is not None and operation(node) in _PICKS_ROWS and len(shape) == 2:
        above = node.next_functions[0][0]
        whole = shape_of(above) if above is not None else ()
        if len(whole) != 2 or whole[1] != shape[1]:
            return None
        node, shape = above, whole
    return _moved_off(node, shape) if scores.dim() > 1 else None


def _moved_off(node: Node, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """The same for what a node returned, in this shape."""
    classes, inner = shape[1], math.prod(shape[2:])
    for _ in range(_LONGEST_CHAIN):
        children = [] if node is None else [child for child, _ in node.next_functions if child is not None]
        if node is None or len(children) != 1 or not (is_in_order(node) or operation(node) == "LogSoftmax"):
            break
        if not has_shapes:
            note_inputs(node, saved)
        node = children[0]
    before = shape_of(node) if node is not None else ()
    if node is None or classes < 2 or math.prod(before) != math.prod(shape) or before == shape:
        return None
    insides = [math.prod(before[axis + 1 :]) for axis in range(len(before))]
    found = [axis for axis, size in enumerate(before) if size == classes]
    if not found or any(insides[axis] == inner for axis in found):
        return None
    # An axis of several times as many numbers may hold the classes of several anchors, in either order.
    splits = any(
        size % classes == 0 and inner % insides[axis] == 0 and size * insides[axis] % (inner * classes) == 0
        for axis, size in enumerate(before)
        if axis and size > classes
    )
    is_channels = len(before) > 2 and before[1] == classes
    is_known = operation(node) not in _MOVES_AXES and (is_channels or (len(before) == 2 and before[-1] == classes))
    return None if splits and not is_known else (before, 1 if is_channels else found[-1])


def _lost_before_softmax(nodes: Sequence[Node]) -> tuple[tuple[int, ...], int] | None:
    """The same for a softmax over the second of two axes, as in a loss that is written out."""
    for node in nodes:
        if operation(node) in ("Softmax", "LogSoftmax") and softmax_axis(node) == 1 and len(shape_of(node)) == 2:
            child = node.next_functions[0][0] if node.next_functions else None
            found = _moved_off(child, shape_of(node))
            if found is not None:
                return found
    return None


def is_see_through(node: Node) -> bool:
    """Does it hand its numbers on as they are: a reshape, a selection, a cast?"""
    return operation(node) in _SEE_THROUGH


def nodes_from(root: Node, most: int = _MOST_NODES) -> list[Node]:
    """The graph below a node, each node after everything that uses it: nearest to the loss first."""
    finished: list[Node] = []
    seen = {root}
    stack = [(root, iter(root.next_functions))]
    while stack:
        node, children = stack[-1]
        child = next((c for c, _ in children if c is not None and c not in seen), None)
        if child is None:
            stack.pop()
            finished.append(node)
            if not has_shapes:
                note_inputs(node, saved)
        elif len(seen) < most:
            seen.add(child)
            stack.append((child, iter(child.next_functions)))
    finished.reverse()
    return finished


def risky_operations(root: Node) -> tuple[str, ...]:
    """Operations below a loss that can produce NaN or infinity in the forward pass."""
    return _names(node for node in nodes_from(root) if operation(node) in _RISKY)


def risky_above(root: Node, broken: Sequence[Tensor], healthy: Sequence[Tensor]) -> tuple[str, ...]:
    """Operations whose backward could have spoiled the gradients of all `broken` parameters.

    One that also feeds a `healthy` parameter would have spoiled that as well: named only if no other is left.
    """
    wanted = {id(parameter) for parameter in broken}
    spared = {id(parameter) for parameter in healthy}
    below: dict[Node, frozenset[int]] = {}
    for node in reversed(nodes_from(root)):
        leaf = getattr(node, "variable", None)
        own = frozenset() if leaf is None else frozenset((id(leaf),))
        children = [below[child] for child, _ in node.next_functions if child in below]
        below[node] = own.union(*children)
    suspects = [n for n in nodes_from(root) if operation(n) in _RISKY and wanted <= below[n]]
    exclusive = [node for node in suspects if not spared & below[node]]
    return _names(exclusive or suspects)


class Culprit:
    """An operation whose result is not finite; `low` and `high` bound its input where autograd kept that."""

    def __init__(self, name: str, span: tuple[float, float] | None) -> None:
        self.name = name
        self.low: float | None = span[0] if span else None
        self.high: float | None = span[1] if span else None


def culprit_below(root: Node) -> Culprit | None:
    """The first operation, in the order of execution, that provably made NaN or infinity.

    Reads what autograd saved, so it works before the backward only.
    """
    for node in reversed(nodes_from(root)):
        name = operation(node)
        if name not in _RISKY:
            continue
        result = _saved(node, "result")
        source = _saved(node, "other" if name == "Div" else "self")
        if result is not None and not is_finite(result):
            return Culprit(str(node.name()), None if source is None else finite_range(source))
        if source is not None and result is None and _fails_again(name, source):
            return Culprit(str(node.name()), finite_range(source))
    return None


def _fails_again(name: str, source: Tensor) -> bool:
    if not is_finite(source):
        return False
    with reading():
        if name == "Div":
            return bool((source == 0).any())
        again = _AGAIN.get(name)
        return again is not None and not is_finite(again(source.detach()))


def _saved(node: Node, name: str) -> Tensor | None:
    value = saved(node, name)
    return value if is_plain(value) else None


def operation(node: Node) -> str:
    """The name of a node without its ending: `Softmax` of `SoftmaxBackward0`."""
    return re.sub(r"Backward\d*$", "", str(node.name()))


def _names(nodes: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(node.name()) for node in nodes))[:_MOST_SUSPECTS]


# Where NaN or infinity began, read from what autograd saved: for windows in which modules were not observed.

_FURTHEST = 64
_RESULTS = ("result", "output", "result0")
_TURNS = ("T", "Transpose", "Permute", "ToCopy", "View")


class Break(NamedTuple):
    """Where the first saved value is that was not finite: between two parameters of the model."""

    value: str
    """`nan` or `inf`."""
    after: Tensor | None
    """The last parameter used before it; None if it came into the model so."""
    until: Tensor | None
    """The next parameter used after it."""
    span: tuple[float, float] | None
    """Range of what was finite in it."""


def first_break(root: Node) -> Break | None:
    """The first saved tensor that is broken, by the order of execution. Works before the backward only."""
    nodes = nodes_from(root)[::-1]
    for place, node in enumerate(nodes):
        for name in _saved_names(node.__class__):
            tensor = saved(node, name)
            if tensor is not None and is_plain(tensor) and not is_finite(tensor) and _is_unmeant(tensor):
                made_here = name in _RESULTS
                later = (_own_parameter(used) for used in nodes[place + made_here :])
                until = next((own for own in later if own is not None), None)
                before = [node] if made_here else _makers(node)
                return Break(flaw(tensor), nearest_parameter(before), until, finite_range(tensor))
    return None


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    start = "_raw_saved_"
    return tuple(name.removeprefix(start) for name in dir(kind) if name.startswith(start))


def _is_unmeant(tensor: Tensor) -> bool:
    """A mask of -inf is meant."""
    with reading():
        return bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())


def _own_parameter(node: Node) -> Tensor | None:
    """The parameter that an operation uses itself, perhaps transposed."""
    children = [child for child, _ in node.next_functions if child is not None]
    leaves = (_leaf(child) for child in children)
    own: Tensor | None = next((leaf for leaf in leaves if leaf is not None), None)
    return own


def _makers(node: Node) -> list[Node]:
    """What made the inputs of an operation, without its own parameters."""
    return [child for child, _ in node.next_functions if child is not None and _leaf(child) is None]


def _leaf(node: Node) -> Tensor | None:
    for _ in range(3):
        leaf: Tensor | None = getattr(node, "variable", None)
        inner = [child for child, _ in node.next_functions if child is not None]
        if leaf is not None or len(inner) != 1 or operation(node) not in _TURNS:
            return leaf
        node = inner[0]
    return None


def nearest_parameter(nodes: list[Node], furthest: int = _FURTHEST) -> Tensor | None:
    """The nearest parameter at or below these nodes, breadth first."""
    waiting, seen = list(nodes), 0
    while waiting and seen < furthest:
        node, seen = waiting.pop(0), seen + 1
        own = _own_parameter(node)
        if own is not None:
            return own
        waiting += _makers(node)
    return None


# What a loss ends in.

_MOST_NEAR = 400
_NEAREST = 60
"""Nodes: a softmax further from the loss is the model's own."""
_MOST_NAMES = 12
_MOST_FACTS = 12
_LONGEST_FORMULA = 12
_LARGEST = 2**22
"""Elements of a tensor that is still looked at."""
_TINY = 1e-30
"""So near to 0 that the next step may well be there; guards such as 1e-8 keep far from it."""
_HUGE = 1e-6
"""As a share of the largest number of its type."""
_LOSSES = {
    "MseLoss": "mse_loss",
    "NllLoss": "cross_entropy",
    "NllLoss2D": "cross_entropy",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
}
_REDUCTIONS = {1: "mean", 2: "sum"}


def loss_fact(root: Node) -> GraphFact:
    """What can be said of the end of a graph, before its backward."""
    with reading():
        nodes = _behind(root, _MOST_NEAR)
        names = tuple(str(node.name()) for node in nodes[:_MOST_NAMES])
        facts = (fact for node in nodes for fact in _facts(node))
        found = tuple(fact for fact, _ in zip(facts, range(_MOST_FACTS), strict=False))
        return GraphFact(names, found, tuple(_terms(root)), _live_weight(nodes), _lost_before_softmax(nodes[:_NEAREST]))


_COLLECTS = frozenset({"Stack", "Cat", "Sum", "Neg", "Exp", "Sub", *_SEE_THROUGH} - {"Gather"})
"""What a log-probability passes through before it is weighted; exp and sub make it the ratio of two."""
_MOST_BEHIND = 200


def _live_weight(nodes: Sequence[Node]) -> tuple[int, ...] | None:
    """The factor of a log-probability that gets gradients as well: an advantage that was not detached."""
    for node in nodes:
        factors = [child for child, _ in node.next_functions if child is not None]
        if operation(node) != "Mul" or len(factors) != 2:
            continue
        one, other = factors
        for chosen, weight in ((one, other), (other, one)):
            source = _log_probability(chosen)
            if source is not None and _is_of_another_network(weight, source):
                return shape_of(weight)
    return None


def _log_probability(node: Node) -> Node | None:
    """The scores whose log-probability was taken at chosen places, as `Categorical.log_prob` does."""
    for _ in range(_LONGEST_CHAIN):
        if operation(node) == "Gather":
            inside = next((child for child, _ in node.next_functions if child is not None), None)
            names = [] if inside is None else [operation(each) for each in _behind(inside, 8)]
            return inside if {"LogSoftmax", "Logsumexp"} & set(names) else None
        following = next((child for child, _ in node.next_functions if child is not None), None)
        if operation(node) not in _COLLECTS or following is None:
            return None
        node = following
    return None


def _is_of_another_network(weight: Node, scores: Node) -> bool:
    """Does it use parameters, and not these scores? A focal loss weights a log-probability by itself."""
    behind = _behind(weight, _MOST_BEHIND)
    return scores not in behind and nearest_parameter([weight]) is not None and operation(weight) != "AccumulateGrad"


def _behind(node: Node, most: int) -> list[Node]:
    """The first so many nodes by their distance from here."""
    found: list[Node] = []
    seen, waiting = {node}, deque([node])
    while waiting and len(found) < most:
        each = waiting.popleft()
        found.append(each)
        if not has_shapes:
            note_inputs(each, saved)
        fresh = [child for child, _ in each.next_functions if child is not None and child not in seen]
        seen.update(fresh)
        waiting.extend(fresh)
    return found


def _facts(node: Node) -> Iterator[OperationFact]:
    name = operation(node)
    if name in _EDGES:
        span = _EDGES[name](node)
        if span is not None:
            yield _fact(node, low=span[0], high=span[1])
    elif name in ("Clamp", "ClampMax", "Minimum"):
        yield from _limit(node, name)
    elif name == "Mean":
        yield from _masked_mean(node)
    elif name == "Sub":
        yield from _stretched(node)


def _fact(node: Node, **numbers: Any) -> OperationFact:
    child = next((child for child, _ in node.next_functions if child is not None), None)
    chain = tuple(_chain(child))
    return OperationFact(
        operation(node).lower(), chain, shape_of(node), shape_of(child) if child is not None else (), **numbers
    )


def _chain(node: Node) -> Iterator[str]:
    """The names from here down, along the first input that needs gradients, as `mul`, `nllloss`."""
    for _ in range(_LONGEST_FORMULA):
        if node is None or not node.next_functions:
            return
        if not is_see_through(node):
            yield operation(node).lower()
        node = next((child for child, _ in node.next_functions if child is not None), None)


def _range(tensor: Tensor | None) -> tuple[float, float] | None:
    if tensor is None or not 0 < tensor.numel() <= _LARGEST or tensor.is_complex():
        return None
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def _near_zero(name: str, edge: float = _TINY) -> Any:
    """The range of a saved tensor, if it comes this near to 0, or below it."""

    def look(node: Node) -> tuple[float, float] | None:
        span = _range(saved(node, name))
        return span if span is not None and span[0] < edge else None

    return look


def _near_infinity(node: Node) -> tuple[float, float] | None:
    result = saved(node, "result")
    span = _range(result)
    near = span is not None and result is not None and span[1] > _HUGE * torch.finfo(result.dtype).max
    return span if near else None


def _denominator(node: Node) -> tuple[float, float] | None:
    other = saved(node, "other")
    span = _range(other.abs()) if other is not None and other.numel() <= _LARGEST else None
    return span if span is not None and span[0] < _TINY else None


def _root(node: Node) -> tuple[float, float] | None:
    span = _near_zero("result", math.sqrt(_TINY))(node)
    return (span[0] ** 2, span[1] ** 2) if span is not None else None


def _arc(node: Node) -> tuple[float, float] | None:
    span = _range(saved(node, "self"))
    return span if span is not None and max(-span[0], span[1]) >= 1 else None


def _power(node: Node) -> tuple[float, float] | None:
    exponent = getattr(node, "_saved_exponent", None)
    if not isinstance(exponent, int | float) or exponent >= 1 or exponent == 0:
        return None
    base = saved(node, "self")
    span = _range(base.abs()) if base is not None and base.numel() <= _LARGEST else None
    return span if span is not None and span[0] < _TINY else None


_EDGES: dict[str, Any] = {
    "Log": _near_zero("self"),
    "Log2": _near_zero("self"),
    "Log10": _near_zero("self"),
    "Sqrt": _root,
    "Div": _denominator,
    "Exp": _near_infinity,
    "Rsqrt": _near_infinity,
    "Reciprocal": _near_infinity,
    "Acos": _arc,
    "Asin": _arc,
    "Pow": _power,
}
"""Operations that are not finite somewhere, or have no finite slope there, and how to see that it is near."""


def _limit(node: Node, name: str) -> Iterator[OperationFact]:
    value, other = saved(node, "self"), saved(node, "other")
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    if value is None or not 0 < value.numel() <= _LARGEST:
        return
    if name == "Minimum":
        if other is None or other.numel() == 0 or bool((other != other.reshape(-1)[0]).any()):
            return
        high = float(other.reshape(-1)[0])
    if not isinstance(high, int | float):
        return
    beyond = value > high
    if isinstance(low, int | float):
        beyond = beyond | (value < low)
    yield _fact(node, low=low, limit=float(high), share=float(beyond.float().mean()))


def _masked_mean(node: Node) -> Iterator[OperationFact]:
    """The mean of losses times a mask of ones that end, or begin, with zeros: padding."""
    product = node.next_functions[0][0]
    if product is None or operation(product) != "Mul":
        return
    mask = saved(product, "self" if product.next_functions[0][0] is None else "other")
    if mask is None or mask.dim() < 2 or mask.shape != shape_of(product) or mask.numel() > _LARGEST:
        return
    binary = (mask == 0) | (mask == 1)
    steps = mask.diff(dim=1)
    padded = bool(((steps <= 0).all(1) | (steps >= 0).all(1)).all())
    if padded and bool(binary.all()):
        yield _fact(node, share=float((mask == 0).float().mean()))


def _stretched(node: Node) -> Iterator[OperationFact]:
    """A difference of (N, 1) and (N,), which is N x N; one of the two is from a layer, as it is or picked from it."""
    shape = shape_of(node)
    known = [child for child, _ in node.next_functions if child is not None]
    if len(known) != 1 or len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return
    # A column cut out with a slice is a prediction as it is; an axis that was added is meant to broadcast.
    inner = known[0]
    while operation(inner) == "Slice" and inner.next_functions and inner.next_functions[0][0] is not None:
        inner = inner.next_functions[0][0]
    given, name = shape_of(known[0]), operation(inner)
    column, flat = given == (shape[0], 1), given == (shape[0],)
    as_it_is = not is_see_through(inner) or name == "Squeeze"
    if (column and (as_it_is or name == "Gather")) or (flat and (as_it_is or name in ("Gather", "Index", "Select"))):
        yield _fact(node)


def _terms(node: Node, weight: float = 1.0, depth: int = 12) -> Iterator[TermFact]:
    """The summands of a loss whose reduction can be read, with the constants before them."""
    name = operation(node)
    children = [child for child, _ in node.next_functions if child is not None]
    if depth == 0 or shape_of(node) not in ((), (1,)):
        return
    if name in ("Add", "Sub", "Neg") or is_see_through(node):
        for child in children:
            yield from _terms(child, weight, depth - 1)
    elif name in ("Mul", "Div") and len(children) == 1:
        factor = _constant(node, "self" if node.next_functions[0][0] is None else "other")
        if factor:
            yield from _terms(children[0], weight * factor if name == "Mul" else weight / factor, depth - 1)
    elif name in _LOSSES and children:
        reduction = _REDUCTIONS.get(getattr(node, "_saved_reduction", 0))
        if reduction:
            yield TermFact(_LOSSES[name], reduction, weight, shape_of(children[0]))
    elif name in ("Mean", "Sum") and children:
        yield TermFact(name.lower(), name.lower(), weight, shape_of(children[0]), _is_divergence(children[0]))


def _is_divergence(node: Node) -> bool:
    """A sum of an exponential, a square and what the exponential was taken of: that of a Gaussian from the standard."""
    parts, depth = [node], 6
    summands: list[Node] = []
    while parts and depth:
        inner = [part for part in parts if operation(part) in ("Add", "Sub", "Neg")]
        summands += [part for part in parts if part not in inner]
        parts, depth = [child for part in inner for child, _ in part.next_functions if child is not None], depth - 1
    squares = [part for part in summands if operation(part) == "Pow"]
    powers = [part for part in summands if operation(part) == "Exp"]
    return len(squares) == len(powers) == 1 and powers[0].next_functions[0][0] in summands


def _constant(node: Node, name: str) -> float | None:
    value = saved(node, name)
    return abs(float(value)) if value is not None and value.numel() == 1 else None
