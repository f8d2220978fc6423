"""G04: every step is clipped to a threshold far below the usual norm, and the loss hardly moves."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Clip, OptimizerStep, Place
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import dynamics
from unstuck.source.reader.knowledge import LARGEST_LIMIT

rule = Rule(
    code="G04",
    name="clip-always-on",
    title="every step is clipped to a threshold far below the usual gradient norm",
    severity=Severity.WARNING,
    explains=("G09", "O07", "O22", "R08"),
    needs=(OptimizerStep, Clip),
    needs_one_optimizer=True,
)

FEWEST = 20
ALWAYS = 0.95
FAR = 10.0
"""The typical norm, as a multiple of the threshold."""
VERY_FAR = 100.0
SLOW_STEPS = 200
SLOW_FALL = 0.4
"""A loss that falls by at most this share in this many steps, and is still falling, is slow."""
SLOW_PACE = 0.3
"""Share of the usual change of a weight."""
CAUSE = (
    "Clipping is meant for the rare spike. When every gradient is cut to the same small norm, each step has "
    "length lr * max_norm regardless of the slope, which is too short to make progress."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The lines that clip every step, each with a threshold suggested by the norms of this run."""
    for place in judged(record):
        clips = clips_by_place(record)[place]
        cut = sum(norm > bound for norm, bound in clips)
        yield _finding(record, place, [norm for norm, _ in clips], clips[-1][1], cut)


@dynamics.remembered
def judged(record: Record) -> list[Place | None]:
    """The lines that cut every step. Optimizers that divide by the size of past gradients are unaffected."""
    optimizer = dynamics.sole_optimizer(record)
    if optimizer is None or dynamics.is_adaptive(optimizer):
        return []
    stuck = dynamics.is_stuck(record)
    if not stuck and not _is_slow(record):
        return []
    far = FAR if stuck else VERY_FAR
    found = []
    for place, clips in clips_by_place(record).items():
        cut = sum(norm > bound for norm, bound in clips)
        usual = dynamics.median([norm for norm, _ in clips]) or 0.0
        if len(clips) >= FEWEST and cut >= ALWAYS * len(clips) and usual >= far * clips[-1][1]:
            found.append(place)
    return found


def _is_slow(record: Record) -> bool:
    """Does the loss fall steadily but slowly, with updates far below the usual size?"""
    values = [value for _, value in dynamics.losses(record)]
    trend, pace = dynamics.trend(record), dynamics.median([ratio for _, ratio in dynamics.pace(record)])
    if trend.word != Direction.FALLING or trend.steps < SLOW_STEPS or trend.first is None or trend.last is None:
        return False
    if pace is None or pace > SLOW_PACE * dynamics.USUAL:
        return False
    middle = dynamics.median(values[int(0.45 * len(values)) : int(0.55 * len(values))]) or 0.0
    fall = trend.first - trend.last
    return 0 < fall <= SLOW_FALL * trend.first and middle - trend.last >= 0.3 * fall


def _finding(record: Record, place: Place | None, norms: list[float], limit: float, cut: int) -> Finding:
    trend = dynamics.trend(record)
    usual, high = dynamics.median(norms) or 0.0, dynamics.quantile(norms, 0.9) or 0.0
    words = {"crawling": "crawls", "flat": "is flat"}
    moves = words.get(trend.word, f"fell only from {trend.first:.3g} to {trend.last:.3g} in {trend.steps} steps")
    return rule.finding(
        f"{cut} of {len(norms)} steps were clipped to {limit:.3g}, but the typical norm is {usual:.3g}, "
        f"{usual / limit:,.0f} times that, and the loss {moves}.",
        cause=CAUSE,
        fix=f"Set max_norm to about {dynamics.rounded(high)}: 90 % of the norms in this run are below {high:.3g}, "
        "so only spikes would be cut.",
        subject=Subject.at("call", "gradient clipping", place),
        place=place,
        evidence=[
            Evidence("max_norm", limit),
            Evidence("norm before clipping, median", usual),
            Evidence("norm before clipping, 90 % below", high),
            Evidence("steps clipped", f"{cut} of {len(norms)}"),
        ],
    )


@dynamics.remembered
def clips_by_place(record: Record) -> dict[Place | None, list[tuple[float, float]]]:
    """Norm and threshold of every call that did more than measure, by line."""
    found: dict[Place | None, list[tuple[float, float]]] = {}
    for clip in record.of(Clip):
        if clip.kind == "norm" and clip.norm is not None and clip.limit is not None and 0 < clip.limit < LARGEST_LIMIT:
            found.setdefault(clip.place, []).append((clip.norm, clip.limit))
    return found


rule.remedied_by(with_change("NoClipping"))
