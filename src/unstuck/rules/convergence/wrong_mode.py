"""O05: training in eval mode, evaluating in train mode, or dropout that no mode can switch off."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Forward, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.convergence import _always_on_dropout as dropout, _mode_in_loops as loops, _mode_in_run as runs
from unstuck.rules.shared import objects
from unstuck.source.edits.edit import Editor, Edits, fix_with

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O05",
    name="wrong-mode",
    title="training in eval mode, evaluating in train mode, or dropout that ignores the mode",
    severity=Severity.ERROR,
    explains=("O01", "O07", "M13", "R08"),
    needs=(Forward,),
    only_in_text=("call",),
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Modes that a loop leaves behind, evaluation without eval(), and dropout that never hears of either."""
    stuck = list(_stuck_in_eval(script))
    yield from stuck or _begun_in_eval(script)
    yield from _never_in_eval(script)
    yield from _always_on(script)


def _stuck_in_eval(script: Script) -> Iterator[Finding]:
    for stuck in loops.stuck_in_eval(script):
        name = stuck.model.label or stuck.model.last
        yield rule.finding(
            f"No {name}.train() follows this {name}.eval(): from the next turn on {name} trains in eval mode.",
            cause=_in_eval_mode(stuck.layer),
            fix=fix_with(f"Call {name}.train() before every turn that trains.", _train_again(script, stuck), "safe"),
            subject=Subject("module", f"mode of {name}"),
            place=stuck.eval_place,
            severity=Severity.ERROR if stuck.certain else Severity.WARNING,
            confidence=Confidence.CERTAIN if stuck.certain else Confidence.LIKELY,
            related=(stuck.forward_place, stuck.step_place),
        )


def _begun_in_eval(script: Script) -> Iterator[Finding]:
    for begun in loops.begun_in_eval(script):
        name = begun.model.label or begun.model.last
        yield rule.finding(
            f"{name} trains in eval mode: {name}.eval() stands before the training and nothing calls {name}.train().",
            cause=_in_eval_mode(begun.layer),
            fix=f"Call {name}.train() before the training.",
            subject=Subject("module", f"mode of {name}"),
            place=begun.eval_place,
            related=(begun.step_place,),
        )


def _in_eval_mode(layer: str) -> str:
    if "Norm" in layer:
        return f"In eval mode {layer} uses its stored statistics and no longer updates them."
    if "Dropout" in layer:
        return f"In eval mode {layer} drops nothing, so the training goes on without it."
    return f"In eval mode the Dropout in {layer} drops nothing and BatchNorm uses its stored statistics."


def _in_train_mode(layer: str) -> str:
    if "Norm" in layer:
        return f"In train mode {layer} uses the statistics of the batch and shifts its stored ones towards them."
    if "Dropout" in layer:
        return f"In train mode {layer} drops units at random, so the same input gives another output each time."
    return f"In train mode the Dropout in {layer} drops units at random and BatchNorm uses the statistics of the batch."


def _train_again(script: Script, stuck: loops.Stuck) -> Edits | None:
    editor = Editor(script)
    call = editor.call_at(stuck.forward_place) if stuck.forward_place else None
    text = editor.text_of(call.func) if call else None
    node = stuck.loop.node
    if not text or not isinstance(call, ast.Call) or not isinstance(node, ast.For | ast.While):
        return None
    return editor.insert_before(node.body[0] if stuck.outermost else node, f"{text}.train()")


def _never_in_eval(script: Script) -> Iterator[Finding]:
    for model, layer, called in loops.never_in_eval(script):
        name = model.label or model.last
        yield rule.finding(
            f"{name} is evaluated here in train mode: nothing ever calls {name}.eval().",
            cause=_in_train_mode(layer),
            fix=f"Call {name}.eval() before the evaluation and {name}.train() before the training goes on.",
            subject=Subject("module", f"mode of {name}"),
            place=called.place,
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


def _always_on(script: Script) -> Iterator[Finding]:
    editor = Editor(script)
    for spot in dropout.always_on(script):
        yield rule.finding(
            f"{spot.name} in {spot.where} stays on in eval mode.",
            cause=spot.cause,
            fix=fix_with(spot.fix, spot.edits(editor), "safe"),
            subject=Subject("call", f"{spot.name} at {spot.place}"),
            place=spot.place,
        )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Steps taken in evaluation mode, and evaluations made in training mode."""
    for stuck in runs.trained_in_eval(record):
        yield _trained_in_eval(record, stuck)
    for odd in runs.evaluated_in_train(record):
        yield rule.finding(
            f"{odd.model} was evaluated {_times(odd.times)} in train mode, and never in eval mode.",
            cause=_in_train_mode(runs.layers_of(record, odd.model)),
            fix="Call eval() on the model before the evaluation and train() before the training goes on.",
            subject=Subject("module", f"mode of {odd.model}"),
            place=odd.place,
            related=(odd.loss,),
            evidence=[Evidence("evaluations in train mode", odd.times)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _trained_in_eval(record: Record, stuck: runs.TrainedInEval) -> Finding:
    certain = stuck.trained_before and stuck.evaluated
    since = f"Since step {stuck.since + 1}" if stuck.trained_before else "From the start"
    return rule.finding(
        f"{since} {stuck.model} trains in eval mode: {stuck.steps} of the {stuck.of} steps looked at.",
        cause=_in_eval_mode(runs.layers_of(record, stuck.model)),
        fix="Call train() on the model before every turn that trains.",
        subject=Subject("module", f"mode of {stuck.model}"),
        place=stuck.place or stuck.forward,
        related=(stuck.forward, stuck.step),
        evidence=[Evidence("steps in eval mode", f"{stuck.steps} of {stuck.of}")],
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """A model that is to be trained and is in evaluation mode altogether, or dropout that no mode switches off."""
    yield from _still_dropping(setup)
    for model in setup.models if setup.optimizers else ():
        heeding = [module for module in model.modules if _heeds_mode(module.kind, module.numbers)]
        trains = any(fact.trainable for fact in model.parameters)
        if not heeding or not trains or any(module.training for module in model.modules):
            continue
        yield rule.finding(
            f"{model.model} is in eval mode; trained like this, {objects.listed([m.name for m in heeding])} would "
            "not do their part.",
            cause=_in_eval_mode(heeding[0].kind),
            fix="Call train() on the model before the training.",
            subject=Subject("module", f"mode of {model.model}"),
            place=model.place,
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


def _still_dropping(setup: Setup) -> Iterator[Finding]:
    """Two passes in eval mode differed, and these calls are why."""
    kinds = " ".join(module.kind for model in setup.models for module in model.modules)
    for call in setup.trial.dropping if setup.trial else ():
        if dropout.ON_PURPOSE.search(kinds):
            continue
        attends = call.function == "scaled_dot_product_attention"
        yield rule.finding(
            f"{call.function} drops {call.share:.0%} of the values in eval mode too: two passes over the same batch "
            "differ.",
            cause="It knows nothing of model.eval(), so predictions are random." if attends else dropout.FUNCTION_CAUSE,
            fix=f"Pass {'dropout_p=p if self.training else 0.0' if attends else 'training=self.training'}, or keep an "
            "nn.Dropout made in __init__.",
            subject=Subject("call", f"{call.function} at {call.place}"),
            place=call.place,
            evidence=[Evidence("share dropped in eval mode", call.share)],
        )


def _heeds_mode(kind: str, numbers: dict[str, float]) -> bool:
    return numbers.get("p", 0) > 0 if "Dropout" in kind else "BatchNorm" in kind and bool(numbers.get("momentum"))


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """Of training in evaluation mode; evaluations leave the training as it is."""
    from unstuck.interventions import TrainingMode

    if "evaluat" not in finding.message:
        yield (TrainingMode(),)
