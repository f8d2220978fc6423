"""The end of the graph behind a loss, and what its backward will ask of the tensors where that end begins.

Only operations that are part of a formula are followed, such as sums, products and losses; a layer is not. The nodes of
the graph are called one by one, so no hook runs, nothing is freed and no gradient is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect.graph import (
    Node,
    Token,
    is_see_through,
    knows_hooks,
    operation,
    saved,
    saved_list,
    shape_of,
)
from unstuck.capture.measure.tensors import reading
from unstuck.capture.torch_hooks.internals import SavedTensor

MOST_NODES = 4000
LARGEST_SURPRISE = 2**16
"""Numbers in a regression that is still looked at."""
FORMULA = frozenset(
    {
        "Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Mean", "Sum", "Stack", "Cat", "Exp", "Log", "Pow", "Clamp",
        "ClampMin", "ClampMax", "Minimum", "Maximum", "Min", "Max", "Where", "Abs", "Square", "Sqrt", "Relu",
        "Threshold", "Softplus", "LogSigmoid", "Sigmoid", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss",
        "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "Mv", "Dot", "Unbind", "Split", "Chunk", "IndexSelect",
        "MaskedSelect", "Prod",
    }
)  # fmt: skip
_REGRESSIONS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_SHARES = frozenset({"Softmax", "LogSoftmax", "Logsumexp"})
_ON_THE_WAY = frozenset({"Log", "Clamp", "Sub", "Div", "Sum", "Add"})
_FEW = 8
_KEY = "unstuck.end"


def mark_end(node: Node) -> Token:
    """What a node is known by where a graph is followed as far as that."""
    token: Token = node.metadata.setdefault(_KEY, Token())
    return token


class LogProbability(NamedTuple):
    """Where the logarithms of the probabilities of chosen actions leave the network."""

    node: Node
    sign: float
    """-1 where the graph holds its negative."""
    actions: Tensor | None
    """Which they are, where these are whole numbers."""


class Surprise(NamedTuple):
    """A regression: how far its targets are above what was predicted, one number for each."""

    node: Node
    above: Tensor
    target: Tensor | None
    chosen: Node | None
    """The `gather` or `max` that chose the predictions, if one did."""


class Head:
    """The end of one graph."""

    formula: Collection[str] = FORMULA
    """Operations that are followed."""

    def __init__(self, root: Node, ends: Collection[Token] = ()) -> None:
        self.root = root
        self.log_probabilities: list[LogProbability] = []
        self.entropies: list[Node] = []
        """Sums of `p * log p`."""
        self.surprises: list[Surprise] = []
        self.is_whole = True
        """Was all of it looked at?"""
        self.ends: dict[Token, Node] = {}
        """Those of the wanted ones that were met."""
        self._nodes: set[Node] = set()
        self._wanted = set(ends)
        self._explore()

    @property
    def nodes(self) -> Collection[Node]:
        """All that were looked at."""
        return self._nodes

    def _explore(self) -> None:
        """In the order in which a formula is written, so that lists keep theirs."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node in self._nodes:
                continue
            if len(self._nodes) >= MOST_NODES:
                self.is_whole = False
                return
            self._nodes.add(node)
            if self._is_end(node) or self._recognize(node):
                continue
            if node is self.root or operation(node) in self.formula or is_see_through(node):
                waiting.extend(child for child, _ in reversed(node.next_functions) if child is not None)

    def _is_end(self, node: Node) -> bool:
        token = node.metadata.get(_KEY) if self._wanted else None
        if token not in self._wanted:
            return False
        self.ends[token] = node
        return True

    def _recognize(self, node: Node) -> bool:
        """Note what is known; True if nothing below it is of interest."""
        name = operation(node)
        if name in ("Gather", "Log", "NllLoss"):
            found = _log_probability(node, name)
            if found is not None:
                self.log_probabilities.append(found)
                return True
        elif name == "Div" and _is_gaussian(node):
            self.log_probabilities.append(LogProbability(node, 1.0, None))
            return True
        elif name == "Sum" and _is_entropy(node):
            self.entropies.append(node)
            return True
        elif name in _REGRESSIONS:
            value, target = saved(node, "self"), saved(node, "target")
            if value is not None and target is not None and value.shape == target.shape and _is_small(value):
                above = (target - value).detach().reshape(-1)
                self.surprises.append(Surprise(node, above, target.detach().reshape(-1), _chosen(node)))
        elif name == "Pow" and getattr(node, "_saved_exponent", None) == 2:
            self._square(node)
        return False

    def _square(self, node: Node) -> None:
        """`(target - value) ** 2`, written by hand, in either order."""
        inner = node.next_functions[0][0]
        difference = saved(node, "self")
        while inner is not None and is_see_through(inner):
            inner = inner.next_functions[0][0]
        if inner is None or difference is None or operation(inner) != "Sub" or not _is_small(difference):
            return
        one, other = (child for child, _ in inner.next_functions[:2])
        if (one is None) == (other is None):
            return
        above = (difference if one is None else -difference).detach().reshape(-1)
        self.surprises.append(Surprise(node, above, None, _chosen(inner)))

    def pulls(self, wanted: Collection[Node]) -> dict[Node, Tensor]:
        """The derivative of the loss by what these nodes returned. Empty if the graph may not be asked."""
        return {node: pull for (node, _), pull in self.pulls_of({(node, 0) for node in wanted}).items()}

    def pulls_of(
        self, wanted: Collection[tuple[Node, int]], weight: Tensor | None = None
    ) -> dict[tuple[Node, int], Tensor]:
        """The same for single results of nodes that return several. `weight` is that of the end of the graph."""
        nodes = {node for node, _ in wanted}
        leads = self._leading_to(nodes)
        order = self._ordered(leads)
        if not all(map(_may_be_called, (node for node in order if node not in nodes))):
            return {}
        asked: dict[Node, list[Tensor | None]] = {}
        found: dict[tuple[Node, int], Tensor] = {}
        with reading():
            asked[self.root] = [torch.ones(shape_of(self.root)) if weight is None else weight]
            for node in order:
                given = asked.pop(node, None)
                if given is None:
                    continue
                if node in nodes:
                    for place, pull in enumerate(given):
                        if pull is not None and (node, place) in wanted:
                            found[(node, place)] = pull
                    continue
                results = node(*given)
                results = results if isinstance(results, tuple) else (results,)
                for (child, place), result in zip(node.next_functions, results, strict=False):
                    if child in leads and isinstance(result, Tensor):
                        _add(asked, child, place, result)
        return found

    def _leading_to(self, wanted: set[Node]) -> set[Node]:
        parents: dict[Node, list[Node]] = {}
        for node in self._nodes:
            for child, _ in node.next_functions:
                if child is not None and child in self._nodes:
                    parents.setdefault(child, []).append(node)
        leads, waiting = set(), [node for node in wanted if node in self._nodes]
        while waiting:
            node = waiting.pop()
            if node not in leads:
                leads.add(node)
                waiting.extend(parents.get(node, ()))
        return leads

    def _ordered(self, leads: set[Node]) -> list[Node]:
        """Each node after all that use it."""
        if self.root not in leads:
            return []
        finished: list[Node] = []
        seen = {self.root}
        stack = [(self.root, iter(self.root.next_functions))]
        while stack:
            node, children = stack[-1]
            child = next((child for child, _ in children if child in leads and child not in seen), None)
            if child is None:
                stack.pop()
                finished.append(node)
            else:
                seen.add(child)
                stack.append((child, iter(child.next_functions)))
        return finished[::-1]


def _add(asked: dict[Node, list[Tensor | None]], node: Node, place: int, more: Tensor) -> None:
    metadata = node._input_metadata
    shape = tuple(metadata[place].shape)
    more = more if tuple(more.shape) == shape else more.sum_to_size(shape)
    known = asked.setdefault(node, [None] * len(metadata))
    before = known[place]
    known[place] = more if before is None else before + more


def _may_be_called(node: Node) -> bool:
    """Is it torch's own, and does nothing of the program's run when it asks for what it saved?"""
    if getattr(type(node), "__module__", "") not in ("", "builtins", "torch._C._functions", "torch.autograd"):
        return False
    if not knows_hooks:  # then there is no way to see whether hooks of the program's would run
        return False
    for name in _raw_names(type(node)):
        try:
            raw = getattr(node, name)
            kept = raw if isinstance(raw, tuple) else (raw,)
            if any(isinstance(one, SavedTensor) and getattr(one, "unpack_hook", None) is not None for one in kept):
                return False
        except RuntimeError:  # freed by an earlier backward
            return False
    return True


def _is_small(tensor: Tensor) -> bool:
    return tensor.numel() <= LARGEST_SURPRISE


_names: dict[type, tuple[str, ...]] = {}


def _raw_names(kind: type) -> tuple[str, ...]:
    if kind not in _names:
        _names[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
    return _names[kind]


def _first_child(node: Node) -> Node:
    return next((child for child, _ in node.next_functions if child is not None), None)


def _below(node: Node, may_pass: Callable[[str], bool]) -> set[str]:
    """Names of the next operations, through those that may be passed."""
    found: set[str] = set()
    waiting, left = [node], _FEW
    while waiting and left:
        each = waiting.pop(0)
        left -= 1
        name = operation(each)
        found.add(name)
        if may_pass(name) or is_see_through(each):
            waiting.extend(child for child, _ in each.next_functions if child is not None)
    return found


def _are_shares(node: Node) -> bool:
    """Do these numbers come out of a softmax, or of its logarithm?"""
    return node is not None and bool(_below(node, _ON_THE_WAY.__contains__) & _SHARES)


def _log_probability(node: Node, name: str) -> LogProbability | None:
    inside = _first_child(node)
    if inside is None:
        return None
    if name == "NllLoss":
        labels = saved(node, "target")
        single = getattr(node, "_saved_reduction", 1) == 0 and labels is not None
        return LogProbability(node, -1.0, labels.detach().reshape(-1)) if single and labels is not None else None
    if name == "Gather":
        index = saved(node, "index")
        logarithm = bool(_below(inside, _ON_THE_WAY.__contains__) & {"LogSoftmax", "Logsumexp", "Log"})
        if index is None or not logarithm or not _are_shares(inside):
            return None
        return LogProbability(node, 1.0, index.detach().reshape(-1))
    # The logarithm of a probability that was picked out.
    picks, each = None, inside
    while each is not None and is_see_through(each):
        picks = picks if picks is not None else _picked(each)
        each = _first_child(each)
    if picks is None or each is None or not _are_shares(each):
        return None
    return LogProbability(node, 1.0, picks)


def _picked(node: Node) -> Tensor | None:
    name = operation(node)
    if name == "Gather":
        index = saved(node, "index")
        return None if index is None else index.detach().reshape(-1)
    if name == "Select":
        place = getattr(node, "_saved_index", None)
        return torch.tensor([place]) if isinstance(place, int) and place < 2**62 else None
    if name == "Index":
        last = next(reversed(saved_list(node, "indices")), None)
        return None if last is None else last.detach().reshape(-1)
    return None


def _is_gaussian(node: Node) -> bool:
    """`-(value - loc) ** 2 / (2 * var)`, as `Normal.log_prob` computes it."""
    negative = node.next_functions[0][0]
    if negative is None or operation(negative) != "Neg":
        return False
    square = negative.next_functions[0][0]
    return (
        square is not None
        and operation(square) == "Pow"
        and getattr(square, "_saved_exponent", None) == 2
        and square.next_functions[0][0] is not None
        and operation(square.next_functions[0][0]) == "Sub"
    )


def _is_entropy(node: Node) -> bool:
    """`(p * log p).sum(-1)` of one softmax."""
    product = node.next_functions[0][0]
    if product is None or operation(product) != "Mul":
        return False
    factors = [child for child, _ in product.next_functions if child is not None]
    if len(factors) != 2 or not all(map(_are_shares, factors)):
        return False
    one, other = map(_solid, factors)
    return (_is_share(one) and _is_logarithm(other)) or (_is_share(other) and _is_logarithm(one))


def _solid(node: Node) -> Node:
    """The first operation that is not a reshape or a limit."""
    while is_see_through(node) or operation(node) == "Clamp":
        node = _first_child(node)
    return node


def _is_share(node: Node) -> bool:
    return operation(node) in ("Softmax", "Exp", "Div")


def _is_logarithm(node: Node) -> bool:
    if operation(node) != "Sub":
        return operation(node) in ("LogSoftmax", "Log")
    norm = node.next_functions[1][0]
    return norm is not None and operation(_solid(norm)) == "Logsumexp"


def _chosen(node: Node) -> Node | None:
    """What picked the predictions of a regression: the first `gather`, `index` or `max` below it."""
    each: Any = _first_child(node)
    while each is not None:
        if operation(each) in ("Gather", "Max", "Index"):
            return each
        if not is_see_through(each):
            return None
        each = _first_child(each)
    return None
