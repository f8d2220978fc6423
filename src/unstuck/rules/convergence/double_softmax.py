"""O12: softmax (or log_softmax) before cross-entropy, which applies log_softmax itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from unstuck.events import LossCall, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.edits.syntax import imported_names, last_name, parent_of, uses
from unstuck.source.flow import producers
from unstuck.source.values import Tensor, Value

rule = Rule(
    code="O12",
    name="double-softmax",
    title="softmax before a cross-entropy loss that applies it again",
    severity=Severity.ERROR,
    explains=("O01", "O07", "G09", "O22", "R08"),
    needs=(LossCall,),
)

CAUSE = (
    "cross_entropy applies log_softmax itself; on probabilities in [0, 1] the second softmax is almost uniform, "
    "so little of the gradient reaches the model and the loss cannot get close to 0."
)
HARMLESS = "cross_entropy applies log_softmax itself; a second one changes nothing and only costs time."
FIX = "Pass raw scores (logits) to the loss, and apply softmax only where you need probabilities."
SOFTMAXES = {"SoftmaxBackward0": "softmax", "LogSoftmaxBackward0": "log_softmax"}
STEADY_CALLS = 3


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every way into a cross_entropy call ends in a softmax."""
    for call in script.facts.losses:
        event = call.event
        if not isinstance(event, LossCall) or event.loss != "cross_entropy" or event.output_requires_grad is False:
            continue
        makers = list(producers(call.value)) if call.value is not None else []
        for name in ("softmax", "log_softmax"):
            if makers and all(_is(maker, name) for maker in makers):
                place = next((maker.place for maker in makers if isinstance(maker, Tensor)), None)
                fix = _fix(script, makers, event.place)
                yield _finding(name, place, event.place, fix=fix)


def _is(value: Value, operation: str) -> bool:
    return isinstance(value, Tensor) and value.op == operation


def _fix(script: Script, makers: Sequence[Value], loss: Place | None) -> Fix:
    """The softmax removed: safe if only the loss can need it, unsafe if something else might."""
    maker = makers[0]
    editor = Editor(script)
    call = editor.call_at(maker.place) if len(makers) == 1 and isinstance(maker, Tensor) and maker.place else None
    if call is None or not isinstance(maker, Tensor):
        return Fix(FIX)
    if maker.module is not None and maker.module.place == maker.place and not isinstance(call.func, ast.Call):
        return fix_with(FIX, _without_layer(editor, call), "unsafe")
    scores = _scores(call, maker, script)
    loss_call = editor.call_at(loss) if loss else None
    if scores is not None and loss_call is not None and call in ast.walk(loss_call):
        return fix_with(FIX, editor.unwrap(call, scores), "safe")
    return fix_with(FIX, _in_statement(editor, call, scores) if scores is not None else None, "unsafe")


def _without_layer(editor: Editor, layer: ast.Call) -> Edits | None:
    """The layer removed from its Sequential or list, or not appended to it."""
    statement = editor.statement_at(layer)
    parent = parent_of(layer, statement) if statement else None
    called = last_name(parent.func) if isinstance(parent, ast.Call) else ""
    if called in ("append", "add_module", "register_module"):
        alone = isinstance(statement, ast.Expr) and statement.value is parent
        return editor.delete(layer) if alone else None
    return editor.remove_element(layer) if called in ("", "Sequential", "__init__") else None


def _scores(call: ast.Call, maker: Tensor, script: Script) -> ast.expr | None:
    """The input of the softmax: its first argument, or the object it is a method of."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "input"]
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    by_name = isinstance(call.func, ast.Name) or (isinstance(root, ast.Name) and root.id in imported_names(script.tree))
    if isinstance(call.func, ast.Attribute) and maker.module is None and not by_name:
        return call.func.value
    return call.args[0] if call.args and not isinstance(call.args[0], ast.Starred) else given[0] if given else None


def _in_statement(editor: Editor, call: ast.Call, scores: ast.expr) -> Edits | None:
    """The softmax removed from a return value, or from an assignment that only the loss reads."""
    statement = editor.statement_at(call)
    if isinstance(statement, ast.Return):
        value = statement.value
        whole = value is call or (isinstance(value, ast.Tuple) and call in value.elts)
        return editor.unwrap(call, scores) if whole else None
    if not isinstance(statement, ast.Assign) or statement.value is not call or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Name) and isinstance(scores, ast.Name) and target.id == scores.id:
        return editor.delete(statement)
    alone = isinstance(target, ast.Name) and uses(editor.tree, target.id) == 1
    return editor.unwrap(call, scores) if alone else None


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The probed batch went through a softmax on its way to the loss."""
    yield from _from_calls(setup.losses, needed=1)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The input of cross_entropy is the output of a softmax, or its rows are probabilities."""
    by_place: dict[Place | None, list[LossCall]] = {}
    for call in record.of(LossCall):
        if call.output_requires_grad:
            by_place.setdefault(call.place, []).append(call)
    for calls in by_place.values():
        yield from _from_calls(calls, needed=STEADY_CALLS)


def _from_calls(calls: Iterable[LossCall], needed: int) -> Iterator[Finding]:
    relevant = [call for call in calls if call.loss == "cross_entropy" and call.input is not None]
    for node, name in SOFTMAXES.items():
        guilty = [call for call in relevant if call.input and call.input.made_by == node]
        if guilty and len(guilty) == len(relevant):
            yield _finding(name, guilty[0].place, guilty[0].place, _numbers(guilty))
            return
    rows = [call for call in relevant if call.input and call.input.sums_to_one]
    measured = [call for call in relevant if call.input and call.input.low is not None]
    if len(rows) >= needed and len(rows) == len(measured):
        yield _finding("", rows[0].place, rows[0].place, _numbers(rows))


def _numbers(calls: Sequence[LossCall]) -> list[Evidence]:
    first = calls[0]
    evidence = [Evidence("calls seen", len(calls))]
    if first.input is not None:
        evidence.append(Evidence("input shape", str(list(first.input.shape))))
        if first.input.low is not None and first.input.high is not None:
            evidence.append(Evidence("input range", f"{first.input.low:.3g} to {first.input.high:.3g}"))
        if first.input.sums_to_one:
            evidence.append(Evidence("rows sum to", 1.0))
    passed = [call.gradient_kept for call in calls if call.gradient_kept is not None]
    if passed:
        share = sorted(passed)[len(passed) // 2]
        evidence.append(Evidence("gradient that gets through", round(100 * share, 1), "%"))
    return evidence


def _finding(
    softmax: str,
    place: Place | None,
    loss: Place | None,
    evidence: Sequence[Evidence] = (),
    fix: str | Fix = FIX,
) -> Finding:
    harmless = softmax == "log_softmax"
    given = f"the output of {softmax}" if softmax else "probabilities (every row sums to 1)"
    passed = next((item.value for item in evidence if item.unit == "%"), None)
    share = f"; {passed} % of the gradient gets through" if passed is not None and not harmless else ""
    twice = "log_softmax is applied twice, which changes nothing" if harmless else f"softmax is applied twice{share}"
    return rule.finding(
        f"cross_entropy is given {given}, so {twice}.",
        cause=HARMLESS if harmless else CAUSE,
        fix=fix,
        subject=Subject.at("call", "cross_entropy", place, word="fed by"),
        place=place,
        related=(loss,),
        evidence=evidence,
        severity=Severity.ADVICE if harmless else None,
        confidence=Confidence.CERTAIN if softmax else Confidence.LIKELY,
    )


rule.remedied_by(with_change("GiveLoss", "undo-softmax"))
