"""G19: the loss is clipped where the gradients were meant to be, so what lies beyond gets no gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Finding, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.source import knowledge
from unstuck.source.flow import argument, behind, producers
from unstuck.source.values import Const, Group, Tensor, Value

if TYPE_CHECKING:
    from unstuck.source import Script

rule = Rule(
    code="G19",
    name="loss-clipped",
    title="the loss clipped instead of the gradients, so that examples beyond the limit teach nothing",
    severity=Severity.WARNING,
    explains=("O01", "O07", "G09"),
)

CLAMPS = frozenset({"clamp", "clip", "clamp_", "clip_", "clamp_max", "clamp_max_"})
SMALLEST = frozenset({"min", "minimum", "fmin"})
SCALES = frozenset({"add", "mult", "div", "sum", "mean", "neg", "scale"})
"""Operations that make a loss out of a loss."""
FLAT = "Beyond the limit the loss is a constant with a slope of 0: just the examples that are worst get no gradient."
FLAT_ERROR = (
    "Where the error is beyond the limits its square is a constant with a slope of 0: large errors teach nothing."
)
FIX = "Remove the limit and clip the gradients: torch.nn.utils.clip_grad_norm_ between backward() and step()."
FIX_ERROR = "Use smooth_l1_loss (huber_loss) on the unclipped error, which limits its gradient and not the error."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Behind a backward(): a loss with an upper limit, or the square of a clipped error."""
    for value in behind(Group([call.value for call in script.facts.backwards if call.value is not None])):
        if not isinstance(value, Tensor) or value.cut:
            continue
        if _limits_a_loss(value):
            yield _finding(value, "The loss has an upper limit", FLAT, FIX)
        elif _squares_a_clipped_error(value):
            yield _finding(value, "The error is clipped before it is squared", FLAT_ERROR, FIX_ERROR)


def _limits_a_loss(value: Tensor) -> bool:
    if not value.inputs:
        return False
    if value.op in CLAMPS:
        position = 0 if "max" in value.op else 1
        limit = argument(value, "max", position)
        return limit is not None and limit != Const(None) and _is_loss(value.inputs[0])
    if value.op in SMALLEST and len(value.inputs) == 2:
        one, other = value.inputs
        return (_is_number(other) and _is_loss(one)) or (_is_number(one) and _is_loss(other))
    return False


def _is_loss(value: Value, depth: int = 6) -> bool:
    """Certainly a loss of torch, weighted, summed or averaged."""
    made = list(producers(value))
    return bool(made) and all(_is_loss_made(maker, depth) for maker in made)


def _is_loss_made(value: Value, depth: int) -> bool:
    if not isinstance(value, Tensor) or value.cut or not depth:
        return False
    if value.op in knowledge.LOSS_FUNCTIONS:
        return True
    return value.op in SCALES and any(_is_loss(item, depth - 1) for item in value.inputs)


def _is_number(value: Value) -> bool:
    """A constant, as it is or as a tensor."""
    if isinstance(value, Tensor):
        if value.op in ("rebuilt", "full", "full_like") or value.op in knowledge.SAME_VALUES:
            return _is_number((value.args if value.op.startswith("full") else value.inputs)[0])
        return value.op in ("ones", "ones_like")
    return isinstance(value, Const) and isinstance(value.value, int | float)


def _squares_a_clipped_error(value: Tensor) -> bool:
    square = value.op == "square" or (value.op == "pow" and value.inputs[1:2] in ((Const(2),), (Const(2.0),)))
    inner = list(producers(value.inputs[0])) if square and value.inputs else []
    return bool(inner) and all(isinstance(item, Tensor) and _is_clipped_error(item) for item in inner)


def _is_clipped_error(value: Tensor) -> bool:
    if value.op not in ("clamp", "clip") or argument(value, "min", 0) is None or argument(value, "max", 1) is None:
        return False
    error = list(producers(value.inputs[0]))
    return bool(error) and all(isinstance(item, Tensor) and item.op == "sub" for item in error)


def _finding(value: Tensor, what: str, cause: str, fix: str) -> Finding:
    return rule.finding(
        Witness.SOURCE,
        f"{what} ({value.op}) on the way to backward().",
        cause=cause,
        fix=fix,
        subject=Subject("call", f"limit at {value.place}"),
        place=value.place,
        confidence=Confidence.LIKELY,
    )
