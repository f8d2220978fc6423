"""P16: targets or returns that do not follow the episode they are about."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Bootstrapped, EpisodesEnded, PolicyPulled, Weighting
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Strays(Variant):
    """How targets leave the episode."""

    PAST_THE_END = "past-the-end", "targets of the last move of an episode count the value of a next state"
    ONLY_AT_THE_END = "only-at-the-end", "targets count the next state only where the episode has ended"
    AGAINST_TIME = "against-time", "actions are weighted by what was earned before them"
    NOT_RESET = "not-reset", "returns run on from one episode into the next"
    GROWING = "growing", "the value of the next state is multiplied by more than 1"
    SAME_STATE = "same-state", "targets are computed from the state itself instead of the next one"
    SAME_ARRAY = "same-array", "the environment hands out one array that it changes in place, and batches hold copies"
    OTHER_ACTION = "other-action", "the value of another action is trained than the one taken"
    BEST_ACTION = "best-action", "the highest value is trained, whichever action was taken"


rule = Rule(
    code="P16",
    name="beyond-the-end",
    title="targets or returns that do not follow the episode: past its end, against time, of another state or action",
    severity=Severity.ERROR,
    explains=("O07", "M14"),
    needs=(EpisodesEnded,),
    variants=Strays.titles(),
)

FEWEST = 5
MOSTLY = 0.8
FEWEST_ENDED = 3
FEWEST_ROWS = 100
SOME = 0.05
"""A factor below this is none; a share of actions below it is a coincidence."""
GROWS = 1.001


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Targets are recomputed from what the environment returned."""
    last = next(reversed(list(record.of(Bootstrapped))), None)
    if last is not None:
        yield from _of_targets(last)
    lines: dict[object, list[PolicyPulled]] = {}
    for update in record.of(PolicyPulled):
        lines.setdefault(update.place and update.place.key, []).append(update)
    for events in lines.values():
        yield from _of_returns(events)


def _of_targets(event: Bootstrapped) -> Iterator[Finding]:
    going, ended = event.discount, event.discount_at_end
    if event.reused >= FEWEST_ROWS and event.unmoved >= FEWEST_ROWS and not event.rows:
        yield _same_array(event)
        return
    if not event.rows and event.unmoved >= FEWEST_ROWS:
        yield _same_state(event)
        return
    if going is not None and ended is not None and event.ended >= FEWEST_ENDED:
        if going > SOME and abs(ended - going) < 0.1 * going:
            yield _past_the_end(event, going)
        elif abs(going) < 1e-3 and ended > SOME:
            yield _only_at_the_end(event, ended)
    if going is not None and going > GROWS:
        yield _growing(event, going)
    if event.actions >= FEWEST_ROWS and event.other_actions > SOME * event.actions:
        yield _other_action(event)
    elif event.best >= FEWEST_ROWS and not event.actions:
        yield _best_action(event)


def _of_returns(events: list[PolicyPulled]) -> Iterator[Finding]:
    known = [event for event in events if event.weighting is not None and not event.reverse]
    against = [event for event in known if event.weighting in (Weighting.PAST, Weighting.REVERSED)]
    beyond = [event for event in known if event.weighting is Weighting.BEYOND]
    if len(against) >= FEWEST and len(against) >= MOSTLY * len(known):
        yield _against_time(against, len(known))
    elif len(beyond) >= FEWEST and 2 * len(beyond) > len(known):
        yield _not_reset(beyond, len(known))


def _past_the_end(event: Bootstrapped, going: float) -> Finding:
    sure = event.tells_limits
    return rule.finding(
        f"Targets look past the end of episodes: for {event.ended:,} last moves they are the reward plus {going:.3g} "
        "times the value of the state after it, as for all other moves.",
        cause="After the last move nothing more is earned. A target that counts the value of a next state there gives "
        "the end of an episode the value of going on, so losing looks as good as playing."
        + (
            ""
            if sure
            else " The environment has one flag for every end: if all of these are limits of time, it is right."
        ),
        fix="Multiply the next value by `(1 - done)`: `target = reward + gamma * next_value * (1 - done)`. "
        "Use the flag that says the episode is over, not one that only says time is up.",
        subject=Subject("loss", "targets"),
        place=event.place,
        evidence=[
            Evidence("targets of last moves", event.ended),
            Evidence("factor of the next value there", event.discount_at_end or 0.0),
            Evidence("factor of the next value elsewhere", going),
        ],
        severity=Severity.ERROR if sure else Severity.WARNING,
        confidence=Confidence.CERTAIN if sure else Confidence.LIKELY,
        variant=Strays.PAST_THE_END,
    )


def _only_at_the_end(event: Bootstrapped, ended: float) -> Finding:
    return rule.finding(
        f"Targets count the value of the next state only where the episode has ended (times {ended:.3g}); everywhere "
        "else they are the reward alone.",
        cause="The mask is the wrong way round: nothing that happens later reaches the moves that led there.",
        fix="Multiply by `(1 - done)`, not by `done`.",
        subject=Subject("loss", "targets"),
        place=event.place,
        evidence=[
            Evidence("targets of last moves", event.ended),
            Evidence("factor of the next value there", ended),
            Evidence("factor of the next value elsewhere", event.discount or 0.0),
        ],
        variant=Strays.ONLY_AT_THE_END,
    )


def _growing(event: Bootstrapped, going: float) -> Finding:
    return rule.finding(
        f"Targets multiply the value of the next state by {going:.4g}, which is more than 1.",
        cause="Each step then makes what lies ahead worth more than it is, and values grow without a limit.",
        fix="Use a discount below 1, such as 0.99.",
        subject=Subject("loss", "discount"),
        place=event.place,
        evidence=[Evidence("factor of the next value", going), Evidence("targets", event.rows)],
        variant=Strays.GROWING,
    )


def _same_array(event: Bootstrapped) -> Finding:
    return rule.finding(
        f"The environment hands out one array and changes it in place: in all {event.unmoved:,} transitions that were "
        "looked at, the next state equals the state.",
        cause=f"{event.reused:,} times `step()` returned the array that the program still held from the move before. "
        "What is stored is a reference to that array and not a state, so all states of an episode show its latest one.",
        fix="Return a copy from the environment (`return self.state.copy()`, `.clone()` for tensors), or copy the "
        "state when it is stored.",
        subject=Subject("data", "states"),
        place=event.place,
        evidence=[
            Evidence("arrays returned again, with other numbers", event.reused),
            Evidence("transitions whose next state is the state", event.unmoved),
        ],
        variant=Strays.SAME_ARRAY,
    )


def _same_state(event: Bootstrapped) -> Finding:
    return rule.finding(
        f"Targets are computed from the very states that they are for: all {event.unmoved:,} that were looked at have "
        "a next state equal to the state.",
        cause="The value of a state is then learned from itself, and what the action led to is never seen. Often the "
        "variable is overwritten before it is stored, or one array is stored twice.",
        fix="Store the state before the move and the one after it: keep `s` until `buffer.append((s, a, r, s_next, "
        "done))` has run, and copy arrays that the environment changes in place.",
        subject=Subject("loss", "targets"),
        place=event.place,
        evidence=[Evidence("targets looked at", event.unmoved)],
        variant=Strays.SAME_STATE,
    )


def _other_action(event: Bootstrapped) -> Finding:
    return rule.finding(
        f"At least {event.other_actions:,} of {event.actions:,} targets train the value of another action than the one "
        "that was taken.",
        cause="The reward and the next state follow from the action that was taken. Its value has to be compared with "
        "them, not that of the action the network prefers now.",
        fix="Gather with the stored actions: `q(states).gather(1, actions)`.",
        subject=Subject("loss", "values"),
        place=event.place,
        evidence=[Evidence("targets", event.actions), Evidence("of another action, at least", event.other_actions)],
        variant=Strays.OTHER_ACTION,
    )


def _best_action(event: Bootstrapped) -> Finding:
    return rule.finding(
        f"All {event.best:,} targets that were looked at are compared with the highest value of their state, whichever "
        "action was taken.",
        cause="The reward and the next state follow from the action that was taken; the value of another one is moved "
        "towards them instead.",
        fix="Use the value of the stored action: `q(states).gather(1, actions)`. The maximum belongs into the target.",
        subject=Subject("loss", "values"),
        place=event.place,
        evidence=[Evidence("targets", event.best)],
        variant=Strays.BEST_ACTION,
    )


def _against_time(against: list[PolicyPulled], known: int) -> Finding:
    return rule.finding(
        f"In {len(against)} of {known} updates, actions are weighted by what was earned before them instead of after.",
        cause="An action can only change what comes later. The last actions of an episode get the largest weights "
        "here, though often they are the ones that ended it.",
        fix="Sum from the end: `for r in reversed(rewards): g = r + gamma * g; returns.insert(0, g)`.",
        subject=Subject("loss", "returns"),
        place=against[-1].place,
        evidence=[
            Evidence("updates", len(against)),
            Evidence("updates whose returns are known from the rewards", known),
            Evidence("discount that fits", against[-1].discount or 0.0),
        ],
        variant=Strays.AGAINST_TIME,
    )


def _not_reset(beyond: list[PolicyPulled], known: int) -> Finding:
    return rule.finding(
        f"In {len(beyond)} of {known} updates, returns run on from one episode into the next.",
        cause="What the next episode earns has nothing to do with the actions of this one, so their weights are mostly "
        "noise.",
        fix="Start again at the end of an episode: `g = r + gamma * g * (1 - done)`.",
        subject=Subject("loss", "returns"),
        place=beyond[-1].place,
        evidence=[
            Evidence("updates", len(beyond)),
            Evidence("updates whose returns are known from the rewards", known),
        ],
        variant=Strays.NOT_RESET,
    )
