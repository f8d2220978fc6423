"""G14: DistributedDataParallel averages gradients at every micro-step, or the script averages them a second time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from unstuck.events import Backward, GradientsReduced
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import loop_order
from unstuck.rules.shared.accumulation import STEADY, micro_windows, usual, windows
from unstuck.source import Script
from unstuck.source.facts import Called
from unstuck.source.values import Instance, root

rule = Rule(
    code="G14",
    name="ddp-sync-every-microstep",
    title="accumulation under DDP without no_sync(), or gradients all-reduced again by hand",
    severity=Severity.WARNING,
    hygiene=True,
    needs=(Backward,),
)

HANDLED = pattern(r"no_sync|require_backward_grad_sync|set_requires_gradient_sync")
TWICE = (
    "DDP already averages the gradients during backward(). A second sum multiplies them by the number of "
    "ranks unless it is divided, and costs time in either case."
)
ONCE = "Remove the all_reduce, or do not wrap the model in DistributedDataParallel."
UNDER_NO_SYNC = "Run the iterations that do not step, including their forward pass, under `with model.no_sync():`."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A model wrapped by DDP and an accumulation window, with nothing that controls synchronisation."""
    if "DistributedDataParallel" not in script.text and "DDP" not in script.text:
        return
    wraps = loop_order.wrapped_for_ranks(script)
    if not wraps:
        return
    yield from _reduced_by_hand(script, wraps)
    handled = HANDLED.search(script.text) is not None or loop_order.uses_framework(script)
    for window in windows(script) if not handled else ():
        backward = window.backwards[0].item.event.place
        yield rule.finding(
            f"DistributedDataParallel synchronises gradients in every iteration, but step() runs {window.when}.",
            cause=f"Each backward() waits for an all-reduce over all ranks, and only one in {window.every} is needed.",
            fix=UNDER_NO_SYNC,
            subject=Subject.at("loop", "accumulation", window.loop.place),
            place=backward,
            related=[wraps[0].place],
            confidence=Confidence.LIKELY,
        )


def _reduced_by_hand(script: Script, wraps: Sequence[Called]) -> Iterator[Finding]:
    for call in script.facts.calls:
        if call.last != "all_reduce" or not call.name.startswith("torch.distributed"):
            continue
        given = ast.unparse(call.node.args[0]) if call.node.args else ""
        if re.search(r"\.grad\b", given) and not _of_another_model(script, call, wraps):
            yield rule.finding(
                f"all_reduce({given}) averages gradients that DistributedDataParallel has already averaged.",
                cause=TWICE,
                fix=ONCE,
                subject=Subject.at("call", "all_reduce", call.place),
                place=call.place,
                related=[wraps[0].place],
                confidence=Confidence.LIKELY,
            )


def _of_another_model(script: Script, reduction: Called, wraps: Sequence[Called]) -> bool:
    """Does the loop around it iterate over the parameters of a model that is certainly not the wrapped one?"""
    header = getattr(reduction.loops[-1].node, "iter", None) if reduction.loops else None
    inside = {id(node) for node in ast.walk(header)} if header is not None else set()
    asked = [call for call in script.facts.calls if id(call.node) in inside and call.last.endswith("parameters")]
    models = [root(call.receiver) for call in asked if isinstance(call.receiver, Instance)]
    wrapped = [value for wrap in wraps for value in (wrap.result, *wrap.args, *wrap.kwargs.values())]
    around = {id(root(value)) for value in wrapped if isinstance(value, Instance)}
    return bool(models) and bool(around) and all(id(model) not in around for model in models)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Backwards that synchronised before the last one of a window, and gradients reduced by hand."""
    for event in record.of(GradientsReduced):
        if event.wrapped:
            yield rule.finding(
                "The program reduced gradients that DistributedDataParallel had already reduced.",
                cause=TWICE,
                fix=ONCE,
                subject=Subject.at("call", "all_reduce", event.place),
                place=event.place,
                confidence=Confidence.LIKELY,
            )
    windows = micro_windows(record)
    early = [backward for window in windows for backward in window.backwards[:-1]]
    wasted = [backward for backward in early if backward.synced]
    if len(windows) < STEADY or len(wasted) < len(early) / 2:
        return
    every = usual([len(window.backwards) for window in windows])
    total = sum(len(window.backwards) for window in windows)
    yield rule.finding(
        f"DistributedDataParallel synchronised gradients in each of {every} backward passes per step.",
        cause=f"An all-reduce waits for the slowest rank; {len(wasted)} of {total} recorded ones were not needed.",
        fix=UNDER_NO_SYNC,
        subject=Subject.at("loop", "accumulation", wasted[-1].place),
        place=wasted[-1].place,
        related=[windows[-1].step.place],
        evidence=[
            Evidence("backward passes for each step", every),
            Evidence("all-reduces recorded", total),
            Evidence("all-reduces not needed", len(wasted)),
        ],
    )
