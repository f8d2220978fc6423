"""Formulas whose value or gradient is infinite or NaN for inputs they do receive."""

from __future__ import annotations

import ast

import msgspec

from unstuck.rules.gradients.unsafe_numerics import Formula
from unstuck.source.flow import producers
from unstuck.source.reader import knowledge
from unstuck.source.values import Const, Tensor, Value, alternatives

RESHAPES = knowledge.SAME_VALUES - {"getitem"}
COSINES = frozenset("cosine_similarity CosineSimilarity matmul mm bmm einsum linear matmult dot".split())
"""Operations whose result is near 1 or -1 for vectors that point the same way, and slightly beyond through rounding."""

LATE = frozenset({"log", "log2", "log10", "sqrt", "rsqrt"})
"""Operations whose slope is infinite at 0."""


SAME_EDGE = {"rsqrt": "sqrt", "reciprocal": "div", "arccos": "acos", "arcsin": "asin", "log2": "log", "log10": "log"}
"""Operations with the same edge under several names."""


class Unsafe(msgspec.Struct, frozen=True):
    """The formula, what happens at its edge, and what to write instead."""

    variant: Formula
    form: str
    cause: str
    fix: str
    stable: str = ""
    """The stable operation with the same result, if there is one."""
    rare: bool = False
    """Only a perfect fit reaches the edge."""


LOG_SOFTMAX = Unsafe(
    Formula.LOG_SOFTMAX,
    "log(softmax(x))",
    "A probability that underflows to 0 has a logarithm of -inf and a gradient of NaN.",
    "Use log_softmax(x), which gives the same result and stays finite.",
    "log_softmax",
)
LOG_SIGMOID = Unsafe(
    Formula.LOG_SIGMOID,
    "log(sigmoid(x))",
    "The sigmoid of a score below about -89 is exactly 0 in float32: its logarithm is -inf and its gradient NaN.",
    "Use logsigmoid(x), which gives the same result and stays finite.",
    "logsigmoid",
)
LOG_ONE_MINUS = Unsafe(
    Formula.LOG_SIGMOID,
    "log(1 - sigmoid(x))",
    "The sigmoid of a score above about 17 is exactly 1 in float32: the logarithm is -inf and its gradient NaN.",
    "Use logsigmoid(-x), which gives the same result, or binary_cross_entropy_with_logits on the scores.",
    "logsigmoid-",
)
SOFTPLUS = Unsafe(
    Formula.SOFTPLUS,
    "log(1 + exp(x))",
    "exp(x) overflows to infinity from x = 89 in float32, so the result is infinite and the gradient NaN.",
    "Use softplus(x), which gives the same result without overflow.",
    "softplus",
)
LOG_SUM_EXP = Unsafe(
    Formula.LOG_SUM_EXP,
    "log(sum(exp(x)))",
    "exp(x) overflows above 89 in float32 and underflows to 0 below -104; the logarithm is then infinite too.",
    "Use torch.logsumexp(x, dim), which subtracts the largest score first.",
)
SOFTMAX_BY_HAND = Unsafe(
    Formula.SOFTMAX,
    "exp(x) / sum(exp(x))",
    "exp(x) overflows above 89 in float32, and inf / inf is NaN.",
    "Use torch.softmax(x, dim), which subtracts the largest score first.",
)
ROOT_OF_LOSS = Unsafe(
    Formula.ROOT,
    "sqrt(mean squared error)",
    "The slope of a square root is infinite at 0: a batch that is fitted exactly makes the gradients NaN.",
    "Add a small number under the root: sqrt(... + 1e-8).",
    "+",
    rare=True,
)
ROOT_OF_SQUARES = Unsafe(
    Formula.ROOT,
    "sqrt(sum of squares)",
    "The slope of a square root is infinite at 0: one row of zeros (two equal points) makes the gradients NaN.",
    "Add a small number under the root, sqrt(... + 1e-8), or use torch.linalg.vector_norm, whose gradient is 0 there.",
    "+",
)
ARC = Unsafe(
    Formula.ARC_COSINE,
    "acos(cosine)",
    "The slope of acos is infinite at 1 and -1, and rounding pushes the cosine of parallel vectors past them: "
    "the result is NaN.",
    "Clamp the cosine first: x.clamp(-1 + 1e-7, 1 - 1e-7).",
    "clamp",
)
ZERO_ROW = Unsafe(
    Formula.ZERO_NORM,
    "relu(x) / norm(relu(x))",
    "A row in which every unit is off has norm 0, and 0 / 0 is NaN.",
    "Use torch.nn.functional.normalize(x, dim=-1), which guards the division.",
)
LATE_GUARD = Unsafe(
    Formula.LATE_GUARD,
    "where(x > 0, log(x), ...)",
    "where() selects values, but the gradient still flows through both branches: infinity times 0 is NaN.",
    "Guard the input, not the result: log(x.clamp_min(1e-12)).",
)


def operand(tensor: Tensor) -> Value:
    """What an unsafe operation is applied to: for `where(x > 0, log(x), 0)` that is x."""
    test = tensor.inputs[0]
    return test.inputs[0] if tensor.op == "where" and isinstance(test, Tensor) else test


def unsafe(tensor: Tensor) -> Unsafe | None:
    """The unsafe formula that ends in this operation, if it is one for every possible input."""
    if tensor.op in ("log", "log2", "log10", "log1p"):
        return _logarithm(tensor)
    if tensor.op == "sqrt" or (tensor.op == "pow" and Const(0.5) in tensor.inputs[1:]):
        return _root(tensor)
    if tensor.op in ("acos", "arccos", "asin", "arcsin"):
        return ARC if _all_made_by(tensor.inputs[:1], COSINES) else None
    if tensor.op == "div" and len(tensor.inputs) == 2:
        return _quotient(*tensor.inputs)
    if tensor.op == "where" and len(tensor.inputs) == 3:
        return _choice(*tensor.inputs)
    return None


def _logarithm(tensor: Tensor) -> Unsafe | None:
    made = _made(tensor.inputs[0]) if tensor.inputs else None
    if made is None:
        return None
    if tensor.op == "log1p":
        return SOFTPLUS if made.op == "exp" else None
    if made.op in ("softmax", "sigmoid"):
        return LOG_SOFTMAX if made.op == "softmax" else LOG_SIGMOID
    if made.op == "sub" and made.inputs[0] in (Const(1), Const(1.0)):
        inner = _made(made.inputs[1])
        return LOG_ONE_MINUS if inner is not None and inner.op == "sigmoid" else None
    if made.op == "add" and any(side in (Const(1), Const(1.0)) for side in made.inputs):
        return SOFTPLUS if any(_is(side, "exp") for side in made.inputs) else None
    if made.op == "sum" and made.inputs:
        inner = _made(made.inputs[0])
        return LOG_SUM_EXP if inner is not None and _is_exp_of_scores(inner) else None
    return None


def _root(tensor: Tensor) -> Unsafe | None:
    made = _made(tensor.inputs[0]) if tensor.inputs else None
    if made is None:
        return None
    if made.op == "mse_loss":
        return ROOT_OF_LOSS
    if made.op not in ("sum", "mean") or not made.inputs:
        return None
    squares = _made(made.inputs[0])
    if squares is None or not _is_square(squares):
        return None
    whole = not made.args and not made.options
    return ROOT_OF_LOSS if whole else ROOT_OF_SQUARES


def _quotient(above: Value, below: Value) -> Unsafe | None:
    one, other = _made(above), _made(below)
    if one is None or other is None:
        return None
    if other.op == "sum" and other.inputs and _is_exp_of_scores(one):
        inner = _made(other.inputs[0])
        return SOFTMAX_BY_HAND if inner is not None and _same(one, inner) else None
    if other.op in ("norm", "vector_norm") and one.op == "relu":
        return ZERO_ROW if other.inputs and other.inputs[0] is above else None
    return None


def _choice(test: Value, one: Value, other: Value) -> Unsafe | None:
    if not isinstance(test, Tensor) or test.op not in ("compare", "gt", "ge", "lt", "le", "eq", "ne"):
        return None
    if len(test.inputs) != 2 or test.inputs[1] not in (Const(0), Const(0.0)):
        return None
    tested = test.inputs[0]
    guarded = [side for side in (one, other) if isinstance(side, Tensor) and side.op in LATE and not side.cut]
    late = isinstance(tested, Tensor) and any(side.inputs[:1] == (tested,) for side in guarded)
    return LATE_GUARD if late else None


def _made(value: Value) -> Tensor | None:
    """The one operation that made a value, looking through reshapes but not through indexing."""
    while isinstance(value, Tensor) and value.op in RESHAPES and value.inputs and not value.cut:
        value = value.inputs[0]
    return value if isinstance(value, Tensor) and not value.cut else None


def _is(value: Value, op: str) -> bool:
    made = _made(value)
    return made is not None and made.op == op


def _all_made_by(values: tuple[Value, ...], ops: frozenset[str]) -> bool:
    made = [_made(option) for value in values for option in alternatives(value)]
    return bool(made) and all(item is not None and item.op in ops for item in made)


def _is_square(value: Tensor) -> bool:
    if value.op == "square":
        return True
    if value.op == "mult" and len(value.inputs) == 2:
        return value.inputs[0] is value.inputs[1]
    return value.op == "pow" and len(value.inputs) > 1 and value.inputs[1] in (Const(2), Const(2.0))


def _is_exp_of_scores(value: Tensor) -> bool:
    """exp of the raw output of a layer, which is unbounded."""
    scores = list(producers(value.inputs[0])) if value.op == "exp" and value.inputs else []
    return bool(scores) and all(isinstance(item, Tensor) and item.op in ("Linear", "Conv2d") for item in scores)


def _same(one: Tensor, other: Tensor) -> bool:
    """The same value, or the same text."""
    if one is other or not isinstance(one.node, ast.AST) or not isinstance(other.node, ast.AST):
        return one is other
    return one.inputs[:1] == other.inputs[:1] and ast.dump(one.node) == ast.dump(other.node)
