"""G19: the loss is clipped instead of the gradients, so examples beyond the limit get no gradient."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from unstuck.events import Backward, OperationFact
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.source import Script
from unstuck.source.flow import argument, behind, producers
from unstuck.source.reader import knowledge
from unstuck.source.values import Const, Group, Tensor, Value

rule = Rule(
    code="G19",
    name="loss-clipped",
    title="the loss clipped instead of the gradients, so examples beyond the limit get no gradient",
    severity=Severity.WARNING,
    explains=("O01", "O07", "G09", "R08"),
    needs=(Backward,),
)

CLAMPS = frozenset({"clamp", "clip", "clamp_", "clip_", "clamp_max", "clamp_max_"})
SMALLEST = frozenset({"min", "minimum", "fmin"})
SCALES = frozenset({"add", "mult", "div", "sum", "mean", "neg", "scale"})
"""Operations that turn a loss into a loss."""
LIMITED = Subject("loss", "limit")
LOSS_NODES = ("mseloss", "nllloss", "nllloss2d", "smoothl1loss", "huberloss", "binarycrossentropy")
ERRORS = (("pow", "sub"), ("abs", "sub"))
MANY = 0.1
"""A smaller share of errors beyond a limit may be outliers ignored on purpose."""
REDUCED = frozenset({"mean", "sum", "mul", "div", "add", "neg"})
FLAT = "Beyond the limit the loss is constant and its slope 0: the worst examples get no gradient."
FLAT_ERROR = "Beyond the limits the squared error is constant and its slope 0: large errors get no gradient."
FIX = "Remove the limit and clip the gradients: torch.nn.utils.clip_grad_norm_ between backward() and step()."
FIX_ERROR = "Use smooth_l1_loss (huber_loss) on the unclipped error, which limits the gradient instead of the error."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """On the way to a backward(): a loss with an upper limit, or the square of a clipped error."""
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
    """Certainly a torch loss, weighted, summed or averaged."""
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
        f"{what} ({value.op}) on the way to backward().",
        cause=cause,
        fix=fix,
        # A graph shows that there is a limit but not where it is written.
        subject=LIMITED,
        place=value.place,
        confidence=Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A limit in the graph of a loss, with losses or errors beyond it, at the step where most were."""
    worst: tuple[float, Finding] | None = None
    for backward in record.of(Backward):
        for fact in backward.graph.operations if backward.graph is not None else ():
            found = _limit_in_run(backward, fact)
            if found is not None and (worst is None or (fact.share or 0) > worst[0]):
                worst = (fact.share or 0.0, found)
    if worst is not None:
        yield worst[1]


def _limit_in_run(backward: Backward, fact: OperationFact) -> Finding | None:
    if fact.limit is None or not fact.share:
        return None
    error = fact.low is not None and fact.behind[:1] == ("sub",) and _is_squared(backward)
    if not error and not _limits_a_loss_in(fact.behind) and not _limits_squares_in(backward, fact):
        return None
    whole = fact.shape in ((), (1,))
    beyond = "the whole loss is" if whole else f"{100 * fact.share:.3g} % of the {'errors' if error else 'losses'} are"
    what = "The error is clipped before it is squared" if error else "The loss has an upper limit"
    return rule.finding(
        f"{what}, {fact.limit:g}, and at step {backward.step + 1} {beyond} beyond it.",
        cause=FLAT_ERROR if error else FLAT,
        fix=FIX_ERROR if error else FIX,
        subject=LIMITED,
        place=backward.place,
        evidence=[Evidence("limit", fact.limit), Evidence("beyond it", round(100 * fact.share, 1), "%")],
        confidence=Confidence.LIKELY,
    )


def _limits_a_loss_in(chain: tuple[str, ...]) -> bool:
    """Was a torch loss limited, reduced or weighted in between?"""
    inner = next((name for name in chain if name not in REDUCED), "")
    return inner.startswith(LOSS_NODES)


def _limits_squares_in(backward: Backward, fact: OperationFact) -> bool:
    """Is the loss the mean of squared clipped errors, many of them beyond the limit? A hinge is not a plain mean."""
    names = backward.graph.names if backward.graph is not None else ()
    at_the_end = [name.removesuffix("0").removesuffix("1") for name in names[:2]]
    plain = at_the_end in (["MeanBackward", "ClampBackward"], ["SumBackward", "ClampBackward"])
    return plain and fact.behind[:2] in ERRORS and (fact.share or 0.0) >= MANY


def _is_squared(backward: Backward) -> bool:
    names = backward.graph.names if backward.graph is not None else ()
    pairs = itertools.pairwise(names)
    return any(one.startswith("PowBackward") and other.startswith("ClampBackward") for one, other in pairs)
