"""O05 in the source: the mode a model is in when a loop trains it, and whether evaluation ever switches it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import msgspec

from unstuck.events import Backward, Forward, ModeChange, OptimizerSeen, OptimizerStep, Place
from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.wrong_mode import Mode, dropout, effect_of_eval, effect_of_train, rule, unknown_models
from unstuck.rules.convergence.wrong_mode.unknown_models import COMPARES
from unstuck.rules.shared import loop_order, modes
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.facts import Called
from unstuck.source.paths import paths
from unstuck.source.reader import knowledge
from unstuck.source.trace import (
    Ability,
    Branch,
    Happened,
    Hidden,
    Inlined,
    IterationEnd,
    Located,
    Loop,
    Node,
    Path,
    events_in,
    located,
    loops_in,
)
from unstuck.source.values import UNKNOWN, Const, Group, Instance, Parameters, Value, alternatives, members, root

ORDERED = (ModeChange, Forward, Backward, OptimizerStep, OptimizerSeen)
ON_PURPOSE = pattern(r"(?i)mc_?drop|monte.?carlo|bayes|uncertain")
FREEZES = pattern(r"(?i)freez|frozen|fix|keep|on purpose|statistic|determin")


class _SinceEval(msgspec.Struct):
    """What happened to a model since `eval()` was called on it."""

    place: Place
    evaluated: bool
    forward: Place | None = None
    backward: bool = False


def find(script: Script) -> Iterator[Finding]:
    """Every variant; a loop that leaves eval mode behind explains one that starts in it."""
    stays = list(_stays_in_eval(script)) or list(unknown_models.find(script))
    yield from stays or _starts_in_eval(script)
    yield from _evaluated_in_train(script)
    yield from dropout.find(script)


def _stays_in_eval(script: Script) -> Iterator[Finding]:
    """Models with Dropout or BatchNorm that every path trains in the mode an evaluation left behind."""
    if not any(called.name in (".eval", ".train") for called in script.facts.calls):
        return
    reported: set[Place] = set()
    # Innermost first: `train()` at the start of an epoch does not help the steps after an `eval()` in the same epoch.
    for loop in reversed(list(loops_in(script.facts.trace))):
        switched = {id(item.subject): item for item in events_in(loop.body) if _switches_to_eval(item)}
        if not switched or not any(isinstance(item.event, OptimizerStep) for item in events_in(loop.body)):
            continue
        ways = paths(loop, 2, ORDERED)
        models = [item.subject for item in switched.values() if not _may_be_switched_unseen(script, item.subject, loop)]
        found = [finding for model in models for finding in _stays(script, loop, ways, model)]
        yield from (finding for finding in found if finding.place not in reported)
        reported.update(finding.place for finding in found if finding.place)


def _stays(script: Script, loop: Loop, ways: Sequence[Path], model: Value | None) -> Iterator[Finding]:
    if not isinstance(model, Instance) or modes.switches_itself(root(model)):
        return
    certain = modes.mode_dependent(model)
    layer = certain or modes.perhaps_mode_dependent(model)
    if layer is None:
        return
    name = model.label or model.last
    trained_at: dict[Place, tuple[Place | None, Place | None]] = {}
    for place in loop_order.always(ways, lambda path: _opinion(script, path, model, trained_at)):
        if not _comes_again(loop, place):
            continue
        forward, step = trained_at[place]
        yield rule.finding(
            f"{name}.eval() is never followed by {name}.train(): every later iteration trains in eval mode.",
            cause=effect_of_eval(layer.last),
            fix=fix_with(
                f"Call {name}.train() before every iteration that trains.", _train_added(script, loop, forward), "safe"
            ),
            subject=Subject("module", f"mode of {name}"),
            place=place,
            severity=Severity.ERROR if certain else Severity.WARNING,
            confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
            related=(forward, step),
            variant=Mode.STAYS_IN_EVAL,
        )


def _opinion(
    script: Script, path: Path, model: Instance, trained_at: dict[Place, tuple[Place | None, Place | None]]
) -> loop_order.Opinion:
    opinion = loop_order.Opinion()
    since: _SinceEval | None = None
    for item in path:
        if isinstance(item, IterationEnd):
            if since is not None and since.forward is not None and not since.backward:
                since.evaluated = True  # The iteration ended and nothing was back-propagated.
            continue
        if since is not None and _ends_eval(script, item, model):
            opinion.innocent.add(since.place)
            since = None
        elif isinstance(item, Happened) and _switches_to_eval(item) and item.subject is model and item.event.place:
            since = _SinceEval(item.event.place, modes.says_evaluation(item.event.place.function))
        elif since is not None and isinstance(item, Happened):
            stepped = isinstance(item.event, OptimizerStep) and id(root(model)) in loop_order.owners(item.subject)
            if stepped and since.backward:
                opinion.guilty[since.place] = Mode.STAYS_IN_EVAL
                trained_at[since.place] = (since.forward, item.event.place)
            _advance(since, item, model)
    return opinion


def _ends_eval(script: Script, item: Happened | Hidden, model: Instance) -> bool:
    """Is the model put back into train mode, or may it be, or is it a new one?"""
    if isinstance(item, Hidden):
        return loop_order.could(script, item, Ability.SWITCH, model)
    event, subject = item.event, item.subject
    if isinstance(event, OptimizerSeen):
        return True
    if not isinstance(event, ModeChange) or not event.training:
        return False
    return not isinstance(subject, Instance) or root(subject) is root(model)


def _advance(since: _SinceEval, item: Happened, model: Instance) -> None:
    event = item.event
    if isinstance(event, Forward) and isinstance(item.subject, Instance) and modes.within(item.subject, model):
        since.evaluated = since.evaluated or not event.grad_enabled
        trains = event.grad_enabled and not (event.place and modes.says_evaluation(event.place.function))
        since.forward = event.place if trains else None
        since.backward = False
    elif isinstance(event, Backward):
        since.backward = since.evaluated and since.forward is not None


def _switches_to_eval(item: Happened) -> bool:
    return isinstance(item.event, ModeChange) and not item.event.training


def _may_be_switched_unseen(script: Script, model: Value | None, loop: Loop) -> bool:
    """May the model be switched without an event, or be frozen and in eval mode on purpose?"""
    for called in script.facts.calls:
        # `module.train()` of a module that is not known: `for module in model.modules()`.
        unknown = called.last == "train" and isinstance(called.node.func, ast.Attribute) and called.receiver is UNKNOWN
        if loop in called.loops and (unknown or _looks_up_mode(called)):
            return True
    frozen = [option for fact in script.facts.frozen if not fact.trainable for option in alternatives(fact.owner)]
    whole = root(model) if isinstance(model, Instance) else None
    return any(not isinstance(owner, Instance) or root(owner) is whole for owner in frozen)


def _looks_up_mode(called: Called) -> bool:
    """Is it `getattr(model, name)`, with a name that may be "train" or "eval"?"""
    if called.last != "getattr" or len(called.args) < 2 or not isinstance(called.args[0], Instance):
        return False
    names = alternatives(called.args[1])
    return knowledge.is_module(called.args[0]) and any(
        not isinstance(name, Const) or name.value in ("train", "eval") for name in names
    )


def _comes_again(loop: Loop, place: Place) -> bool:
    """Is another iteration sure to follow the evaluation? Not if it is under `if epoch == last`."""
    guards = [branch for branch in _guards(loop.body, place) if branch.varies]
    return all("%" in branch.condition or not COMPARES.search(branch.condition) for branch in guards)


def _guards(block: Sequence[Node], place: Place) -> Iterator[Branch]:
    """Every branch around what happens at a place."""
    for node in block:
        if isinstance(node, Branch):
            if any(item.event.place == place for item in events_in([node])):
                yield node
            yield from _guards([*node.then, *node.other], place)
        elif isinstance(node, Loop | Inlined):
            yield from _guards(node.body, place)


def _train_added(script: Script, loop: Loop, forward: Place | None) -> Edits | None:
    """`model.train()` before the innermost loop around the forward pass, or at the start of the outer one."""
    editor = Editor(script)
    call = editor.call_at(forward) if forward else None
    text = editor.text_of(call.func) if call else None
    inner = _innermost(loop, forward)
    node = inner.node
    if not text or not isinstance(call, ast.Call) or not isinstance(node, ast.For | ast.While):
        return None
    return editor.insert_before(node.body[0] if inner is loop else node, f"{text}.train()")


def _innermost(loop: Loop, forward: Place | None) -> Loop:
    """The innermost loop around the forward pass in the same function."""
    for item in located(loop.body, (loop,)):
        if item.item.event.place == forward and forward is not None:
            same = [around for around in item.loops if around.place.function == forward.function]
            if same and same[-1].place.path == forward.path:
                return same[-1]
    return loop


def _starts_in_eval(script: Script) -> Iterator[Finding]:
    """New models with Dropout or BatchNorm that are in eval mode from before training to its end."""
    facts = script.facts
    if ".eval()" not in script.text or re.search(r"\.train\(|\.training\s*=[^=]", script.text):
        return
    if any(called.name.endswith(".train") or _looks_up_mode(called) for called in facts.calls):
        return
    for block in (facts.trace[: facts.reached], *([node] for node in facts.trace[facts.reached :])):
        items = list(located(block))
        for first in items:
            model, place = first.item.subject, first.item.event.place
            if not _switches_to_eval(first.item) or first.loops or first.branches or place is None:
                continue
            if not isinstance(model, Instance) or not _is_trained_from_scratch(script, model):
                continue
            around = script.lines[max(0, place.line - 2) : place.line] if place.path == script.path else []
            if any(FREEZES.search(line) for line in around):
                continue  # The lines around it say that eval mode is wanted.
            layer = modes.mode_dependent(model)
            step = _step_after(items, first, model)
            if layer is not None and step is not None:
                name = model.label or model.last
                yield rule.finding(
                    f"{name} trains in eval mode: {name}.eval() comes before the training and nothing calls "
                    f"{name}.train().",
                    cause=effect_of_eval(layer.last),
                    fix=f"Call {name}.train() before the training.",
                    subject=Subject("module", f"mode of {name}"),
                    place=place,
                    related=(step.event.place,),
                    variant=Mode.STARTS_IN_EVAL,
                )


def _step_after(items: Sequence[Located], first: Located, model: Instance) -> Happened | None:
    """The first step in a loop that trains the model after `first`, with a forward pass in that loop."""
    ran = False
    for one in items:
        item, later = one.item, one.item.time > first.item.time and bool(one.loops)
        if later and isinstance(item.event, Forward) and item.subject is model:
            ran = ran or item.event.grad_enabled
        if later and ran and isinstance(item.event, OptimizerStep) and id(model) in loop_order.owners(item.subject):
            return item
    return None


def _is_trained_from_scratch(script: Script, model: Instance) -> bool:
    """Is everything in the model trained, from new weights? Pretrained statistics are often frozen on purpose."""
    facts = script.facts
    parts = list(modes.certain_parts(model))
    old = any(id(part) in facts.loaded or not part.fresh or part.kind.startswith("torchvision.") for part in parts)
    if old or "load_state_dict" in script.text or facts.frozen or _has_escaped(script, model):
        return False
    if modes.switches_itself(model):
        return False
    given = [option for made in facts.optimizers for option in alternatives(made.parameters)]
    return any(isinstance(option, Parameters) and option.owner is model for option in given)


def _has_escaped(script: Script, model: Instance) -> bool:
    """Was the model, or a list with it, passed to code that could not be read?"""
    escaped = script.facts.escaped
    lists = (value for called in script.facts.calls for value in (*called.args, *called.kwargs.values()))
    inside = (group for group in lists if isinstance(group, Group) and id(group) in escaped)
    return id(model) in escaped or any(part is model for group in inside for part in members(group))


def _evaluated_in_train(script: Script) -> Iterator[Finding]:
    """Trained models with Dropout or BatchNorm that are evaluated under no_grad, where nothing ever calls eval()."""
    trained = {owner for made in script.facts.optimizers for owner in loop_order.owners(made.parameters)}
    if not trained or _anything_switches_to_eval(script):
        return
    reported: set[int] = set()
    for called in script.facts.calls:
        model = called.receiver
        if called.recording or not isinstance(model, Instance) or not knowledge.is_module(model):
            continue
        if id(model) in reported or id(model) not in trained or not modes.evaluates(called):
            continue
        if _has_escaped(script, model) or modes.switches_itself(model):
            continue
        layer = modes.mode_dependent(model)
        if layer is not None and not ON_PURPOSE.search(script.text):
            reported.add(id(model))
            name = model.label or model.last
            yield rule.finding(
                f"{name} is evaluated here in train mode: nothing ever calls {name}.eval().",
                cause=effect_of_train(layer.last),
                fix=f"Call {name}.eval() before the evaluation and {name}.train() before training continues.",
                subject=Subject("module", f"mode of {name}"),
                place=called.place,
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                variant=Mode.EVALUATED_IN_TRAIN,
            )


def _anything_switches_to_eval(script: Script) -> bool:
    for called in script.facts.calls:
        given = called.node.args or called.node.keywords
        if called.name.endswith(".eval") or (called.name.endswith(".train") and given) or _looks_up_mode(called):
            return True
    return ".eval()" in script.text or any(item.name == "training" for item in script.facts.attributes)
