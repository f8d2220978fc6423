"""Everything that the page of one run shows, as plain data. The page is drawn from it, live or as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from unstuck._version import __version__
from unstuck.events import RunStatus
from unstuck.findings.investigation import Investigation
from unstuck.findings.result import RunSummary
from unstuck.record import Record, RecordError, read
from unstuck.report.json import whole
from unstuck.report.text import ENDED
from unstuck.view.answer import Answer, answer_of
from unstuck.view.data import DataPart, data_of
from unstuck.view.layers import Layers, layers
from unstuck.view.moments import first_seen
from unstuck.view.thin import Number, thinned
from unstuck.view.timeline import Chart, ChartLine, Style, timeline

SPARK = 60
"""Points of the small curve in a list."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which run it is."""

    name: str
    command: str
    script: str
    arguments: list[str] = []
    status: str
    running: bool = False
    steps: int = 0
    step_name: str = "step"
    seconds: float | None = None
    started: str = ""
    versions: str = ""
    source: str = ""
    """The beginning of the hash of the script's text."""
    crash: str = ""
    outcome: str = ""
    """What became of it in a few words: `learns`, `does not beat a guess`, or where its loss goes."""
    record: str = ""
    spark: list[Number] = []


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run."""

    version: str = __version__
    run: RunFacts
    answer: Answer
    timeline: list[Chart] = []
    layers: Layers = Layers()
    data: list[DataPart] = []


def document(done: Investigation, record: Record | None = None, steps: dict[str, int] | None = None) -> Document:
    """The page of a result. `record`: of the watched run, read here if it is not given; `steps`: when findings were
    first seen, found out here if it is not given."""
    record = record if record is not None else record_of(done)
    run = done.result.run
    if record is not None and steps is None:
        steps = first_seen(record, done.result.verdict)
    table = layers(record) if record is not None else Layers()
    names = [name for tensor in table.tensors for name in (tensor.name, tensor.layer)] + table.activations
    return Document(
        run=facts(done, record),
        answer=answer_of(done, record, list(dict.fromkeys(names)), steps),
        timeline=timeline(record, done.result.verdict) if record is not None else _without_record(run),
        layers=table,
        data=data_of(run.previews) if run is not None else [],
    )


def record_of(done: Investigation) -> Record | None:
    """The record of the watched run, if it is still there."""
    run = done.result.run
    if run is None or not run.record:
        return None
    try:
        return read(Path(run.record))
    except RecordError:
        return None


def facts(done: Investigation, record: Record | None) -> RunFacts:
    """Which run it is."""
    run = done.result.run
    if run is None:
        return RunFacts(name="", command=done.result.command, script="", status="")
    started = record.started if record is not None else None
    versions = [f"{what} {which}" for what, which in _versions(record) if which]
    curve = next(iter(run.curves.values()), None)
    spark = thinned(curve.steps, curve.losses, SPARK)[1] if curve is not None else []
    crash = run.crash
    return RunFacts(
        name=Path(run.record).name if run.record else run.script,
        command=done.result.command,
        script=run.script,
        arguments=list(run.arguments),
        status=ENDED.get(run.status, str(run.status)).rstrip(","),
        running=run.status is RunStatus.RUNNING,
        steps=run.steps,
        step_name=run.step_name,
        seconds=run.seconds,
        started=started.started if started is not None else "",
        versions=", ".join(versions),
        source=started.source_hash[:12] if started is not None else "",
        crash=f"{crash.kind}: {crash.message}".rstrip(": ") if crash is not None else "",
        outcome=_outcome(done),
        record=run.record,
        spark=spark,
    )


def _outcome(done: Investigation) -> str:
    verdict = done.result.verdict
    words = list(dict.fromkeys(str(outcome.word) for outcome in verdict.outcomes))
    if not words and verdict.trend is not None and verdict.trend.steps:
        words = [f"loss {verdict.trend.word}"]
    return ", ".join(words)


def _versions(record: Record | None) -> Iterator[tuple[str, str]]:
    if record is not None:
        yield from (("python", record.started.python), ("torch", record.started.torch))


def _without_record(run: RunSummary | None) -> list[Chart]:
    """The losses are in the result itself."""
    lines = []
    for name, curve in (run.curves if run is not None else {}).items():
        steps, values = thinned(curve.steps, curve.losses, 1000)
        lines.append(ChartLine(name, steps, values, Style.LINE))
    healthy = "It falls steeply at first, then ever more slowly."
    return [Chart(name="loss", title="Loss", lines=lines, healthy=healthy)] if any(line.steps for line in lines) else []


def encoded(value: Any) -> bytes:
    """As JSON. Names of files may hold halves of characters, which JSON cannot."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(whole(msgspec.to_builtins(value, str_keys=True)))
