"""O08 in the source: the order of the steps from the loops, the pace from the arguments of the schedule."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from unstuck.events import OptimizerStep, Place, SchedulerStep
from unstuck.findings import Confidence, Finding, Fix, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.scheduler_misuse import (
    AFTER_OPTIMIZER,
    NEEDS_METRIC,
    ON_PURPOSE,
    PASS_METRIC,
    SKIPPED,
    WAITS_FOR_WORSE,
    WANT_LESS,
    WANT_MORE,
    Misuse,
    cadence as cadences,
    rule,
)
from unstuck.rules.shared import loop_order
from unstuck.rules.shared.accumulation import windows
from unstuck.rules.shared.schedules import NOTHING
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.facts import Called, SchedulerMade
from unstuck.source.paths import paths
from unstuck.source.reader.knowledge import is_scheduler
from unstuck.source.reader.scope import SourceFile
from unstuck.source.trace import Ability, Happened, Hidden, Located, Loop, Path, events_in, located, loops_in
from unstuck.source.values import Const, Instance, Value, alternatives

STEPS = (OptimizerStep, SchedulerStep)
STEEPEST_PER_BATCH = 0.97
"""A learning rate multiplied by this is below 0.2 % after 204 batches; decays built for batches are far slower."""
PLAIN_NAMES = pattern(r"(self\.)?(lr_)?scheduler (self\.)?optimizer")
OWN_SCHEDULER = pattern(r"class \w*(Sched|LR|Warm)|def step\(")
RISES = pattern(
    r"(?i)(^|_)(acc|accuracy|f1|auc|auroc|m?ap|m?iou|dice|bleu|rouge|psnr|ssim|r2|recall|precision|hits?)(_|\d|@|$)"
)
FALLS = pattern(r"(?i)loss|(^|_)(err|error|rmse|mse|mae|nll|ppl|perplexity|wer|cer|fid)(_|$)")
FALL_OR_RISE = ("fall", "rise")
HARMLESS_USE = r"\.(get_last_lr|get_lr|state_dict|load_state_dict|last_epoch|base_lrs|optimizer|print_lr)\b"


def find(script: Script) -> Iterator[Finding]:
    """Every variant that the text can show."""
    calls = {call.place: call for call in script.facts.calls if call.name == ".step"}
    yield from _without_metric(calls.values())
    yield from _wrong_direction(calls.values())
    for loop in loops_in(script.facts.trace):
        if any(isinstance(item.event, SchedulerStep) for item in events_in(loop.body, nested_loops=False)):
            yield from _before_optimizer(script, loop, calls)
    if loop_order.uses_framework(script):
        yield from _by_lightning_too(script)
        return
    for made in script.facts.schedulers:
        yield from _wrong_pace(script, made, calls)
        yield from _decay_per_batch(script, made, calls)
        yield from _never_stepped(script, made)


def _finding(
    variant: Misuse,
    message: str,
    cause: str,
    fix: str | Fix,
    place: Place | None,
    related: Sequence[Place | None] = (),
    severity: Severity = Severity.WARNING,
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "scheduler", place),
        place=place,
        related=related,
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ERROR else Confidence.LIKELY,
        variant=variant,
    )


def _without_metric(calls: Iterable[Called]) -> Iterator[Finding]:
    for call in calls:
        receivers = alternatives(call.receiver) if call.receiver is not None else ()
        plateau = [isinstance(item, Instance) and item.last == "ReduceLROnPlateau" for item in receivers]
        if plateau and all(plateau) and not call.node.args and not call.node.keywords:
            message = "ReduceLROnPlateau.step() is called without the metric it watches."
            yield _finding(
                Misuse.WITHOUT_METRIC, message, NEEDS_METRIC, PASS_METRIC, call.place, severity=Severity.ERROR
            )


def _wrong_direction(calls: Iterable[Called]) -> Iterator[Finding]:
    """A metric whose name says that it should rise, for a scheduler that waits for it to fall, or the reverse."""
    for call in calls:
        receivers = alternatives(call.receiver) if call.receiver is not None else ()
        modes = {_mode(item) for item in receivers}
        given = [*call.node.args, *(keyword.value for keyword in call.node.keywords if keyword.arg == "metrics")]
        mode = modes.pop() if len(modes) == 1 else None
        if mode is None or not given:
            continue
        words = [node.id for node in ast.walk(given[0]) if isinstance(node, ast.Name)]
        words += [node.attr for node in ast.walk(given[0]) if isinstance(node, ast.Attribute)]
        words += [str(node.value) for node in ast.walk(given[0]) if isinstance(node, ast.Constant)]
        rises, falls = any(map(RISES.search, words)), any(map(FALLS.search, words))
        turned = any(isinstance(node, ast.USub | ast.Sub) for node in ast.walk(given[0]))
        if turned or rises == falls or rises == (mode == "max"):
            continue
        text = ast.unparse(given[0])
        message = (
            f'ReduceLROnPlateau is built with mode="{mode}" and given `{text}`, which should {FALL_OR_RISE[rises]}.'
        )
        fix = WANT_MORE if rises else WANT_LESS
        yield _finding(Misuse.WRONG_DIRECTION, message, WAITS_FOR_WORSE, fix, call.place)


def _mode(item: Value) -> str | None:
    """What ReduceLROnPlateau was built with; None for everything else."""
    if not isinstance(item, Instance) or item.last != "ReduceLROnPlateau":
        return None
    given = item.kwargs.get("mode", item.args[1] if len(item.args) > 1 else None)
    if given is None:
        return "min"
    return str(given.value) if isinstance(given, Const) and given.value in ("min", "max") else None


def _before_optimizer(script: Script, loop: Loop, calls: dict[Place, Called]) -> Iterator[Finding]:
    """Stepped before the optimizer's first step of the iteration, on every path on which both are stepped."""
    found = loop_order.always(paths(loop, iterations=1, ordered=STEPS), _opinion)
    own = {item.item.event.place for item in located(loop.body) if not item.loops and not _may_skip_first(item)}
    for place, step in found.items():
        call = calls.get(place)
        has_epoch = call is not None and bool(call.node.args or call.node.keywords)
        known = call is not None and isinstance(call.receiver, Instance)
        if place not in own or has_epoch or ON_PURPOSE.search(place.function or ""):
            continue
        if not known and OWN_SCHEDULER.search(script.text):
            continue
        target = next(item.event.place for item in events_in(loop.body) if str(item.event.place) == step)
        fix = fix_with(AFTER_OPTIMIZER, _moved(script, loop, place, target), "safe")
        message = "The scheduler is stepped before the optimizer."
        yield _finding(Misuse.BEFORE_OPTIMIZER, message, SKIPPED, fix, place, (target,))


def _may_skip_first(item: Located) -> bool:
    """Is it under a condition such as `epoch > 0` that may skip the first iteration?"""
    return any(branch.varies and "%" not in branch.condition for branch, _ in item.branches)


def _opinion(path: Path) -> loop_order.Opinion:
    """Guilty, with the place of the optimizer's step: a scheduler step that comes before it."""
    opinion = loop_order.Opinion()
    items = [
        item
        for item in path
        if (isinstance(item, Hidden) and item.can & Ability.STEP)
        or (isinstance(item, Happened) and isinstance(item.event, STEPS))
    ]
    for position, item in enumerate(items):
        if isinstance(item, Hidden) or not isinstance(item.event, SchedulerStep) or item.event.place is None:
            continue
        before = [other for other in items[:position] if isinstance(other, Hidden) or _belongs(other, item)]
        after = [other for other in items[position:] if isinstance(other, Happened) and _belongs(other, item)]
        if before:
            opinion.innocent.add(item.event.place)
        elif after:
            opinion.guilty[item.event.place] = str(after[0].event.place)
    return opinion


def _belongs(step: Happened, scheduler: Happened) -> bool:
    """Is it a step of the scheduler's optimizer? If both came in as arguments, their names must say so."""
    if not isinstance(step.event, OptimizerStep) or not isinstance(scheduler.event, SchedulerStep):
        return False
    options = alternatives(scheduler.subject) if scheduler.subject is not None else ()
    built = [made for made in options if isinstance(made, Instance) and is_scheduler(made)]
    known = [made.args[0] for made in built if made.args]
    if known:
        return isinstance(step.subject, Instance) and any(step.subject is optimizer for optimizer in known)
    unknown = not isinstance(step.subject, Instance) and scheduler.subject is None
    return unknown and PLAIN_NAMES.fullmatch(f"{scheduler.event.kind} {step.event.optimizer}") is not None


def _moved(script: Script, loop: Loop, place: Place, step: Place | None) -> Edits | None:
    """After the optimizer's step, or after the inner loop around it."""
    inner = [nested for nested in loops_in(loop.body) if any(item.event.place == step for item in events_in([nested]))]
    target = inner[0].place if inner else step
    return Editor(script).move_after(place, target) if target is not None else None


def _by_lightning_too(script: Script) -> Iterator[Finding]:
    """`self.lr_schedulers().step()` although automatic optimization steps what configure_optimizers returns."""
    if "lr_schedulers()" not in script.text or "automatic_optimization" in script.text:
        return
    functions = [node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef)]
    configured = [ast.unparse(node) for node in functions if node.name == "configure_optimizers"]
    for function in functions if any("cheduler" in text for text in configured) else ():
        for call in _manual_steps(function):
            yield _finding(
                Misuse.STEPPED_TWICE,
                "The scheduler is stepped by hand, and by Lightning as well.",
                "Automatic optimization steps what configure_optimizers() returns, so the schedule runs twice as fast.",
                "Remove this call, or set self.automatic_optimization = False and step everything by hand.",
                SourceFile(script.path, script.lines).place(call, function.name),
            )


def _manual_steps(function: ast.FunctionDef) -> Iterator[ast.Call]:
    names = {"self.lr_schedulers()"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in names:
            names |= {ast.unparse(target) for target in node.targets}
    for node in ast.walk(function):
        stepped = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if stepped is not None and stepped.attr == "step" and ast.unparse(stepped.value) in names:
            yield cast(ast.Call, node)


def _wrong_pace(script: Script, made: SchedulerMade, calls: dict[Place, Called]) -> Iterator[Finding]:
    length, cadence = cadences.length_of(script, made), cadences.cadence_of(script, made)
    if length is None or cadence is None or not cadence.scheduler:
        return
    place = cadence.scheduler[0].item.event.place
    stepped = [calls.get(item.item.event.place) for item in cadence.scheduler if item.item.event.place]
    if any(call is not None and (call.node.args or call.node.keywords) for call in stepped):
        return  # It is passed the epoch, perhaps a fraction of one.
    epochs = cadence.per_step_inside(length.text) if length.in_epochs else None
    if epochs is not None:
        yield _finding(
            Misuse.PER_BATCH,
            f"The schedule is built for {length.name}={length.text} epochs but stepped for every batch.",
            f"It is over after {length.text} batches; after that the learning rate stays at its end or climbs again.",
            f"Step it in the loop over epochs, or build it with {length.name}={length.text} * len(loader).",
            place,
            (made.place, epochs.place),
        )
    elif length.in_steps and cadence.per_epoch and not cadence.once_in(length.text):
        yield _finding(
            Misuse.PER_EPOCH,
            f"The schedule is built for every batch ({length.text} steps) but stepped once per epoch.",
            "Each step() advances it by one, so training ends long before the schedule does.",
            "Call scheduler.step() after every optimizer.step(), or build it with the number of epochs.",
            place,
            (made.place,),
        )
    else:
        yield from _per_micro_batch(script, made, length)


def _decay_per_batch(script: Script, made: SchedulerMade, calls: dict[Place, Called]) -> Iterator[Finding]:
    """A decay so steep that it can only be meant for epochs, stepped for every batch."""
    decay, cadence = cadences.decay_of(made), cadences.cadence_of(script, made)
    epochs = cadence.per_batch_in_epochs() if cadence is not None else None
    if decay is None or cadence is None or epochs is None or decay[1] > STEEPEST_PER_BATCH:
        return
    places = [item.item.event.place for item in cadence.scheduler]
    if any(calls[place].node.args or calls[place].node.keywords for place in places if place in calls):
        return
    gone = math.ceil(math.log(NOTHING) / math.log(decay[1]))
    yield _finding(
        Misuse.PER_BATCH,
        f"{decay[0]} is stepped for every batch instead of every epoch.",
        f"Each step() multiplies the learning rate again: after {gone} batches it is below {NOTHING:.1%} of its start.",
        "Call scheduler.step() once per epoch, after the loop over batches.",
        places[0],
        (made.place, epochs.place),
    )


def _per_micro_batch(script: Script, made: SchedulerMade, length: cadences.Length) -> Iterator[Finding]:
    for window in windows(script) if "/" in length.meaning else ():
        divided = re.search(rf"//?\s*(\w+\.)*{re.escape(window.every.rpartition('.')[2])}\b", length.meaning)
        for item in window.every_iteration(SchedulerStep) if divided else ():
            if item.item.subject is made.scheduler and not item.branches:
                yield _finding(
                    Misuse.PER_MICRO_BATCH,
                    f"The schedule is built for {length.meaning} steps but stepped in every iteration, not only when "
                    "the optimizer steps.",
                    f"It runs {window.every} times too fast and is over long before training ends.",
                    f"Move scheduler.step() under `if {window.guard}`, after step().",
                    item.item.event.place,
                    (made.place,),
                )


def _never_stepped(script: Script, made: SchedulerMade) -> Iterator[Finding]:
    """Built for an optimizer that this script steps, and used only to be read or saved."""
    name, cadence = made.scheduler.label, cadences.cadence_of(script, made)
    plain = name.removeprefix("self.")
    if not plain.isidentifier() or cadence is None or cadence.scheduler or not cadence.optimizer:
        return
    before = r"(?<![\w.])" if plain == name else r"\b"
    uses = re.findall(rf"{before}{plain}\b(?!\s*=[^=])(?!{HARMLESS_USE})", re.sub(r"#.*", "", script.text))
    if made.place.path == script.path and not uses:
        yield _finding(
            Misuse.NEVER_STEPPED,
            f"{name} is built and never stepped.",
            "Only step() changes the learning rate, so it stays at its first value.",
            f"Call {name}.step() after optimizer.step(), once per batch or once per epoch, as it was built for.",
            made.place,
        )
