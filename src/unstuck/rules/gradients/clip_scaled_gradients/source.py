"""G03 in a script: the order of scale, unscale_, clip, step and update on every path."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from unstuck.events import Backward, Clip, OptimizerStep, Place, ScalerUpdate, Unscale, ZeroGrad
from unstuck.findings import Confidence, Finding, Fix, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.gradients.clip_scaled_gradients import APPLIED, CLIPPED, RAISES, Scaling, rule
from unstuck.rules.shared import loop_order
from unstuck.rules.shared.accumulation import windows
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, both, fix_with
from unstuck.source.flow import behind
from unstuck.source.paths import paths
from unstuck.source.reader.knowledge import is_scaler
from unstuck.source.trace import GRADIENTS, Ability, Happened, Hidden, Path, events_in, located
from unstuck.source.values import Const, Instance, Tensor, Value, alternatives

SEEN = (Backward, Unscale, Clip, OptimizerStep, ScalerUpdate, ZeroGrad)
SCALED_BY_HAND = pattern(r"\.grad\b[^\n]*(/=|\*=|div_\(|mul_\(|scale)|get_scale\(\)[^\n]*\.grad|_foreach_(mul|div)_")
CHANGES_GRADIENTS = GRADIENTS | Ability.RESCALE
UPDATES = pattern(r"\.update\(\s*(new_scale[^)]*)?\)")
AT_FIRST = " by 65,536 at first"
ABOUT_PRECISION = pattern(r"scaler|amp|fp16|half|mixed|precision", re.I)


class Scaled(msgspec.Struct, eq=False):
    """A clip or step on gradients that are still scaled, with the events around it."""

    guilty: Happened
    backward: Happened
    steps: list[Happened]
    """The steps of the optimizers whose gradients are clipped."""
    unscaled: list[Happened]
    """The unscale_() calls for other optimizers."""

    @property
    def scaler(self) -> Value | None:
        """The scaler that multiplied the loss, where it is known."""
        scale = _scale_of(self.backward.value)
        return scale.options.get("scaler") if scale is not None else None


def find(script: Script) -> Iterator[Finding]:
    """A scaled backward, and then no unscale_ before the gradients are clipped or applied."""
    if "caler" not in script.text or not any(_scale_of(item.value) for item in script.facts.backwards):
        return
    by_hand = SCALED_BY_HAND.search(script.text)
    for ways in _all_paths(script):
        if not by_hand:
            yield from _still_scaled(script, ways)
        yield from _unscaled_twice(ways)
    yield from _unscaled_in_every_iteration(script)
    yield from _never_updated(script)


def _all_paths(script: Script) -> Iterator[list[Path]]:
    for loop in script.training_loops:
        yield paths(loop, ordered=SEEN)
    for function in loop_order.step_functions(script):
        yield paths(function, iterations=1, ordered=SEEN)


def _scale_of(value: Value | None) -> Tensor | None:
    """The `scaler.scale(loss)` that produced the loss of a backward."""
    for item in behind(value) if value is not None else ():
        if isinstance(item, Tensor) and item.op == "scale" and isinstance(item.node, ast.Call):
            return item
    return None


def _still_scaled(script: Script, ways: Sequence[Path]) -> Iterator[Finding]:
    """Wrong on some path where the backward is scaled, and right on none of those."""
    accused: dict[Place, Scaled] = {}
    innocent: set[Place] = set()
    elsewhere: set[Place] = set()
    for way in ways:
        for found in _verdicts(way):
            place = found.guilty.event.place if isinstance(found, Scaled) else found[0].event.place
            if place is None:
                continue
            if isinstance(found, Scaled):
                accused.setdefault(place, found)
            else:
                (innocent if found[1] else elsewhere).add(place)
    for place, scaled in accused.items():
        if place in innocent or _disabled(scaled.scaler):
            continue
        if isinstance(scaled.guilty.event, Clip):
            yield _clipped(script, scaled, place not in elsewhere)
        elif _known(scaled.scaler) and place not in elsewhere and not _is_a_choice(script, place):
            yield _applied(script, scaled)


def _is_a_choice(script: Script, step: Place) -> bool:
    """Does a condition about the scaler or the precision decide whether this plain step is taken?"""
    here = (item for item in located(script.facts.trace) if item.item.event.place == step)
    return any(ABOUT_PRECISION.search(branch.condition) for item in here for branch, _ in item.branches)


def _verdicts(path: Path) -> Iterator[Scaled | tuple[Happened, bool]]:
    """Each clip or step: wrong, with its backward; or right, and whether its backward was scaled at all."""
    items = [
        item
        for item in path
        if (isinstance(item, Hidden) and item.can & CHANGES_GRADIENTS)
        or (isinstance(item, Happened) and isinstance(item.event, SEEN))
    ]
    for position, item in enumerate(items):
        if not isinstance(item, Happened) or not isinstance(item.event, Clip | OptimizerStep):
            continue
        backward, unscales = _history(items[:position], item)
        if backward is None:
            continue
        steps = [item] if isinstance(item.event, OptimizerStep) else _steps_after(items[position + 1 :], item)
        scaled = _scale_of(backward.value) is not None
        left = [step for step in steps if _left_out(step, item, unscales)] if unscales else steps
        if not scaled or (unscales and not left):
            yield item, scaled
        elif left and _through(left[0]) is isinstance(item.event, Clip):
            if isinstance(item.event, OptimizerStep) or not _clip_before(items[:position]):
                yield Scaled(item, backward, left, unscales)
        elif left:
            yield item, True


def _through(step: Happened) -> bool:
    return isinstance(step.event, OptimizerStep) and step.event.through_scaler


def _history(earlier: Sequence[object], item: Happened) -> tuple[Happened | None, list[Happened]]:
    """The backward whose gradients are used, and the unscale_ calls since; no backward if that is uncertain."""
    unscales: list[Happened] = []
    for before in reversed(earlier):
        if not isinstance(before, Happened):
            return None, []
        if isinstance(before.event, Backward) and _reaches(before, item):
            return before, unscales
        if isinstance(before.event, Unscale) and loop_order.concerns(before, item):
            unscales.append(before)
        elif isinstance(before.event, OptimizerStep | ZeroGrad) and loop_order.concerns(before, item):
            return None, []
    return None, []


def _reaches(backward: Happened, item: Happened) -> bool:
    """Does the backward make gradients that are used here? True unless they are known to be another model's."""
    made = (
        {id(module) for module in loop_order.modules_behind([backward.value])} if backward.value is not None else set()
    )
    touched = loop_order.owners(item.subject)
    return not made or not touched or bool(made & touched)


def _steps_after(later: Sequence[object], clip: Happened) -> list[Happened]:
    """The steps right after a clip that apply what it clipped, with nothing but other clips in between."""
    found: list[Happened] = []
    for item in later:
        if not isinstance(item, Happened) or not isinstance(item.event, Clip | OptimizerStep | ZeroGrad):
            break
        if isinstance(item.event, OptimizerStep) and loop_order.concerns(clip, item):
            found.append(item)
    return found


def _left_out(step: Happened, item: Happened, unscales: Sequence[Happened]) -> bool:
    """Are gradients of this step certainly used here, and were only those of other models unscaled?"""
    own, unscaled = loop_order.owners(step.subject), [loop_order.owners(before.subject) for before in unscales]
    return bool(own & loop_order.owners(item.subject)) and all(other and not other & own for other in unscaled)


def _clip_before(earlier: Sequence[object]) -> bool:
    """Is another clip right before, so that one unscale_ before it fixes both?"""
    last = earlier[-1] if earlier else None
    return isinstance(last, Happened) and isinstance(last.event, Clip)


def _disabled(scaler: Value | None) -> bool:
    """Is it certainly disabled, so that it scales nothing?"""
    made = [option for option in alternatives(scaler) if isinstance(option, Instance)] if scaler is not None else []
    return any(option.kwargs.get("enabled") == Const(False) for option in made)


def _known(scaler: Value | None) -> bool:
    return scaler is not None and any(is_scaler(option) for option in alternatives(scaler))


def _clipped(script: Script, scaled: Scaled, always: bool) -> Finding:
    scaler, optimizers = _names(script, scaled)
    calls = [f"{scaler}.unscale_({optimizer})" for optimizer in optimizers]
    text = f"Call {' and '.join(calls)} right before clipping."
    missing = " and ".join(calls) if scaled.unscaled else f"{scaler}.unscale_()"
    which = f"those of {' and '.join(optimizers)} are still" if scaled.unscaled else "they are still"
    known = _known(scaled.scaler)
    return _finding(
        Scaling.CLIPPED,
        f"Gradients are clipped while {which} scaled by {scaler}: no {missing} before the clip.",
        CLIPPED.format(times=AT_FIRST),
        fix_with(text, _unscale(script, scaled, calls) if always else None, "safe"),
        scaled.guilty.event.place,
        (scaled.backward.event.place, *(step.event.place for step in scaled.steps)),
        Severity.ERROR if known else Severity.WARNING,
        Confidence.CERTAIN if known else Confidence.LIKELY,
    )


def _names(script: Script, scaled: Scaled) -> tuple[str, list[str]]:
    """The user's names for the scaler and the optimizers."""
    scale = _scale_of(scaled.backward.value)
    scaler = "scaler"
    if scale is not None and isinstance(scale.node, ast.Call) and isinstance(scale.node.func, ast.Attribute):
        scaler = ast.unparse(scale.node.func.value)
    return scaler, list(dict.fromkeys(_optimizer_name(script, step) for step in scaled.steps))


def _optimizer_name(script: Script, step: Happened) -> str:
    call = Editor(script).call_at(step.event.place) if step.event.place else None
    label = step.event.optimizer if isinstance(step.event, OptimizerStep) else ""
    given = call.args[0] if call is not None and call.args and _through(step) else None
    return ast.unparse(given) if given is not None else label or "optimizer"


def _unscale(script: Script, scaled: Scaled, calls: Sequence[str]) -> Edits | None:
    """Insert the calls, if clip, backward and steps are in one function, so that the names mean the same."""
    if not _own_all(script, scaled):
        return None
    spots = [item.event.place for item in (scaled.guilty, scaled.backward, *scaled.steps)]
    if any(spot is None or spot.path != script.path for spot in spots):
        return None
    if len({spot.function for spot in spots if spot is not None}) > 1 or spots[0] is None:
        return None
    if any(spots[0] == item.item.event.place for window in windows(script) for item in window.in_every_iteration):
        return None  # unscale_() on every micro-step would raise: the clip itself is in the wrong place
    return Editor(script).insert_before(spots[0], "\n".join(calls))


def _own_all(script: Script, scaled: Scaled) -> bool:
    """Do the unscaled optimizers own everything that is clipped? With several of them this must be known."""
    used = [item.subject for item in (*scaled.steps, *scaled.unscaled)]
    clipped, owned = loop_order.owners(scaled.guilty.subject), [loop_order.owners(optimizer) for optimizer in used]
    if not clipped or not all(owned):
        return len(used) == 1
    known = {id(option) for optimizer in used if optimizer is not None for option in alternatives(optimizer)}
    others = [made.optimizer for made in script.facts.optimizers if id(made.optimizer) not in known]
    elsewhere = any(loop_order.owners(other) & clipped for other in others)
    return not elsewhere and all(map(_through, scaled.steps)) and clipped <= set().union(*owned)


def _applied(script: Script, scaled: Scaled) -> Finding:
    scaler, (optimizer, *_) = _names(script, scaled)
    place = scaled.guilty.event.place
    editor = Editor(script)
    call = editor.call_at(place) if place is not None else None
    updated = any(isinstance(item.event, ScalerUpdate) for item in events_in(script.facts.trace))
    edits: Edits | None = None
    if call is not None and not call.args and not call.keywords:
        behind_it = () if updated else editor.insert_after(call, f"{scaler}.update()")
        edits = both(editor.replace(call, f"{scaler}.step({optimizer})"), behind_it)
    update = "" if updated else f", then {scaler}.update()"
    return _finding(
        Scaling.PLAIN_STEP,
        f"{optimizer}.step() applies gradients that are still scaled by {scaler}.",
        APPLIED.format(times=AT_FIRST),
        fix_with(f"Call {scaler}.step({optimizer}) instead of {optimizer}.step(){update}.", edits, "safe"),
        place,
        (scaled.backward.event.place,),
    )


def _unscaled_twice(ways: Sequence[Path]) -> Iterator[Finding]:
    for place in loop_order.always(ways, _second_unscale):
        yield _finding(
            Scaling.UNSCALED_TWICE,
            "unscale_() is called a second time on the same optimizer before update().",
            RAISES.format(method="unscale_()"),
            Fix("Remove this unscale_(): the first one has already divided the gradients."),
            place,
        )


def _second_unscale(path: Path) -> loop_order.Opinion:
    opinion = loop_order.Opinion()
    last: Happened | None = None
    for item in path:
        if isinstance(item, Happened) and isinstance(item.event, Unscale):
            place = item.event.place
            if place is None or (last is not None and last.event.place == place):
                continue
            if last is not None and isinstance(last.event, Unscale) and last.event.optimizer == item.event.optimizer:
                opinion.guilty[place] = ""
            else:
                opinion.innocent.add(place)
                last = item
        elif not isinstance(item, Happened) or isinstance(item.event, ScalerUpdate | OptimizerStep):
            last = None
    return opinion


def _unscaled_in_every_iteration(script: Script) -> Iterator[Finding]:
    for window in windows(script):
        if not window.once(ScalerUpdate):
            continue
        for unscale in window.every_iteration(Unscale):
            yield _finding(
                Scaling.UNSCALED_TWICE,
                f"unscale_() runs in every iteration, but update() only under `if {window.guard}`.",
                RAISES.format(method="unscale_()"),
                Fix(f"Move unscale_(), and the clipping after it, under `if {window.guard}`."),
                unscale.item.event.place,
            )


def _never_updated(script: Script) -> Iterator[Finding]:
    """scaler.step() in a loop and no update() anywhere: the second step raises."""
    everything = list(events_in(script.facts.trace))
    if UPDATES.search(script.text) or any(isinstance(item.event, ScalerUpdate) for item in everything):
        return
    in_loops = (item for loop in script.training_loops for item in events_in(loop.body, nested_loops=False))
    for step in _first_of_each(item for item in in_loops if _through(item)):
        scaler = step.scaler
        if isinstance(scaler, Instance) and is_scaler(scaler) and id(scaler) not in script.facts.escaped:
            name = scaler.label or "scaler"
            if not _disabled(scaler):
                yield _finding(
                    Scaling.NO_UPDATE,
                    f"{name}.step() runs in a loop, but {name}.update() is never called.",
                    RAISES.format(method="step()"),
                    Fix(f"Call {name}.update() once after {name}.step()."),
                    step.event.place,
                )


def _first_of_each(steps: Iterable[Happened]) -> list[Happened]:
    return list({id(step.scaler): step for step in reversed(list(steps))}.values())


def _finding(
    variant: Scaling,
    message: str,
    cause: str,
    fix: Fix,
    place: Place | None,
    related: Iterable[Place | None] = (),
    severity: Severity = Severity.ERROR,
    confidence: Confidence = Confidence.CERTAIN,
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "scaled gradients", place),
        place=place,
        related=related,
        severity=severity,
        confidence=confidence,
        variant=variant,
    )
