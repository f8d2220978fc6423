"""M01: (N, 1) against (N,) in an element-wise loss, which broadcasts to N x N."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Backward, LossCall, Place, Setup
from unstuck.events.losses import BINARY_LOSSES, VALUE_LOSSES
from unstuck.findings import Evidence, Finding, Severity, Subject, Witness
from unstuck.findings.mixing import Mix
from unstuck.record import Record
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import losses, mixtures
from unstuck.rules.shared.shapes import Shape, shape_of
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.flow import behind
from unstuck.source.trace import Happened
from unstuck.source.values import Tensor, Value, alternatives

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment

rule = Rule(
    code="M01",
    name="broadcast-loss",
    title="an (N, 1) prediction against an (N,) target: the loss compares every pair",
    severity=Severity.ERROR,
    explains=("O01", "O07", "R03", "R08"),
)

CAUSE = (
    "Broadcasting compares every prediction with every target in an N x N matrix. The best the model can do "
    "is predict the mean of the targets."
)
RAISES = "This loss requires equal shapes and raises a ValueError."
FIX = "Give both the same shape: drop the last axis of the {column} with `{column}.squeeze(-1)`."
BY_HAND = Subject("call", "The difference")
INTENDED = ("unsqueeze", "expand", "getitem")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Calls of torch losses, and differences computed by hand on the way to backward, with known shapes."""
    for call in script.facts.losses:
        event = call.event
        if isinstance(event, LossCall) and event.loss in (*VALUE_LOSSES, *BINARY_LOSSES):
            column = _column(call.value, call.subject)
            if column:
                yield _in_loss(script, event, call, column)
    seen: set[Place | None] = set()
    for backward in script.facts.backwards:
        for value in behind(backward.value) if backward.value is not None else ():
            if isinstance(value, Tensor) and value.op == "sub" and value.place not in seen and _by_hand(value):
                seen.add(value.place)
                yield _finding("", CAUSE, value.place, "prediction" if _is_model(value) else "column")


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A crash, the shapes of the losses' inputs, and differences that broadcast in the graph."""
    yield from _in_crash(record)
    yield from _from_calls(record.of(LossCall), record.of(Backward))


def _in_crash(record: Record) -> Iterator[Finding]:
    """The finding, if one of the two shapes has exactly one more axis."""
    # Lint starts without these.
    from unstuck.events.torch_errors import TorchError
    from unstuck.rules.shared.crashes import called, crash_of, evidence_of, given, shaped

    crash = crash_of(record, TorchError.TARGET_SHAPE)
    scores, target = (given(crash, name) if crash is not None else None for name in ("input", "target"))
    if crash is None or scores is None or target is None:
        return
    first, second = scores.shape or (), target.shape or ()
    if first == (*second, 1):
        name = crash.names.get("input", "prediction")
        fix = f"Drop the last axis of the prediction: `{name}.squeeze(-1)`."
    elif second == (*first, 1):
        fix = f"Drop the last axis of the target: `{crash.names.get('target', 'target')}.squeeze(-1)`."
    else:
        return
    yield rule.finding(
        f"{crash.function} gets a prediction of shape {shaped(first)} and "
        f"{called(crash, 'target', 'a target')} of shape {shaped(second)}.",
        cause=RAISES,
        fix=fix,
        subject=Subject.at("call", crash.function, crash.place),
        place=crash.place,
        evidence=evidence_of(crash, "input", "target"),
    )


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The shapes of the probed batch."""
    yield from _from_calls(setup.losses, setup.backwards)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`independence` followed the examples to where (N, 1) met (N,)."""
    for one in mixtures.of(experiment, Mix.COLUMN):
        high, low = one.shapes
        yield rule.finding(
            f"`{one.operation}` combines {list(high)} with {list(low)}: the result, {list(one.result)}, has a number "
            f"for each pair of the {one.examples} examples.",
            cause=CAUSE,
            fix="Give both the same shape: drop the last axis of the column with `.squeeze(-1)`.",
            subject=BY_HAND,
            place=one.place,
            evidence=[Evidence("given", f"{list(high)} and {list(low)}"), Evidence("result", str(list(one.result)))],
        )


def _from_calls(calls: Iterable[LossCall], backwards: Iterable[Backward]) -> Iterator[Finding]:
    for group in losses.trained(calls, VALUE_LOSSES):
        shapes = [(losses.given(call).shape, losses.wanted(call).shape) for call in group]
        guilty = [pair for pair in shapes if _column_of(*pair)]
        first = group[0]
        if guilty and len(guilty) == sum(one != other for one, other in shapes):
            one, other = guilty[0]
            column = _column_of(one, other)
            evidence = [Evidence("prediction", str(list(one))), Evidence("target", str(list(other)))]
            yield _finding(first.loss, CAUSE, first.place, column, evidence=evidence)
    seen: set[Place | None] = set()
    for backward in backwards:
        for fact in backward.graph.operations if backward.graph is not None else ():
            if fact.name == "sub" and backward.place not in seen:
                seen.add(backward.place)
                column = "prediction" if len(fact.given) == 2 else "target"
                evidence = [
                    Evidence("prediction", str(list(fact.given))),
                    Evidence("difference", str(list(fact.shape))),
                ]
                yield _finding("", CAUSE, backward.place, column, evidence=evidence)


def _column_of(prediction: tuple[int, ...], target: tuple[int, ...]) -> str:
    """Which of two shapes has an extra axis of size 1 at its end."""
    if prediction == (*target, 1) and _grows(target):
        return "prediction"
    return "target" if target == (*prediction, 1) and _grows(prediction) else ""


def _grows(flat: tuple[int, ...]) -> bool:
    """Does (N, 1) against (N,) broadcast to more than either? Not for a batch of one."""
    return bool(flat) and flat[0] > 1 and len(set(flat)) == 1


def _column(prediction: Value | None, target: Value | None) -> str:
    """Which of the two is a column while the other is flat; empty when they agree or it is uncertain."""
    one, other = shape_of(prediction), shape_of(target)
    if _is_column(one, prediction) and _is_flat(other):
        return "prediction"
    return "target" if _is_column(other, target) and other.rank == 2 and _is_flat(one) else ""


def _is_column(shape: Shape, value: Value | None) -> bool:
    """(N, 1) with N other than 1. The output of a layer has at least two axes, known or not."""
    if shape.last != 1 or (shape.sides is not None and (len(shape.sides) < 2 or shape.sides[0] == 1)):
        return False
    options = alternatives(value) if value is not None else ()
    return shape.rank is not None or any(isinstance(option, Tensor) and option.op == "Linear" for option in options)


def _is_flat(shape: Shape) -> bool:
    return shape.rank == 1 and shape.sides != (1,)


def _by_hand(difference: Tensor) -> bool:
    """`pred - y` of a column and a flat tensor, without an explicit broadcast."""
    if len(difference.inputs) != 2 or any(_asks_for_it(side) for side in difference.inputs):
        return False
    first, second = difference.inputs
    return bool(_column(first, second) or _column(second, first))


def _asks_for_it(value: Value) -> bool:
    return any(isinstance(option, Tensor) and option.op in INTENDED for option in alternatives(value))


def _is_model(difference: Tensor) -> bool:
    return shape_of(difference.inputs[0]).last == 1


def _in_loss(script: Script, event: LossCall, call: Happened, column: str) -> Finding:
    cause = RAISES if event.loss in BINARY_LOSSES else CAUSE
    return _finding(event.loss, cause, event.place, column, _squeezed(script, call, column))


def _squeezed(script: Script, call: Happened, column: str) -> Edits | None:
    editor = Editor(script)
    node = editor.call_at(call.event.place) if call.event.place else None
    position = 0 if column == "prediction" else 1
    if node is None or len(node.args) <= position:
        return None
    return editor.wrap(node.args[position], "{}.squeeze(-1)")


def _finding(
    loss: str,
    cause: str,
    place: Place | None,
    column: str,
    edits: Edits | None = None,
    evidence: Sequence[Evidence] = (),
) -> Finding:
    other = "target" if column == "prediction" else "prediction"
    return rule.finding(
        f"{loss or 'The difference'} gets a {column} of shape (N, 1) and a {other} of shape (N,).",
        cause=cause,
        fix=fix_with(FIX.format(column=column), edits, "unsafe"),
        # The graph does not show where a difference is written.
        subject=Subject.at("call", loss, place) if loss else BY_HAND,
        place=place,
        evidence=evidence,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Give both the same shape: in a loss of torch, or at the line that an experiment has found."""
    from unstuck.interventions import AlignExamples, GiveLoss

    if finding.subject != BY_HAND:
        yield (GiveLoss("same-shape"),)
    elif finding.witness is Witness.EXPERIMENT and finding.place is not None:
        yield (AlignExamples(Mix.COLUMN, finding.place.path, finding.place.line),)
