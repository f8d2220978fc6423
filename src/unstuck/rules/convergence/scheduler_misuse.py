"""O08: a learning-rate scheduler stepped before the optimizer, too often, too rarely, or never."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from unstuck.events import OptimizerStep, Place, SchedulerSeen, SchedulerStep
from unstuck.findings import Confidence, Finding, Fix, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.convergence import _schedule_in_run as schedule_in_run, _schedule_length as schedules
from unstuck.rules.shared import loop_order as order
from unstuck.rules.shared.accumulation import windows
from unstuck.rules.shared.schedules import NOTHING
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.facts import Called, SchedulerMade
from unstuck.source.reader.scope import SourceFile
from unstuck.source.trace import Happened, Hidden, Located, Loop, Path, events_in, located, loops_in, paths
from unstuck.source.values import Instance, alternatives

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O08",
    name="scheduler-misuse",
    title="a learning-rate scheduler stepped out of order, at the wrong pace, or never",
    severity=Severity.ERROR,
    explains=("O07", "O22", "O23", "R07", "R08"),
    needs=(SchedulerSeen,),
)

SEEN = (OptimizerStep, SchedulerStep)
ON_PURPOSE = schedule_in_run.ON_PURPOSE
STEEPEST_PER_BATCH = 0.97
"""A rate multiplied by this is below 0.2 % of itself after 204 batches; decays made for batches are far slower."""
PLAIN_NAMES = pattern(r"(self\.)?(lr_)?scheduler (self\.)?optimizer")
OWN_SCHEDULER = pattern(r"class \w*(Sched|LR|Warm)|def step\(")
HARMLESS_USE = r"\.(get_last_lr|get_lr|state_dict|load_state_dict|last_epoch|base_lrs|optimizer|print_lr)\b"


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Order from the loops, pace from the words the schedule was built with."""
    if not script.facts.schedulers and "lr_schedulers()" not in script.text:
        return
    calls = {call.place: call for call in script.facts.calls if call.name == ".step"}
    yield from _without_metric(calls.values())
    for loop in loops_in(script.facts.trace):
        if any(isinstance(item.event, SchedulerStep) for item in events_in(loop.body, nested_loops=False)):
            yield from _early(script, loop, calls)
    if order.uses_framework(script):
        yield from _stepped_by_lightning_too(script)
        return
    for made in script.facts.schedulers:
        yield from _pace(script, made, calls)
        yield from _decay(script, made, calls)
        yield from _never(script, made)


def _without_metric(calls: Iterable[Called]) -> Iterator[Finding]:
    for call in calls:
        receivers = alternatives(call.receiver) if call.receiver is not None else ()
        plateau = [isinstance(item, Instance) and item.last == "ReduceLROnPlateau" for item in receivers]
        if plateau and all(plateau) and not call.node.args and not call.node.keywords:
            yield _finding(
                "ReduceLROnPlateau.step() is called without the metric it watches.",
                "It lowers the rate when a metric stops improving and raises TypeError without one.",
                Fix("Pass the metric: step(validation_loss)."),
                call.place,
                severity=Severity.ERROR,
            )


def _early(script: Script, loop: Loop, calls: dict[Place, Called]) -> Iterator[Finding]:
    """Stepped before the optimizer's first step of the turn, on every path on which both are stepped."""
    found = order.always(paths(loop, turns=1, ordered=SEEN), _before_optimizer)
    own = {item.item.event.place for item in located(loop.body) if not item.loops and not _not_at_first(item)}
    for place, step in found.items():
        call = calls.get(place)
        told_the_epoch = call is not None and bool(call.node.args or call.node.keywords)
        known = call is not None and isinstance(call.receiver, Instance)
        if place not in own or told_the_epoch or ON_PURPOSE.search(place.function or ""):
            continue
        if not known and OWN_SCHEDULER.search(script.text):
            continue
        target = next(item.event.place for item in events_in(loop.body) if str(item.event.place) == step)
        yield _finding(
            "The scheduler is stepped before the optimizer.",
            "The first learning rate of the schedule is skipped, and every later one comes a step too early.",
            fix_with("Call scheduler.step() behind optimizer.step().", _moved(script, loop, place, target), "safe"),
            place,
            (target,),
        )


def _not_at_first(item: Located) -> bool:
    """Does it stand under a condition such as `epoch > 0` that may leave out the first turn?"""
    return any(branch.varies and "%" not in branch.condition for branch, _ in item.branches)


def _before_optimizer(path: Path) -> order.Opinion:
    opinion = order.Opinion()
    items = [item for item in path if isinstance(item, Hidden) or (isinstance(item, Happened) and _is_step(item))]
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
    """Does the step belong to the scheduler's optimizer? Of two that came in as arguments the names must say so."""
    if not isinstance(step.event, OptimizerStep) or not isinstance(scheduler.event, SchedulerStep):
        return False
    known = [made.args[0] for made in schedules.known_schedulers(scheduler.subject) if made.args]
    if known:
        return any(schedules.same(step.subject, optimizer) for optimizer in known)
    unknown = not isinstance(step.subject, Instance) and scheduler.subject is None
    return unknown and PLAIN_NAMES.fullmatch(f"{scheduler.event.kind} {step.event.optimizer}") is not None


def _is_step(item: Happened) -> bool:
    return isinstance(item.event, SEEN)


def _moved(script: Script, loop: Loop, place: Place, step: Place | None) -> Edits | None:
    """Behind the optimizer's step, or behind the inner loop in which that stands."""
    inner = [nested for nested in loops_in(loop.body) if any(item.event.place == step for item in events_in([nested]))]
    target = inner[0].place if inner else step
    return Editor(script).move_after(place, target) if target is not None else None


def _stepped_by_lightning_too(script: Script) -> Iterator[Finding]:
    """`self.lr_schedulers().step()` where automatic optimization steps what configure_optimizers returns."""
    if "lr_schedulers()" not in script.text or "automatic_optimization" in script.text:
        return
    functions = [node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef)]
    configured = [ast.unparse(node) for node in functions if node.name == "configure_optimizers"]
    for function in functions if any("cheduler" in text for text in configured) else ():
        for call in _manual_steps(function):
            yield _finding(
                "The scheduler is stepped by hand, and by Lightning as well.",
                "Automatic optimization steps what configure_optimizers() returns, so the schedule runs twice as fast.",
                Fix("Remove this call, or set self.automatic_optimization = False and do all of it by hand."),
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


def _pace(script: Script, made: SchedulerMade, calls: dict[Place, Called]) -> Iterator[Finding]:
    length, cadence = schedules.length_of(script, made), schedules.cadence_of(script, made)
    if length is None or cadence is None or not cadence.scheduler:
        return
    place = cadence.scheduler[0].item.event.place
    stepped = [calls.get(item.item.event.place) for item in cadence.scheduler if item.item.event.place]
    if any(call is not None and (call.node.args or call.node.keywords) for call in stepped):
        return  # told the epoch, perhaps a fraction of it
    epochs = cadence.per_step_inside(length.text) if length.in_epochs else None
    if epochs is not None:
        yield _finding(
            f"The schedule has {length.name}={length.text} steps, one per epoch, but is stepped for every batch.",
            f"It is over after {length.text} batches; from then on the rate stays at its end or climbs again.",
            Fix(f"Step it in the loop over epochs, or build it with {length.name}={length.text} * len(loader)."),
            place,
            (made.place, epochs.place),
        )
    elif length.in_steps and cadence.per_epoch and not cadence.once_in(length.text):
        yield _finding(
            f"The schedule is as long as the number of batches ({length.text}), but is stepped once per epoch.",
            "An epoch moves it on by one step, where it was built for one per batch: training ends long before it.",
            Fix("Call scheduler.step() behind every optimizer.step(), or build it with the number of epochs."),
            place,
            (made.place,),
        )
    else:
        yield from _per_micro_batch(script, made, length)


def _decay(script: Script, made: SchedulerMade, calls: dict[Place, Called]) -> Iterator[Finding]:
    """A decay so steep that it can only be meant for epochs, stepped behind every batch."""
    decay, cadence = schedules.decay_of(made), schedules.cadence_of(script, made)
    epochs = cadence.per_batch_in_epochs() if cadence is not None else None
    if decay is None or cadence is None or epochs is None or decay[1] > STEEPEST_PER_BATCH:
        return
    places = [item.item.event.place for item in cadence.scheduler]
    if any(calls[place].node.args or calls[place].node.keywords for place in places if place in calls):
        return
    gone = math.ceil(math.log(NOTHING) / math.log(decay[1]))
    yield _finding(
        f"{decay[0]} is stepped for every batch, not for every epoch.",
        f"Each step() multiplies the rate once more: after {gone} batches it is below {NOTHING:.1%} of where it began.",
        Fix("Call scheduler.step() once per epoch, behind the loop over batches."),
        places[0],
        (made.place, epochs.place),
    )


def _per_micro_batch(script: Script, made: SchedulerMade, length: schedules.Length) -> Iterator[Finding]:
    for window in windows(script) if "/" in length.meaning else ():
        divided = re.search(rf"//?\s*(\w+\.)*{re.escape(window.every.rpartition('.')[2])}\b", length.meaning)
        for item in window.every_iteration(SchedulerStep) if divided else ():
            if item.item.subject is made.scheduler and not item.branches:
                yield _finding(
                    f"The schedule is built for {length.meaning} steps, but is stepped on every turn, not only when "
                    "the optimizer is.",
                    f"It runs {window.every} times too fast and is over long before the training is.",
                    Fix(f"Move scheduler.step() under `if {window.guard}`, behind step()."),
                    item.item.event.place,
                    (made.place,),
                )


def _never(script: Script, made: SchedulerMade) -> Iterator[Finding]:
    """Built for an optimizer that this script steps, and mentioned nowhere but to be read or saved."""
    name, cadence = made.scheduler.label, schedules.cadence_of(script, made)
    plain = name.removeprefix("self.")
    if not plain.isidentifier() or cadence is None or cadence.scheduler or not cadence.optimizer:
        return
    before = r"(?<![\w.])" if plain == name else r"\b"
    uses = re.findall(rf"{before}{plain}\b(?!\s*=[^=])(?!{HARMLESS_USE})", re.sub(r"#.*", "", script.text))
    if made.place.path == script.path and not uses:
        yield _finding(
            f"{name} is built and never stepped.",
            "Only step() changes the learning rate, so it stays where it started.",
            Fix(f"Call {name}.step() after optimizer.step(), once per batch or per epoch, as it was built for."),
            made.place,
        )


def _finding(
    message: str,
    cause: str,
    fix: Fix,
    place: Place | None,
    related: Sequence[Place | None] = (),
    severity: Severity = Severity.WARNING,
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject("call", f"scheduler at {place}"),
        place=place,
        related=related,
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ERROR else Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """How often schedulers were stepped, and when, against what they were built for."""
    for trouble in schedule_in_run.troubles(record):
        yield rule.finding(
            trouble.message,
            cause=trouble.cause,
            fix=trouble.fix,
            subject=Subject("call", f"scheduler at {trouble.place}"),
            place=trouble.place,
            related=trouble.related,
            evidence=trouble.evidence,
            severity=trouble.severity or Severity.WARNING,
            confidence=Confidence.CERTAIN if trouble.severity is Severity.ERROR else Confidence.LIKELY,
        )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The rate stays where it begins."""
    from unstuck.interventions import NoSchedule

    yield (NoSchedule(),)
