"""What the data that a model received show, in sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unstuck.events import PredictionKind
from unstuck.findings.preview import Dynamics, Preview, Snapshot, Targets

MADE_TO_REPEAT = re.compile(r"mask|length|lens|position|token_type|label|target", re.I)
"""Names of inputs that are alike from example to example by their nature."""


def preview_sentences(previews: Sequence[Preview]) -> tuple[str, ...]:
    """What stands out in the data of a run: copies, classes, predictions."""
    sentences: list[str] = []
    for preview in previews:
        counts = (target_sentence(preview.targets),) if preview.targets is not None and preview.targets.counts else ()
        sentences += [*input_sentences(preview), *counts, *prediction_sentences(preview)]
    return tuple(sentences)


def input_sentences(preview: Preview) -> tuple[str, ...]:
    """A sentence for each thing about the inputs that a person should look at."""
    found = []
    for tensor in preview.tensors:
        if MADE_TO_REPEAT.search(tensor.name):
            continue
        if tensor.broken:
            found.append(f"{tensor.broken:.2%} of {tensor.name} is not finite.")
        if tensor.duplicates:
            amount = f"{tensor.duplicates:,} of the {tensor.examples:,} examples"
            found.append(f"{amount} of {tensor.name} in the first batch are copies of others, bit by bit.")
        if tensor.constant:
            amount = f"{tensor.constant:,} of the {tensor.examples:,} examples"
            found.append(f"{amount} of {tensor.name} in the first batch hold one single value.")
    return tuple(found)


def target_sentence(target: Targets) -> str:
    """`int64 [32], 10 classes in 50 batches: 12 to 180 of each.`"""
    words = f"{target.dtype} {list(target.shape)}"
    if target.counts:
        total = sum(target.counts.values())
        batches = f"the {target.batches:,} batches looked at" if target.batches != 1 else "the batch looked at"
        if len(target.counts) == 1:
            return (
                f"Targets are {words}; every one of the {total:,} in {batches} is of class {next(iter(target.counts))}."
            )
        rarest, often = min(target.counts.values()), max(target.counts.values())
        spread = (
            f"each {often:,} times" if rarest == often else f"the rarest {rarest:,} times, the most frequent {often:,}"
        )
        return f"Targets are {words}; {len(target.counts):,} classes came in {batches}, {spread}."
    if target.low is not None and target.high is not None:
        words += f" from {target.low:.4g} to {target.high:.4g}"
    return f"Targets are {words}."


def prediction_sentences(preview: Preview) -> tuple[str, ...]:
    """What the model predicts for the fixed batch, at first and at last."""
    dynamics = preview.dynamics
    if dynamics is None or not dynamics.snapshots:
        return ()
    first, last = dynamics.snapshots[0], dynamics.snapshots[-1]
    if dynamics.kind is PredictionKind.CLASS:
        return (_class_sentence(first, last, dynamics, preview.class_names),)
    return (_value_sentence(first, last, dynamics),)


def _class_sentence(first: Snapshot, last: Snapshot, dynamics: Dynamics, names: Sequence[str]) -> str:
    size = len(last.values)
    kinds = {value for value in last.values if value is not None}
    if not kinds:
        return f"After step {last.step} no prediction for the {size} examples of {dynamics.batch} is finite."
    before = len(set(first.values))
    if len(kinds) == 1 and size > 1:
        only = class_word(int(kinds.pop()), names)
        words = f"After step {last.step} the model predicts class {only} for all {size} examples of {dynamics.batch}"
    else:
        examples = f"the {size} examples of {dynamics.batch}"
        words = f"After step {last.step} the model predicts {len(kinds)} classes for {examples}"
    if last.step == first.step:
        return f"{words}."
    words += f", {before} class{'es' * (before != 1)} at step {first.step}"
    if len(dynamics.targets) == size:
        right = [sum(a == b for a, b in zip(shot.values, dynamics.targets, strict=True)) for shot in (first, last)]
        words += f"; {right[1]} right, {right[0]} right at step {first.step}"
    return f"{words}."


def _value_sentence(first: Snapshot, last: Snapshot, dynamics: Dynamics) -> str:
    what = {PredictionKind.VALUE: "outputs", PredictionKind.RIGHT: "shares of positions predicted right"}.get(
        dynamics.kind, "spreads of the output"
    )
    words = f"On {dynamics.batch}, {what} are {_range(last)} after step {last.step}"
    return f"{words}, {_range(first)} at step {first.step}." if last.step != first.step else f"{words}."


def _range(shot: Snapshot) -> str:
    finite = [value for value in shot.values if value is not None]
    if not finite:
        return "not finite"
    return f"{min(finite):.4g} to {max(finite):.4g}" if min(finite) < max(finite) else f"all {finite[0]:.4g}"


def class_word(value: int, names: Sequence[str]) -> str:
    """`3`, or `3 cat` where classes have names."""
    return f"{value} {names[value]}" if 0 <= value < len(names) else str(value)
