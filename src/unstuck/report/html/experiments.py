"""An experiment in the page: its verdict, its curves, its measures."""

from __future__ import annotations

import math

from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, Table
from unstuck.report.experiment import cell_text
from unstuck.report.html.chart import Mark, chart, of_curve
from unstuck.report.html.markup import Html, tag
from unstuck.report.text import number

GOOD = (ExperimentVerdict.PASSED, ExperimentVerdict.LEARNS, ExperimentVerdict.INSIDE)
STYLES = (1, 0, 2, 3)
CROPPED = 4.0
"""A sweep goes on until the loss diverges; the chart ends at so many times its start."""


def experiment_parts(experiment: Experiment) -> list[Html]:
    """All of it."""
    tone = "good" if experiment.verdict in GOOD else "warning"
    if experiment.verdict == ExperimentVerdict.UNDECIDED:
        tone = "quiet"
    chip = tag("span", experiment.verdict, class_=f"chip {tone}")
    parts = [tag("h3", f"{experiment.name} ", chip), tag("p", experiment.sentence)]
    parts.append(tag("p", f"How: {experiment.method}.", class_="quiet"))
    parts += [tag("p", caveat, class_="quiet") for caveat in experiment.caveats]
    parts += [_chart(experiment)] if experiment.curves else []
    parts += [_table(experiment.table)] if experiment.table is not None else []
    return [*parts, _measures(experiment.measures)] if experiment.measures else parts


def _table(table: Table) -> Html:
    head = tag("tr", [tag("th", name) for name in table.columns])
    rows = [tag("tr", [tag("td", cell_text(value)) for value in row]) for row in table.rows]
    return tag("table", head, rows)


def _chart(experiment: Experiment) -> Html:
    swept = experiment.x_axis != "step"
    lines = [
        of_curve(named.label, named.curve, STYLES[index % len(STYLES)], experiment.xs if swept else ())
        for index, named in enumerate(experiment.curves)
    ]
    title = f"{experiment.name}: loss by {experiment.x_axis}"
    if not swept:
        return chart(lines, title)
    most = max((CROPPED * abs(named.curve.start or 0.0) for named in experiment.curves), default=0.0) or math.inf
    return chart(lines, title, x_label=experiment.x_axis, log_x=True, marks=_marks(experiment), y_most=most)


def _marks(experiment: Experiment) -> list[Mark]:
    """The band of a sweep, the rate of the script and the one suggested."""
    low, high = _rate(experiment, "lowest"), _rate(experiment, "highest")
    marks = [Mark("productive band", low, high, "band")] if low is not None and high is not None else []
    for label, key, style in (("your rate", "own", "own"), ("suggested", "suggested", "suggested")):
        rate = _rate(experiment, key)
        marks += [Mark(label, rate, style=style)] if rate is not None else []
    return marks


def _rate(experiment: Experiment, key: str) -> float | None:
    value = experiment.measures.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _measures(measures: dict[str, Measure]) -> Html:
    rows = [(tag("dt", name.replace("_", " ")), tag("dd", _word(value))) for name, value in measures.items()]
    return tag("details", tag("summary", "All measures", class_="quiet"), tag("dl", rows))


def _word(value: Measure) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return "none" if value is None else str(value)
