"""M20: an index beyond the rows, classes or elements that exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unstuck.events import Crash
from unstuck.events.losses import CLASS_LOSSES
from unstuck.events.torch_errors import INDEX_AND_SIZE, TorchError
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import Explanation, called, count, crash_of, evidence_at, given, layer, sentence

rule = Rule(
    code="M20",
    name="index-out-of-range",
    title="an id or an index beyond the rows that exist",
    severity=Severity.ERROR,
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """torch reports that there is no such row; the crash shows which ids were used."""
    for kind, explanation in CAUSES.items():
        crash = crash_of(record, kind)
        said = explanation(crash) if crash is not None and crash.function not in CLASS_LOSSES else None
        if crash is not None and said is not None:
            yield _finding(crash, said, Confidence.CERTAIN)
            return
    crash = crash_of(record, TorchError.DEVICE_ASSERT)
    if crash is not None:
        yield _finding(crash, _on_device(crash), Confidence.LIKELY)


def _finding(crash: Crash, said: Explanation, confidence: Confidence) -> Finding:
    evidence = evidence_at(crash)
    if outside := count(crash, "outside"):
        evidence.append(Evidence("ids out of range", outside))
    return rule.finding(
        said.message,
        cause=said.cause,
        fix=said.fix,
        subject=Subject("module", crash.module) if crash.module else Subject.at("call", "index", crash.place),
        place=crash.place,
        evidence=evidence,
        confidence=confidence,
    )


def _embedding(crash: Crash) -> Explanation | None:
    ids, rows = given(crash, "input"), count(crash, "rows")
    if ids is None or rows is None or ids.low is None or ids.high is None:
        return None
    low, high = int(ids.low), int(ids.high)
    width = count(crash, "embedding_dim")
    table = f"nn.{crash.module_kind or 'Embedding'}({high + 1}, {width or '...'})"
    fix = (
        f"Build it with a row for every id: {table}. If ids above {rows - 1} should not occur, find out where they "
        "come from."
    )
    if low < 0:
        fix = "Give padding and unknown words their own ids, starting at 0 (padding_idx marks the padding row)."
    elif low >= 1 and high == rows:
        fix = f"If the ids start at 1, subtract 1; if 0 is reserved for padding, build it with one more row: {table}."
    return Explanation(
        f"{sentence(layer(crash))} has {rows} rows, 0 to {rows - 1}, but got ids from {low} to {high} in "
        f"{called(crash, 'input', 'its input')}.",
        "An embedding is a table, and an id is a row number. The vocabulary that produced the ids is larger "
        "than the table, or does not start at 0.",
        fix,
    )


def _element(crash: Crash) -> Explanation | None:
    match = INDEX_AND_SIZE.search(crash.message)
    if match is None or not crash.variables:
        return None
    index, axis, size = (int(number) for number in match.groups())
    asking = next((f"`{fact.name}`" for fact in crash.variables if index in (fact.low, fact.high)), "This line")
    return Explanation(
        f"{asking} asks for element {index} of axis {axis}, which has only {size}.",
        f"Elements are numbered from 0 to {size - 1}.",
        "Count from 0, and take the limit from the tensor (x.shape) instead of a fixed number.",
    )


def _one_hot(crash: Crash) -> Explanation | None:
    ids = next((fact for fact in crash.variables if fact.dtype == "int64" and fact.high is not None), None)
    if ids is None or ids.high is None or ids.low is None:
        return None
    wanted = f"pass num_classes={int(ids.high) + 1}, or number the classes from 0"
    return Explanation(
        f"one_hot gets ids from {int(ids.low)} to {int(ids.high)} in `{ids.name}`.",
        "Ids must be in 0..num_classes-1.",
        sentence(wanted if ids.low >= 0 else "number the classes from 0") + ".",
    )


def _on_device(crash: Crash) -> Explanation:
    return Explanation(
        "A GPU kernel found an index out of range, most often a class id or an embedding id.",
        "The GPU runs asynchronously, so the line shown may be too late. After this error every CUDA call "
        "fails and no value can be read.",
        "Run the same step on the CPU, where the message names the value, or set CUDA_LAUNCH_BLOCKING=1, "
        "which gives the right line. Class ids must be in 0..C-1, embedding ids below num_embeddings.",
    )


CAUSES: dict[TorchError, Callable[[Crash], Explanation | None]] = {
    TorchError.NO_ROW: _embedding,
    TorchError.NO_ELEMENT: _element,
    TorchError.NO_CLASS: _one_hot,
}
