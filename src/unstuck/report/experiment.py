"""The report of one experiment: what was done, what it showed, and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from unstuck._version import __version__
from unstuck.experiments.result import Experiment
from unstuck.findings import FORMAT_VERSION, Diagnosis
from unstuck.judge import Verdict
from unstuck.report import json, text
from unstuck.report.result import Result
from unstuck.report.terminal import Line
from unstuck.report.text import PROSE, labelled, number, wrapped


def render(done: Experiment, diagnoses: Sequence[Diagnosis], width: int = PROSE) -> list[Line]:
    """The whole report, for a terminal `width` columns wide."""
    from unstuck.experiments.plots import plot

    width = max(width, 40)
    prose = min(width, PROSE)
    lines: list[Line] = [
        [],
        *wrapped(f"{done.name}: {done.verdict}", prose, "strong"),
        *wrapped(done.sentence, prose),
        [],
    ]
    if done.curves:
        lines += [*plot(done.curves, prose, xs=done.xs, x_axis=done.x_axis), []]
    for name, value in done.measures.items():
        lines += labelled(name, _shown(value), prose)
    lines += labelled("how", done.method, prose, "quiet")
    for caveat in done.caveats:
        lines += labelled("but", caveat, prose)
    if diagnoses:
        result = Result(command=done.name, verdict=Verdict(diagnoses=tuple(diagnoses)))
        lines += [[], *text.diagnosis_lines(result, width)]
    return lines


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else "unknown" if value is None else str(value)


def document_text(done: Experiment, diagnoses: Sequence[Diagnosis]) -> str:
    """The report as a JSON document."""
    document: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "tool": {"name": "unstuck", "version": __version__},
        "command": done.name,
        "experiment": msgspec.to_builtins(done),
        "diagnoses": [json.diagnosis_document(diagnosis) for diagnosis in diagnoses],
    }
    return json.encode(document)
