"""G14: DistributedDataParallel averages gradients on every micro-step, or they are averaged a second time by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Backward
from unstuck.findings import Confidence, Finding, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.rules.windows import windows

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

rule = Rule(
    code="G14",
    name="ddp-sync-every-microstep",
    title="accumulation under DDP without no_sync(), or gradients all-reduced again by hand",
    severity=Severity.WARNING,
    needs=(Backward,),
)

HANDLED = re.compile(
    r"no_sync|require_backward_grad_sync|set_requires_gradient_sync|accelerat|lightning|deepspeed|Fabric", re.I
)
WRAPPERS = ("DistributedDataParallel", ".DDP")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A model wrapped by DDP and an accumulation window, and no word about when to synchronise."""
    if "DistributedDataParallel" not in script.text and "DDP" not in script.text:
        return
    wraps = [call for call in script.facts.calls if call.name.endswith(WRAPPERS) and "torch" in call.name]
    if not wraps:
        return
    yield from _reduced_by_hand(script, wraps[0])
    for window in windows(script) if not HANDLED.search(script.text) else ():
        backward = window.backwards[0].item.event.place
        yield rule.finding(
            Witness.SOURCE,
            f"DistributedDataParallel exchanges the gradients on every turn, but step() runs {window.when}.",
            cause=f"Each backward() waits for an all-reduce over all ranks; all but one in {window.every} are wasted.",
            fix="Run the turns that do not step under `with model.no_sync():`, forward pass included.",
            subject=Subject("loop", f"accumulation at {window.loop.place}"),
            place=backward,
            related=[wraps[0].place],
            confidence=Confidence.LIKELY,
        )


def _reduced_by_hand(script: Script, wrap: Called) -> Iterator[Finding]:
    for call in script.facts.calls:
        given = ast.unparse(call.node.args[0]) if call.node.args else ""
        if call.last == "all_reduce" and call.name.startswith("torch.distributed") and re.search(r"\.grad\b", given):
            yield rule.finding(
                Witness.SOURCE,
                f"all_reduce({given}) averages gradients that DistributedDataParallel has averaged already.",
                cause="The hooks of DDP exchange the gradients during backward(): a second sum multiplies them by the "
                "number of ranks unless it is divided, and takes its time in any case.",
                fix="Remove the all_reduce, or leave the model without DistributedDataParallel.",
                subject=Subject("call", f"all_reduce at {call.place}"),
                place=call.place,
                related=[wrap.place],
                confidence=Confidence.LIKELY,
            )
