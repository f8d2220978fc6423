"""M07: an activation on the output whose range does not suit the loss or the targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unstuck.events import LossCall, Setup
from unstuck.events.losses import VALUE_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.flow import behind
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Tensor, Value, members

rule = Rule(
    code="M07",
    name="activation-on-logits",
    title="ReLU, sigmoid or tanh on an output that must be able to take any value",
    severity=Severity.ERROR,
    explains=("G09", "O01", "O07", "O25", "P21", "R03", "R08"),
    needs=(LossCall,),
)

BOUNDED = {
    "sigmoid": "between 0 and 1",
    "hardsigmoid": "between 0 and 1",
    "tanh": "between -1 and 1",
    "hardtanh": "between -1 and 1",
}
POSITIVE = {"relu": "never negative", "relu6": "never negative", "softplus": "never negative"}
NORMAL = frozenset({"randn", "randn_like"})
"""Operations whose results certainly go below 0 and beyond 1 and -1."""
ONE_OF_MANY = frozenset({"gather", "max", "amax"})
"""Operations that pick the value of one action."""

REACH = {
    "SigmoidBackward0": ("sigmoid", 0.0, 1.0),
    "HardsigmoidBackward0": ("hardsigmoid", 0.0, 1.0),
    "SoftmaxBackward0": ("softmax", 0.0, 1.0),
    "TanhBackward0": ("tanh", -1.0, 1.0),
    "HardtanhBackward0": ("hardtanh", -1.0, 1.0),
    "ReluBackward0": ("relu", 0.0, None),
    "SoftplusBackward0": ("softplus", 0.0, None),
}
"""Their names in the graph, and the range of their results."""
MARGIN = 0.1
"""Share of the targets' spread: further outside the range than this is not rounding."""

NARROW = (
    "Scores that differ by at most {most} cannot make one class certain: with ten classes the loss stays "
    "above {floor}, and the gradient fades near the edge."
)
CUT_OFF = (
    "A score below 0 becomes 0 and gets no gradient. A class whose score is below 0 for every example is never learned."
)
OUT_OF_REACH = "Some targets are outside that range and can never be predicted."
NO_RETURN = "A Q-value is a sum of rewards without such a limit, so most targets are out of reach."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every possible input of the loss comes from such an activation."""
    for call, makers in losses.training_losses(script, ("cross_entropy",)):
        if all(maker.op in BOUNDED for maker in makers):
            most, floor = ("1", "1.46") if "sigmoid" in makers[0].op else ("2", "0.80")
            yield _on_scores(script, call, makers, NARROW.format(most=most, floor=floor), Severity.ERROR)
        elif all(maker.op in ("relu", "relu6") for maker in makers):
            yield _on_scores(script, call, makers, CUT_OFF, Severity.WARNING)
    for call, makers in losses.training_losses(script, VALUE_LOSSES):
        yield from _on_values(call, makers)


def _on_scores(script: Script, call: Happened, makers: Sequence[Tensor], cause: str, severity: Severity) -> Finding:
    editor, first = Editor(script), makers[0]
    edits = losses.without(editor, first) if len(makers) == 1 else None
    local = edits is not None and losses.stands_in(editor, first, call)
    fix = fix_with(f"Pass the raw scores to cross_entropy, without {first.op}.", edits, "safe" if local else "unsafe")
    return _finding(call, first, f"cross_entropy gets the output of {first.op}.", cause, fix, severity)


def _on_values(call: Happened, makers: Sequence[Tensor]) -> Iterator[Finding]:
    target = call.subject
    if target is None:
        return
    picked = [inner for maker in makers for inner in _before_picking(maker)]
    if picked and all(maker.op in BOUNDED or maker.op == "softmax" for maker in picked) and _is_bootstrapped(target):
        first = picked[0]
        message = f"Q-values are the output of {first.op}: {BOUNDED.get(first.op, 'between 0 and 1')}."
        fix = Fix(f"Return the output of the last layer without {first.op}.")
        yield _finding(call, first, message, NO_RETURN, fix, Severity.WARNING)
        return
    reach = losses.makers(target)
    ranges = POSITIVE | BOUNDED
    if reach and all(maker.op in ranges and all(_leaves(value, maker.op) for value in reach) for maker in makers):
        first = makers[0]
        message = f"The prediction is the output of {first.op}: {ranges[first.op]}."
        fix = Fix(f"Pass the last layer's output to the loss without {first.op}, or scale the targets.")
        yield _finding(call, first, message, OUT_OF_REACH, fix, Severity.ERROR)


def _before_picking(maker: Tensor) -> list[Tensor]:
    """What made the values of all actions, from which `maker` picks one."""
    if maker.op not in ONE_OF_MANY or not maker.inputs:
        return []
    return [value for value in losses.makers(maker.inputs[0]) if isinstance(value, Tensor)]


def _is_bootstrapped(target: Value) -> bool:
    """Is the target a reward plus a share of the next state's best value?"""
    ops = {value.op for value in behind(target, through_cuts=True) if isinstance(value, Tensor)}
    return "add" in ops and "mult" in ops and bool(ops & ONE_OF_MANY)


def _leaves(value: Value, activation: str) -> bool:
    """Is a target certainly outside the range of the activation: standard normal noise, or a number in the text?"""
    if not isinstance(value, Tensor):
        return False
    if value.op == "batch" and value.inputs:
        return all(_leaves(maker, activation) for maker in losses.makers(value.inputs[0]))
    if value.op == "normal":
        return value.inputs[:1] in ((Const(0),), (Const(0.0),)) and value.inputs[1:2] in ((Const(1),), (Const(1.0),))
    low = -1 if "tanh" in activation else 0
    written = [item.value for part in value.inputs for item in members(part) if isinstance(item, Const)]
    below = any(isinstance(number, int | float) and number < low for number in written)
    return value.op in NORMAL or (value.op == "rebuilt" and below)


def _finding(call: Happened, maker: Tensor, message: str, cause: str, fix: Fix, severity: Severity) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "loss", maker.place, word="fed by"),
        place=maker.place,
        related=(call.event.place,),
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ERROR else Confidence.LIKELY,
    )


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The inputs of the losses of the probed batch."""
    yield from _from_calls(setup.losses)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Losses whose input came from an activation and whose targets are outside its range."""
    yield from _from_calls(record.of(LossCall))


def _from_calls(calls: Iterable[LossCall]) -> Iterator[Finding]:
    for group in losses.trained(calls, ("cross_entropy", *VALUE_LOSSES)):
        made_by = losses.all_made_by(group, REACH)
        if made_by and group[0].loss == "cross_entropy":
            yield from _recorded_scores(group, REACH[made_by][0])
        elif made_by:
            yield from _recorded_values(group, *REACH[made_by])


def _recorded_scores(calls: Sequence[LossCall], name: str) -> Iterator[Finding]:
    first = calls[0]
    evidence = [Evidence("calls recorded", len(calls)), *losses.shape_and_range(first)]
    if name in BOUNDED:
        most, floor = ("1", "1.46") if "sigmoid" in name else ("2", "0.80")
        cause, severity = NARROW.format(most=most, floor=floor), Severity.ERROR
    elif name == "relu":
        cause, severity = CUT_OFF, Severity.WARNING
    else:
        return
    message = f"cross_entropy gets the output of {name}."
    yield _recorded(first, message, cause, f"Pass the raw scores to cross_entropy, without {name}.", severity, evidence)


def _recorded_values(calls: Sequence[LossCall], name: str, low: float, high: float | None) -> Iterator[Finding]:
    read = [call for call in calls if losses.wanted(call).spread is not None]
    if not read or not all(_is_out_of_reach(call, low, high, MARGIN) for call in read):
        return
    first, target = read[0], losses.wanted(read[0])
    reach = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
    span = f"{target.low:.3g} to {target.high:.3g}"
    message = f"The prediction is the output of {name}, {reach}, but the targets range from {span}."
    most = all(_is_out_of_reach(call, low, high, 0.0, typical=True) for call in read)
    evidence = [Evidence("calls recorded", len(calls)), Evidence("targets", span)]
    fix = f"Pass the last layer's output to the loss without {name}, or scale the targets into its range."
    yield _recorded(first, message, OUT_OF_REACH, fix, Severity.ERROR if most else Severity.WARNING, evidence)


def _is_out_of_reach(call: LossCall, low: float, high: float | None, margin: float, typical: bool = False) -> bool:
    """Are targets, even those one standard deviation from their mean, outside the range?"""
    target = losses.wanted(call)
    if target.low is None or target.high is None or target.mean is None or target.spread is None:
        return False
    slack = margin * target.spread
    least, most = (target.mean - target.spread, target.mean + target.spread) if typical else (target.low, target.high)
    return least < low - slack or (high is not None and most > high + slack)


def _recorded(
    call: LossCall, message: str, cause: str, fix: str, severity: Severity, evidence: list[Evidence]
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "loss", call.place, word="fed by"),
        place=call.place,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ERROR else Confidence.LIKELY,
    )
