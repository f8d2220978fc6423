"""D02: every rank trains on the same samples, or in the same order in every epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.shared import loop_order
from unstuck.rules.shared.modes import says_evaluation
from unstuck.source import Script
from unstuck.source.facts import Called
from unstuck.source.trace import Loop, loops_in
from unstuck.source.values import Const, Instance, Value

rule = Rule(
    code="D02",
    name="same-data-on-ranks",
    title="every rank trains on the same samples, or set_epoch is never called",
    severity=Severity.ERROR,
    explains=("O07",),
)

SHARED_OUT = pattern(
    r"[sS]ampler|shard|split_by|chunk|Subset|random_split|rank\s*::|world_size\s*\)?\s*==|(?<=\w)\[\s*\w*rank\b"
)
MAP_STYLE = ("torch.utils.data.TensorDataset", "torchvision.datasets.", "torchaudio.datasets.")
RANK = pattern(r"(?<![a-z])rank(?![a-z])", re.I)
TO_DEVICE = pattern(r"\.(to|cuda)\([^()]*\)|[^\n]*(cuda|device)[^\n]*")
SEEDS = pattern(r"(^|\.)(manual_seed|manual_seed_all|seed|seed_everything|set_seed)$")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A sampler without set_epoch(), or a loader without a sampler under DDP."""
    sampled, started = "DistributedSampler" in script.text, "init_process_group" in script.text
    if not (sampled or started) or loop_order.uses_framework(script):
        return
    if sampled and "set_epoch" not in script.text:
        yield from _same_order(script)
    if started and not SHARED_OUT.search(script.text):
        yield from _same_samples(script)


def _same_order(script: Script) -> Iterator[Finding]:
    if not _has_epochs(script):
        return
    for call in script.facts.calls:
        if call.last != "DistributedSampler" or not call.name.startswith("torch.") or call.place.path != script.path:
            continue
        name = call.result.label if isinstance(call.result, Instance) else ""
        given = ast.unparse(call.node.args[0]) if call.node.args else ""
        fixed = call.kwargs.get("shuffle", Const(True)) != Const(True)
        if _is_passed_on(script, call.result):
            return
        if not fixed and not any(map(says_evaluation, re.findall(r"\w+", f"{name} {given}"))):
            yield rule.finding(
                f"set_epoch() is never called on {name or 'the DistributedSampler'}.",
                cause="It shuffles by the number set with set_epoch(); without it, every epoch has the same order.",
                fix=f"Call {name or 'sampler'}.set_epoch(epoch) at the start of every epoch.",
                subject=Subject.at("call", "sampler", call.place),
                place=call.place,
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
            )
            return


def _is_passed_on(script: Script, sampler: Value) -> bool:
    """Was the sampler passed to something other than a loader, which may call set_epoch()?"""
    return any(
        call.last != "DataLoader" and any(value is sampler for value in (*call.args, *call.kwargs.values()))
        for call in script.facts.calls
    )


def _has_epochs(script: Script) -> bool:
    """Is there an epoch loop around a training loop, here and not in a file that may call set_epoch()?"""
    training = {id(loop) for loop in script.training_loops if loop.place.path == script.path}
    epochs = [loop for loop in loops_in(script.facts.trace) if _over_epochs(loop)]
    return any(id(inner) in training for loop in epochs for inner in loops_in(loop.body))


def _over_epochs(loop: Loop) -> bool:
    node = loop.node
    return isinstance(node, ast.For) and "epoch" in f"{ast.unparse(node.target)} {ast.unparse(node.iter)}".lower()


def _same_samples(script: Script) -> Iterator[Finding]:
    wraps = loop_order.wrapped_for_ranks(script)
    headers = [ast.unparse(loop.node.iter) for loop in script.training_loops if isinstance(loop.node, ast.For)]
    own = _by_rank(script) if wraps else set()
    for call in script.facts.calls if wraps else ():
        if call.name == "torch.utils.data.DataLoader" and _whole_dataset(call) and call.place.path == script.path:
            name = call.result.label if isinstance(call.result, Instance) else ""
            used = any(re.search(rf"(?<![\w.]){re.escape(name)}\b", header) for header in headers)
            if name and used and not _own_data(script, call, own):
                yield _unshared(call, wraps[0], name)


def _by_rank(script: Script) -> set[str]:
    """Names that are set to something that depends on the rank, other than a device."""
    found: set[str] = set()
    assigned = [node for node in ast.walk(script.tree) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda node: node.lineno):
        if _depends(node.value, found):
            found |= {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


def _depends(node: ast.expr, names: set[str]) -> bool:
    text = TO_DEVICE.sub("", ast.unparse(node))
    return RANK.search(text) is not None or any(word in names for word in re.findall(r"(?<![\w.])\w+", text))


def _own_data(script: Script, loader: Called, names: set[str]) -> bool:
    """Does the dataset depend on the rank: its path, name or tensors, or the seed set before it?"""
    dataset = loader.args[0] if loader.args else loader.kwargs.get("dataset")
    made = [call for call in script.facts.calls if call.result is dataset] + [loader]
    given = [value for call in made for value in (*call.node.args, *(keyword.value for keyword in call.node.keywords))]
    if any(_depends(value, names) for value in given):
        return True
    seeds = [call for call in script.facts.calls if SEEDS.search(call.name)]
    random = isinstance(dataset, Instance) and dataset.last == "TensorDataset"
    return random and any(_depends(value, names) for call in seeds for value in call.node.args)


def _whole_dataset(call: Called) -> bool:
    """An indexed library dataset without sampler, batch_sampler or other ways to split it."""
    dataset = call.args[0] if call.args else call.kwargs.get("dataset")
    known = isinstance(dataset, Instance) and dataset.cls is None and dataset.kind.startswith(MAP_STYLE)
    star = any(keyword.arg is None for keyword in call.node.keywords)
    return known and not star and len(call.node.args) <= 3 and not {"sampler", "batch_sampler"} & set(call.kwargs)


def _unshared(call: Called, wrap: Called, name: str) -> Finding:
    shuffles = call.kwargs.get("shuffle", call.args[2] if len(call.args) > 2 else Const(False)) != Const(False)
    order = "" if shuffles else " in the same order"
    return rule.finding(
        f"{name} has no DistributedSampler: every rank iterates over the whole dataset{order}.",
        cause="The ranks repeat each other's work, so more devices do not shorten an epoch"
        + ("." if shuffles else "; with equal batches the averaged gradient is that of one device."),
        fix="Pass sampler=DistributedSampler(dataset) instead of shuffle to the loader, and call its set_epoch(epoch).",
        subject=Subject("call", f"loader {name}"),
        place=call.place,
        related=[wrap.place],
        severity=Severity.WARNING if shuffles else Severity.ERROR,
        confidence=Confidence.LIKELY if shuffles else Confidence.CERTAIN,
    )
