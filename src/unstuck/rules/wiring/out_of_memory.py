"""M21: the device has no memory left."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Crash, Forward
from unstuck.events.torch_errors import (
    MEMORY_FREE,
    MEMORY_OF_DEVICE,
    MEMORY_OF_TENSORS,
    MEMORY_REQUESTED,
    MEMORY_UNUSED,
    TorchError,
)
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import Explanation, crash_of, shaped

rule = Rule(
    code="M21",
    name="out-of-memory",
    title="a tensor does not fit into the remaining memory",
    severity=Severity.ERROR,
)

SMALLER = (
    "Use smaller batches and accumulate gradients over several before step(). Then try autocast (bfloat16), "
    "torch.utils.checkpoint, shorter sequences or smaller images."
)
SEVERAL = 10
KINDS = ("OutOfMemoryError", "RuntimeError", "AcceleratorError")


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The allocator reports how much was requested; the events show what the program was doing."""
    crash = crash_of(record, TorchError.OUT_OF_MEMORY)
    if crash is None or crash.kind not in KINDS:
        return
    said = _explained(record, crash)
    numbers = {
        "requested": MEMORY_REQUESTED,
        "memory of the device": MEMORY_OF_DEVICE,
        "free": MEMORY_FREE,
        "held by tensors": MEMORY_OF_TENSORS,
    }
    found = {name: match.group(1) for name, regex in numbers.items() if (match := regex.search(crash.message))}
    spare = MEMORY_UNUSED.search(crash.message)
    evidence = [Evidence(name, _readable(value)) for name, value in found.items()]
    evidence += [Evidence("reserved and unused", spare.group(1))] if spare else []
    evidence += [Evidence(fact.name, f"{fact.dtype} {shaped(fact.shape)}") for fact in crash.variables]
    yield rule.finding(
        said.message,
        cause=said.cause,
        fix=said.fix,
        subject=Subject.at("call", "memory", crash.place),
        place=crash.place,
        evidence=evidence,
        confidence=Confidence.CERTAIN,
    )


def _explained(record: Record, crash: Crash) -> Explanation:
    tried = MEMORY_REQUESTED.search(crash.message)
    amount = f"{_readable(tried.group(1))} of memory" if tried else "Memory"
    message = f"{amount} could not be allocated {_during(crash)}."
    last = next((event for event in reversed(record.events) if isinstance(event, Forward)), None)
    if last is not None and not last.training and last.grad_enabled and crash.function != "backward":
        return Explanation(
            f"{message[:-1]}: {last.model} is evaluated (eval()) while gradients are recorded.",
            "eval() changes only dropout and BatchNorm. Every forward pass still stores what backward() would need.",
            "Put the evaluation under `with torch.no_grad():`.",
        )
    if crash.step >= SEVERAL:
        return Explanation(
            message,
            f"The first {crash.step} steps fitted. Either this batch is larger, or something grows with every "
            "step: sums of losses and lists of outputs that keep their graph.",
            "Use .item() or .detach() for values kept across steps, and limit the length of the longest "
            "batch. " + SMALLER,
        )
    return Explanation(
        message,
        "Memory goes to the weights, their gradients and the optimizer's state (four times the weights with Adam), and "
        "to what the forward pass stores for backward(), which grows with the batch.",
        SMALLER,
    )


def _during(crash: Crash) -> str:
    words = {"backward": "in backward()", "step": "in optimizer.step()"}
    return words.get(crash.function, f"by `{crash.module}`" if crash.module else "here")


def _readable(amount: str) -> str:
    """`4000000000000000 bytes` as `3.6 PiB`."""
    number, _, unit = amount.partition(" ")
    if unit != "bytes":
        return amount
    size = float(number)
    for word in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.4g} {word}"
        size /= 1024
    return f"{size:.4g} PiB"
