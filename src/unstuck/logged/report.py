"""The post-mortem of a run that was not watched: what its log shows, and what no log of this kind can show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec

from unstuck.events import RunStatus
from unstuck.findings.curve import curves_of
from unstuck.findings.result import Result, RunSummary
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.logged import Log, LogError, Points
from unstuck.logged.events import record_of
from unstuck.logged.roles import Roles, points_of, roles_of
from unstuck.record import Record
from unstuck.record.trend import spikes_in
from unstuck.report.outcomes import number, percent
from unstuck.report.text import count
from unstuck.rule import all_rules

MOST_NAMED = 6
WORSE = 1.05
"""An evaluation that ends above this multiple of its best value has become worse."""
UNSEEN = (
    "the code, the data, single layers, the size of updates and activations: a log does not hold them. "
    "To see them: unstuck run SCRIPT"
)


def result_of(log: Log) -> tuple[Result, Record]:
    """The answer, and the record that it rests on. Raises LogError where nothing in it is understood."""
    roles = roles_of(log)
    if not roles.used:
        some = ", ".join(sorted(log.series)[:MOST_NAMED]) or "none"
        raise LogError(
            f"{log.path} holds no loss, learning rate, gradient norm or loss scale by a name that is known; "
            f"its series are: {some}."
        )
    record = record_of(log, roles)
    verdict = judge(record=record, rules=[rule for rule in all_rules() if rule.logged])
    last = max(points[-1][0] for points in log.series.values())
    outcomes = tuple(msgspec.structs.replace(outcome, steps=last) for outcome in verdict.outcomes)
    verdict = msgspec.structs.replace(verdict, outcomes=outcomes, gaps=(*_gaps(log, roles), UNSEEN))
    values = max(len(points) for points in log.series.values())
    series = f"{len(log.series):,} series" if len(log.series) != 1 else "1 series"
    run = RunSummary(
        script=str(log.path),
        status=RunStatus.LOGGED,
        reason=f"{series} of up to {count(values, 'value')}",
        steps=last,
        seconds=log.seconds,
        received=tuple(facts(log, roles, verdict)),
        curves={name: curve for name, curve in curves_of(record).items() if curve.losses},
    )
    return Result(command="report", verdict=verdict, run=run), record


def facts(log: Log, roles: Roles, verdict: Verdict) -> Iterator[str]:
    """A sentence for each series that is understood."""
    for name, describe in (
        (roles.loss, _loss),
        (roles.evaluation, _evaluation),
        (roles.accuracy, _accuracy),
        *((rate, _rate) for rate in roles.rates[:MOST_NAMED]),
        (roles.gradient, _gradient),
        (roles.scale, _scale),
    ):
        points = [(step, value) for step, value in points_of(log, name) if math.isfinite(value)]
        if points:
            yield f"{name}: {describe(points)}."


def _loss(points: Points) -> str:
    values = [value for _, value in points]
    jumps = spikes_in(values)
    text = f"{number(values[0])} → {number(values[-1])}, lowest {number(min(values))} at step {_at(points, min):,}"
    if not jumps:
        return text
    steps = ", ".join(f"{points[index][0]:,}" for index in jumps[:MOST_NAMED])
    more = f" and {len(jumps) - MOST_NAMED} more" if len(jumps) > MOST_NAMED else ""
    return f"{text}; it jumps at step {steps}{more}"


def _evaluation(points: Points) -> str:
    best, last = min(value for _, value in points), points[-1][1]
    at = _at(points, min)
    text = f"lowest {number(best)} at step {at:,}, {number(last)} at the end"
    return f"{text}: it has become worse since" if last > WORSE * best > 0 else text


def _accuracy(points: Points) -> str:
    unit = 100.0 if any(value > 1 for _, value in points) else 1.0
    best, last = max(value for _, value in points), points[-1][1]
    return f"highest {percent(best / unit)} at step {_at(points, max):,}, {percent(last / unit)} at the end"


def _rate(points: Points) -> str:
    values = [value for _, value in points]
    if min(values) == max(values):
        return f"{number(values[0])} all along"
    peak = f"highest {number(max(values))} at step {_at(points, max):,}"
    return f"{number(values[0])} → {number(values[-1])}, {peak}"


def _gradient(points: Points) -> str:
    values = sorted(value for _, value in points)
    usual = values[len(values) // 2]
    return f"usually {number(usual)}, largest {number(values[-1])} at step {_at(points, max):,}"


def _scale(points: Points) -> str:
    falls = [step for (_, before), (step, after) in itertools.pairwise(points) if after < before]
    text = f"{number(points[0][1])} → {number(points[-1][1])}"
    times = "once" if len(falls) == 1 else f"{len(falls):,} times"
    return f"{text}, lowered {times}, last at step {falls[-1]:,}" if falls else f"{text}, never lowered"


def _at(points: Points, which: object) -> int:
    chosen = (min if which is min else max)(points, key=lambda point: point[1])
    return chosen[0]


def _gaps(log: Log, roles: Roles) -> Iterator[str]:
    missing = [
        word
        for word, name in (
            ("the loss", roles.loss),
            ("the learning rate", "".join(roles.rates)),
            ("the gradient norm", roles.gradient),
            ("the evaluation", roles.evaluation or roles.accuracy),
        )
        if not name
    ]
    if missing:
        yield f"{', '.join(missing)}: not logged, or by a name that is not known"
    steps = [step for step, _ in points_of(log, roles.loss)]
    apart = sorted(after - before for before, after in itertools.pairwise(steps))
    if apart and apart[len(apart) // 2] > 1:
        yield (
            f"what the loss does between its values, which are usually {apart[len(apart) // 2]:,} steps apart, and "
            "whether each is of one step or a mean over several"
        )
    unused = sorted(set(log.series) - roles.used - {"epoch"})
    if unused:
        more = f" and {len(unused) - MOST_NAMED} more" if len(unused) > MOST_NAMED else ""
        yield f"other series: {', '.join(unused[:MOST_NAMED])}{more}"
