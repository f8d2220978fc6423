"""The report of one experiment: what was done, what it showed, and the curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from unstuck._version import __version__
from unstuck.findings import FORMAT_VERSION, Diagnosis
from unstuck.findings.relations import Relation, State
from unstuck.findings.result import Result
from unstuck.findings.results import Experiment, Table
from unstuck.findings.verdict import Verdict
from unstuck.report import data_sets, json, text
from unstuck.report.terminal import Line
from unstuck.report.text import PROSE, number, wrapped

BAR = 20
"""Characters of the longest bar in a table."""


def render(done: Experiment, diagnoses: Sequence[Diagnosis], width: int = PROSE) -> list[Line]:
    """The whole report, for a terminal `width` columns wide."""
    from unstuck.report.plots import plot

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
    lines += [*table_lines(done.table, prose), []] if done.table is not None else []
    lines += [*data_sets.lines(done.data, prose)[1:], []] if done.data is not None else []
    measures = {
        name.replace("_", " "): value for name, value in done.measures.items() if value not in (None, "", False)
    }
    wide = max(map(len, measures), default=0)
    for name, value in measures.items():
        lines += text.hanging([(f"  {name:<{wide}}  ", "label")], _shown(value), prose)
    lines += text.hanging([(f"  {'how':<{wide}}  ", "label")], done.method, prose, "quiet")
    lines += _relations(done, prose)
    for caveat in done.caveats:
        lines += text.hanging([(f"  {'but':<{wide}}  ", "label")], caveat, prose)
    if diagnoses:
        result = Result(command=done.name, verdict=Verdict(diagnoses=tuple(diagnoses)))
        lines += [[], *text.diagnosis_lines(result, width)]
    return lines


def _relations(done: Experiment, prose: int) -> list[Line]:
    """Each with what became of it, and the numbers."""
    lines: list[Line] = [[]] if done.relations else []
    for relation in Relation:
        for one in (answer for answer in done.relations if answer.relation is relation):
            style = {State.BROKEN: "mark", State.HOLDS: "strong"}.get(one.state, "quiet")
            lines += wrapped(f"{one.state}: {relation}", prose, style)
            lines += text.hanging([("  ", "label")], one.sentence, prose, "quiet")
    return lines


def table_lines(table: Table, prose: int) -> list[Line]:
    """A table, with a bar at the end of each row if it has one."""
    cells = [[cell_text(value) for value in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    room = prose - sum(widths) - 2 * len(widths) - (BAR + 2 if table.bar is not None else 0)
    widths[0] = max(8, widths[0] + min(0, room))
    lines: list[Line] = [[("  " + _row(table.columns, widths), "label")]]
    for row, shown in zip(table.rows, cells, strict=True):
        line: Line = [("  " + _row(shown, widths), "")]
        share = row[table.bar] if table.bar is not None else None
        if isinstance(share, float):
            line.append(("  " + "#" * round(BAR * min(1.0, max(0.0, share))), "strong"))
        lines.append(line)
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0] if len(cells[0]) <= widths[0] else f"{cells[0][: widths[0] - 3]}..."
    return "  ".join([f"{first:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(cells[1:], widths[1:], strict=True))])


def cell_text(value: object) -> str:
    """One cell of a table."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)


def _without_pictures(done: Experiment) -> Experiment:
    return done if done.data is None else msgspec.structs.replace(done, data=done.data.without_pictures())


def _shown(value: object) -> str:
    if value is True:
        return "yes"
    return number(value) if isinstance(value, float) else str(value)


def document_text(done: Experiment, diagnoses: Sequence[Diagnosis]) -> str:
    """The report as a JSON document."""
    document: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "tool": {"name": "unstuck", "version": __version__},
        "command": done.name,
        "experiment": msgspec.to_builtins(_without_pictures(done)),
        "diagnoses": [json.diagnosis_document(diagnosis) for diagnosis in diagnoses],
    }
    return json.encode(document)
