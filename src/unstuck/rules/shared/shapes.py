"""What the text of a script says about the shape of a value: its rank and sides, as far as they are known."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import msgspec

from unstuck.source.flow import argument
from unstuck.source.values import UNKNOWN, Choice, Const, Group, Instance, Tensor, Value

DEEPEST = 60
FACTORIES = frozenset("randn rand zeros ones empty randint full".split())
ELEMENTWISE = frozenset(
    "relu sigmoid tanh gelu silu elu leaky_relu softplus dropout log exp sqrt abs square pow neg clamp float double "
    "half bfloat16 long int bool to cuda cpu contiguous clone detach type type_as softmax log_softmax logsigmoid add "
    "sub mult div rsub sin cos LayerNorm BatchNorm1d requires_grad_ compare".split()
)


ARITHMETIC = frozenset("add sub mult div rsub pow".split())
"""Where the other operand may have any shape too."""


class Shape(msgspec.Struct, frozen=True):
    """Sides of a tensor. A side that is not known is None; `sides` is None when not even the rank is known."""

    sides: tuple[int | None, ...] | None = None
    last: int | None = None
    """The last side, which may be known when the rank is not."""

    @property
    def rank(self) -> int | None:
        """How many sides it has, if that is known."""
        return None if self.sides is None else len(self.sides)


ANY = Shape()


def of_sides(sides: Sequence[int | None]) -> Shape:
    """A shape of known rank."""
    return Shape(tuple(sides), sides[-1] if sides else None)


def shape_of(value: Value | None, depth: int = 0) -> Shape:
    """What is known of the shape of a value."""
    if isinstance(value, Choice):
        shapes = {shape_of(option, depth + 1) for option in value.options}
        return shapes.pop() if len(shapes) == 1 else ANY
    if not isinstance(value, Tensor) or depth > DEEPEST:
        return ANY
    read = _READERS.get(value.op)
    if read is not None:
        return read(value, depth)
    if value.op in ELEMENTWISE:
        unknown = value.op in ARITHMETIC and any(not isinstance(item, Tensor | Choice | Const) for item in value.inputs)
        tensors = [item for item in value.inputs if isinstance(item, Tensor | Choice)]
        return ANY if unknown else _broadcast([shape_of(item, depth + 1) for item in tensors])
    return ANY


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Several tensors give one shape only where they agree on it."""
    return shapes[0] if shapes and all(shape == shapes[0] for shape in shapes) else ANY


def _input(tensor: Tensor, depth: int) -> Shape:
    return shape_of(tensor.inputs[0], depth + 1) if tensor.inputs else ANY


def _made(tensor: Tensor, depth: int) -> Shape:
    """`torch.randn(64, 1)`: all positional arguments are sides."""
    given = [item for item in tensor.inputs if not (item in tensor.options.values() and item not in tensor.args)]
    if tensor.op == "randint":
        sizes = tensor.inputs[-1] if isinstance(tensor.inputs[-1], Group) else UNKNOWN
        sizes = next((item for item in tensor.inputs if isinstance(item, Group)), sizes)
        return _sides(sizes.items) if isinstance(sizes, Group) else ANY
    if tensor.op == "full":
        first = tensor.node.args[0] if isinstance(tensor.node, ast.Call) and tensor.node.args else None
        return _sides(given) if isinstance(first, ast.Tuple | ast.List) else ANY
    if len(given) == 1 and isinstance(given[0], Group):
        return _sides(given[0].items)
    if len(given) == 1 and not isinstance(given[0], Const):
        return ANY  # a number, or a whole shape in a variable
    return _sides(given)


def _sides(values: Sequence[Value]) -> Shape:
    return of_sides([_number(value) for value in values]) if values else ANY


def _number(value: Value | None) -> int | None:
    number = value.value if isinstance(value, Const) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _rebuilt(tensor: Tensor, depth: int) -> Shape:
    """`torch.tensor([[1.0], [2.0]])`."""
    node = tensor.node
    first = node.args[0] if isinstance(node, ast.Call) and node.args else None
    sides: list[int | None] = []
    while isinstance(first, ast.List | ast.Tuple):
        sides.append(len(first.elts))
        first = first.elts[0] if first.elts else None
    return of_sides(sides) if sides and isinstance(first, ast.Constant | ast.UnaryOp) else ANY


def _rows(tensor: Tensor, depth: int) -> Shape:
    """A batch of a dataset's tensor: the same except for the number of rows, which is the loader's batch size."""
    sides, loader = _input(tensor, depth).sides, tensor.args[0] if tensor.args else None
    if not sides or not isinstance(loader, Instance):
        return ANY
    size = loader.args[1] if len(loader.args) > 1 else loader.kwargs.get("batch_size", Const(1))
    return ANY if size == Const(None) else of_sides([_number(size), *sides[1:]])


def _linear(tensor: Tensor, depth: int) -> Shape:
    module = tensor.module
    given = (module.args[1] if len(module.args) > 1 else module.kwargs.get("out_features")) if module else None
    last, before = _number(given), _input(tensor, depth).sides
    return of_sides([*before[:-1], last]) if before else Shape(None, last)


def _view(tensor: Tensor, depth: int) -> Shape:
    given = tensor.args
    if len(given) == 1 and isinstance(given[0], Group):
        given = tuple(given[0].items)
    if not given or any(isinstance(item, Group) for item in given):
        return ANY
    if len(given) == 1 and _number(given[0]) is None:
        return ANY
    return of_sides([None if (side := _number(item)) == -1 else side for item in given])


def _squeeze(tensor: Tensor, depth: int) -> Shape:
    before, axis = _input(tensor, depth), argument(tensor, "dim", 0)
    number = _number(axis)
    if axis is None or number is None or before.sides is None:
        return ANY
    sides = list(before.sides)
    if -len(sides) <= number < len(sides) and sides[number] == 1:
        del sides[number]
        return of_sides(sides)
    return ANY


def _unsqueeze(tensor: Tensor, depth: int) -> Shape:
    before, number = _input(tensor, depth), _number(argument(tensor, "dim", 0))
    if number is None:
        return ANY
    if before.sides is None:
        return Shape(None, 1) if number == -1 else ANY
    sides = list(before.sides)
    sides.insert(number if number >= 0 else len(sides) + 1 + number, 1)
    return of_sides(sides)


def _reduce(tensor: Tensor, depth: int) -> Shape:
    """`x.sum(1)` loses a side, `x.sum(1, keepdim=True)` makes it 1, `x.sum()` is a number."""
    axis, keep = argument(tensor, "dim", 0), tensor.options.get("keepdim", argument(tensor, "keepdim", 1))
    before = _input(tensor, depth).sides
    if axis is None:
        return of_sides([])
    axes = [_number(item) for item in (axis.items if isinstance(axis, Group) else [axis])]
    if before is None or None in axes or keep not in (None, Const(True), Const(False)):
        return ANY
    places = {number % len(before) for number in axes if number is not None}
    if keep == Const(True):
        return of_sides([1 if place in places else side for place, side in enumerate(before)])
    return of_sides([side for place, side in enumerate(before) if place not in places])


def _item(tensor: Tensor, depth: int) -> Shape:
    """`x[:, 0]`, `x[a:b]`, `x[:, None]`, `x[indices]`."""
    before, node = _input(tensor, depth).sides, tensor.node
    if before is None or not isinstance(node, ast.Subscript):
        return ANY
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    sides: list[int | None] = []
    rest = list(before)
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is None:
            sides.append(1)
        elif not rest or (isinstance(part, ast.Constant) and part.value is Ellipsis):
            return ANY
        elif isinstance(part, ast.Slice):
            whole = part.lower is None and part.upper is None
            side = rest.pop(0)
            sides.append(side if whole else 1 if _is_one_row(part) else None)
        elif isinstance(part, ast.Constant) or _is_negative(part):
            rest.pop(0)
        else:
            return ANY  # an index may be a number, a mask or a tensor of any rank
    return of_sides([*sides, *rest])


def _is_one_row(part: ast.Slice) -> bool:
    """`i : i + 1`."""
    upper = part.upper
    return isinstance(upper, ast.BinOp) and isinstance(upper.right, ast.Constant) and upper.right.value == 1


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)


_READERS: dict[str, Callable[[Tensor, int], Shape]] = {
    **dict.fromkeys(FACTORIES, _made),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "prod"), _reduce),
    "rebuilt": _rebuilt,
    "batch": _rows,
    "Linear": _linear,
    "view": _view,
    "reshape": _view,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "getitem": _item,
}
