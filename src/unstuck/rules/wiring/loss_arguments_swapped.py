"""M08: the target passed to a loss where the prediction belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unstuck.events import LossCall, Setup
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, both, fix_with
from unstuck.source.flow import behind
from unstuck.source.reader import knowledge
from unstuck.source.trace import Happened
from unstuck.source.values import Const, Tensor, Value, members


class Swapped(Variant):
    """Which argument is in the wrong position."""

    TARGET_FIRST = "target-first", "the target comes first and the prediction second"
    NO_LOG = "no-log", "kl_div gets probabilities instead of log-probabilities first"
    VARIANCE = "variance", "gaussian_nll_loss gets the variance as the target"


rule = Rule(
    code="M08",
    name="loss-arguments-swapped",
    title="loss(target, prediction) instead of loss(prediction, target)",
    severity=Severity.ERROR,
    explains=("G08", "G10", "M14", "O01", "O14", "O16", "P11", "P21", "R01", "R03", "R08"),
    needs=(LossCall,),
    changes_loss=True,
    variants=Swapped.titles(),
)

CAUSES = {
    "cross_entropy": "It takes the scores first and the labels second; swapped, it raises.",
    "nll_loss": "It takes log-probabilities first and the labels second; swapped, it raises.",
    "binary_cross_entropy": (
        "It takes the logarithm of its first argument and of one minus it, and one of the two is infinite for "
        "a label of 0 or 1: so is the gradient, for any prediction."
    ),
    "binary_cross_entropy_with_logits": (
        "It treats its first argument as the scores, so the gradient of the prediction is the negated label, "
        "for any prediction."
    ),
}
"""The losses in which the order of the arguments matters, and what the wrong order does."""
MADE = frozenset("data batch zeros ones full zeros_like ones_like full_like randint rand one_hot rebuilt".split())
"""Operations whose results do not come from a model."""
NO_LOG = (
    "kl_div computes target * (log(target) - input), so its input must hold log-probabilities and its target "
    "probabilities: otherwise the result is negative or NaN instead of a divergence."
)

PREDICTION_FIRST = "Pass the prediction first and the target second."
PROBABILITIES_FIRST = "Pass log_softmax of the scores first, and the target's probabilities second."
NO_VARIANCE = (
    "The order is loss(mean, target, variance). Swapped, the mean is fitted to the predicted variance, and "
    "the data only weight that error."
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """The first argument is data and the second a model's output; for kl_div, the logarithm is on the wrong side."""
    for call in script.facts.losses:
        event = call.event
        if not isinstance(event, LossCall) or call.value is None or call.subject is None:
            continue
        if event.loss == "kl_div":
            yield from _divergence(script, call)
        elif event.loss in CAUSES and _is_data(call.value) and _is_predicted(call.subject):
            message = f"{event.loss} gets the target first and the prediction second."
            yield _finding(call, message, CAUSES[event.loss], _swapped(script, call), Swapped.TARGET_FIRST)


def _divergence(script: Script, call: Happened) -> Iterator[Finding]:
    if call.options.get("log_target", Const(False)) != Const(False):
        return
    first, second = _operations(call.value), _operations(call.subject)
    if first == {"softmax"} and second == {"log_softmax"}:
        message = "kl_div gets the log-probabilities second."
        yield _finding(call, message, NO_LOG, _swapped(script, call), Swapped.TARGET_FIRST)
    elif first == {"softmax"}:
        message = "kl_div gets plain probabilities (softmax) first."
        yield _finding(call, message, NO_LOG, Fix(PROBABILITIES_FIRST), Swapped.NO_LOG)


def _operations(value: Value | None) -> set[str]:
    made = losses.makers(value) if value is not None else []
    return {maker.op if isinstance(maker, Tensor) else "" for maker in made}


def _is_data(value: Value) -> bool:
    """Certainly neither the output of a model nor something being optimised."""
    waiting, found = [value], False
    while waiting:
        for part in members(waiting.pop()):
            if isinstance(part, Const):
                continue
            if not isinstance(part, Tensor) or part.leaf or part.module is not None:
                return False
            if part.op in MADE and not (part.op == "data" and part.inputs):
                found = True
            elif part.inputs:
                waiting += part.inputs
            else:
                return False
    return found


def _is_predicted(value: Value) -> bool:
    """Certainly the output of a module with weights that a gradient reaches."""
    made = losses.makers(value)
    return bool(made) and all(isinstance(maker, Tensor) and _through_weights(maker) for maker in made)


def _through_weights(value: Tensor) -> bool:
    parts = [part for part in behind(value) if isinstance(part, Tensor)]
    alive = [part for part in parts if part.module is not None and not part.cut]
    return any(part.module is not None and knowledge.has_weights(part.module) for part in alive)


def _swapped(script: Script, call: Happened) -> Fix:
    return fix_with(PREDICTION_FIRST, _swap(Editor(script), call), "safe")


def _swap(editor: Editor, call: Happened) -> Edits | None:
    node = editor.call_at(call.event.place) if call.event.place else None
    if node is None or len(node.args) < 2:
        return None
    first, second = (editor.text_of(argument) for argument in node.args[:2])
    if first is None or second is None:
        return None
    return both(editor.replace(node.args[0], second), editor.replace(node.args[1], first))


def _finding(call: Happened, message: str, cause: str, fix: Fix, variant: Swapped) -> Finding:
    place = call.event.place
    subject = Subject.at("call", "loss", place)
    return rule.finding(message, cause=cause, fix=fix, subject=subject, place=place, variant=variant)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Which of the two arguments of the probed loss has a graph."""
    yield from _from_calls(setup.losses)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Only the second argument has a gradient; or kl_div gets probabilities first."""
    yield from _from_calls(record.of(LossCall))


def _from_calls(calls: Iterable[LossCall]) -> Iterator[Finding]:
    for group in losses.trained(calls, (*CAUSES, "kl_div", "gaussian_nll_loss")):
        first = group[0]
        if first.loss == "gaussian_nll_loss":
            if all(map(_has_target_for_variance, group)) and losses.looked_at(group):
                message = "gaussian_nll_loss gets the variance as the target, and the target as the variance."
                fix = "Call it as loss(mean, target, variance)."
                yield _recorded(first, message, NO_VARIANCE, fix, Swapped.VARIANCE)
        elif first.loss == "kl_div":
            read = losses.looked_at(group)
            probabilities = all(losses.given(call).made_by == "SoftmaxBackward0" for call in group)
            if probabilities or (read and all(losses.given(call).sums_to_one for call in read)):
                message = "kl_div gets plain probabilities first."
                yield _recorded(first, message, NO_LOG, PROBABILITIES_FIRST, Swapped.NO_LOG)
        elif all(losses.wanted(call).requires_grad and not losses.given(call).requires_grad for call in group):
            message = f"{first.loss} gets the target first and the prediction second."
            yield _recorded(first, message, CAUSES[first.loss], PREDICTION_FIRST, Swapped.TARGET_FIRST)


def _has_target_for_variance(call: LossCall) -> bool:
    """Mean and "target" come from a model, the "target" is positive like a variance, and the "variance" is data.

    A variance that is the same everywhere is a setting, and may be used with two outputs of a model.
    """
    variance, target = call.variance, losses.wanted(call)
    if variance is None or variance.requires_grad or not (target.requires_grad and losses.given(call).requires_grad):
        return False
    if target.low is None or variance.low is None:
        return True
    return target.low > 0 and variance.low != variance.high


def _recorded(call: LossCall, message: str, cause: str, fix: str, variant: Swapped) -> Finding:
    sides = [("first argument", losses.given(call)), ("second argument", losses.wanted(call))]
    sides += [("variance", call.variance)] if call.variance is not None else []
    evidence = [
        Evidence(name, f"{list(fact.shape)}, {'with' if fact.requires_grad else 'without'} gradient")
        for name, fact in sides
    ]
    subject = Subject.at("call", call.loss, call.place)
    return rule.finding(
        message, cause=cause, fix=fix, subject=subject, place=call.place, evidence=evidence, variant=variant
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Swap the arguments; kl_div may need the logarithm of the first instead."""
    from unstuck.interventions import GiveLoss

    if finding.variant != Swapped.VARIANCE:
        yield (GiveLoss("swapped"),)
    if finding.variant == Swapped.NO_LOG:
        yield (GiveLoss("log", "kl_div"),)
