"""S04: descent ends outside the desired region, in a minimum that is not the lowest, or in different places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.findings.landmarks import End, PointKind
from unstuck.rule import Rule
from unstuck.rules.surface._words import percent, plane, point, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Arrivals, Destination, Surface

rule = Rule(
    code="S04",
    name="wrong-way",
    title="descent ends outside the desired region, in a local minimum, or in different places",
    severity=Severity.ERROR,
)

CAUSE = "The optimizer follows this loss, and the loss does not lead where you want."
CAUSE_OF_FADING = (
    "The inputs that are most wrong get the least gradient, and it leads away from the desired region. A weight that "
    "should single them out may be reversed, such as p ** gamma for (1 - p) ** gamma."
)
CAUSE_OF_SPLIT = (
    "If one of these is the right answer, every input on the other side is driven away from it, to where the gradient "
    "fades."
)
CAUSE_OF_TRAP = "The start decides in which minimum a run ends."
FIX = "Check the signs in the formula and where it is lowest; {command} shows where the gradient points."
FIX_OF_SPLIT = (
    "Say which is right with {command}. Then check the sign of each term and the direction of each weight: one that "
    "falls as an example gets harder, such as p ** gamma for (1 - p) ** gamma, splits a loss like this. If both are "
    "right, nothing needs to change."
)
FIX_OF_TRAP = "Remove the second minimum (a convex term, an annealed weight), or start on the right side of it."
ARRIVED = 0.9
"""Enough of the starts end where they should."""
MOST = 0.5
TRAPPED = 0.1
FADED = 0.1
"""The gradient of what is most wrong, as a share of the largest, from which on it is called the least."""


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """Too few starts end in the desired region; without one, too many in a local minimum or at another place."""
    arrivals = surface.arrivals
    if arrivals is None:
        return
    if surface.desired is not None:
        settled = 1.0 - arrivals.ended.get(End.MOVING, 0.0)
        share = arrivals.ended.get(End.DESIRED, 0.0)
        if settled and share / settled < ARRIVED:
            yield _astray(surface, arrivals, share)
    elif arrivals.ended.get(End.LOCAL_MINIMUM, 0.0) >= TRAPPED:
        yield _trapped(surface, arrivals.ended[End.LOCAL_MINIMUM])
    else:
        places = [place for place in arrivals.destinations if place.share >= TRAPPED and not place.is_mirror]
        if len(places) > 1:
            yield _split(surface, arrivals, places)


def _astray(surface: Surface, arrivals: Arrivals, share: float) -> Finding:
    elsewhere = {word: part for word, part in arrivals.ended.items() if word != End.DESIRED}
    worst = max(elsewhere, key=lambda word: elsewhere[word])
    gradients = surface.gradient_farthest
    faded = gradients is not None and gradients[0] < FADED * gradients[1]
    return rule.finding(
        f"Descent on {surface.name} ends in the desired region from only {percent(share)} of {arrivals.starts} "
        f"starts; {percent(elsewhere[worst])} end {_where(surface, worst)}.",
        cause=CAUSE_OF_FADING if faded else CAUSE,
        fix=FIX.format(command="`unstuck surface --out surface.html`"),
        subject=subject_of(surface),
        place=surface.place,
        evidence=[
            *(Evidence(f"starts that end {_where(surface, word)}", percent(part)) for word, part in elsewhere.items()),
            *(_gradients("gradient farthest from the desired region", *gradients) if gradients and faded else ()),
        ],
        severity=Severity.ERROR if share < MOST else Severity.WARNING,
    )


def _where(surface: Surface, end: End) -> str:
    places = {
        End.MINIMUM: "in a minimum elsewhere",
        End.LOCAL_MINIMUM: "in a local minimum elsewhere",
        End.LOWEST_EDGE: f"at another edge of the {plane(surface)}",
        End.EDGE: f"at another edge of the {plane(surface)}",
        End.STUCK: "without gradient",
        End.BOTTOMLESS: "falling without bound",
        End.NON_FINITE: "where the loss is not finite",
        End.MOVING: "still moving",
    }
    return places[end]


def _gradients(name: str, there: float, largest: float) -> tuple[Evidence, Evidence]:
    return Evidence(name, float(f"{there:.3g}")), Evidence("largest gradient", float(f"{largest:.3g}"))


def _split(surface: Surface, arrivals: Arrivals, places: Sequence[Destination]) -> Finding:
    ends = [f"{percent(place.share)} end at {point(surface, place.at)} (loss {place.value:.4g})" for place in places]
    axis = surface.axes[0].name
    return rule.finding(
        f"Descent on {surface.name} splits: of {arrivals.starts} starts {', '.join(ends[:-1])} and {ends[-1]}, with "
        "higher ground between them.",
        cause=CAUSE_OF_SPLIT,
        fix=FIX_OF_SPLIT.format(command=f"`--desired {axis}=LOW:HIGH`"),
        subject=subject_of(surface),
        place=surface.place,
        evidence=[
            Evidence(f"gradient at {point(surface, place.at)}", float(f"{place.gradient:.3g}")) for place in places
        ],
        severity=Severity.WARNING,
    )


def _trapped(surface: Surface, share: float) -> Finding:
    minima = [each for each in surface.stationary if each.kind == PointKind.MINIMUM]
    lowest, trap = min(minima, key=lambda each: each.value), max(minima, key=lambda each: each.value)
    return rule.finding(
        f"From {percent(share)} of the starts, descent on {surface.name} ends in a local minimum "
        f"({trap.value:.4g} at {point(surface, trap.at)}) instead of the lowest value "
        f"({min(lowest.value, surface.lowest):.4g}).",
        cause=CAUSE_OF_TRAP,
        fix=FIX_OF_TRAP,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[Evidence("starts that end in a local minimum", round(100 * share, 1), "%", 100 * TRAPPED)],
        severity=Severity.WARNING,
    )
