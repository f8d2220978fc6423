"""P15: an update makes actions less likely the better they were, or trains another action than the one taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import EpisodesEnded, PolicyPulled, Weighting
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Away(Variant):
    """What is wrong with the update."""

    AGAINST_RETURNS = "against-returns", "the more an action earned, the less likely it becomes"
    AGAINST_VALUES = "against-values", "actions become less likely where their value is raised"
    OTHER_ACTION = "other-action", "the log-probability belongs to another action than the environment was given"
    ENTROPY_PENALIZED = "entropy-penalized", "the loss rises with the entropy of the policy"


rule = Rule(
    code="P15",
    name="policy-runs-away",
    title="a policy update that makes good actions less likely, or trains other actions than those taken",
    severity=Severity.ERROR,
    explains=("O07", "M14"),
    needs=(PolicyPulled,),
    variants=Away.titles(),
)

FEWEST = 5
"""Updates that show the same."""
MOSTLY = 0.8
OPPOSITE = -0.5
"""A correlation below this, in most updates, is not noise: unrelated numbers scatter around 0."""
FEWEST_SINGLE = 30
"""Updates of one action each."""
FEWEST_MOVES = 50
OTHERS = 0.1
"""The share of moves that another action was trained for. A right program has none."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """By what the environment returned where that is known, else by the values that are learned along."""
    updates = record.of(PolicyPulled)
    lines: dict[object, list[PolicyPulled]] = {}
    for update in updates:
        lines.setdefault(update.place and update.place.key, []).append(update)
    plays = any(True for _ in record.of(EpisodesEnded))
    for events in lines.values():
        found = _against_returns(events) or _other_action(events) or _against_values(events, plays)
        if found is not None:
            yield found
        # Without rewards and without weights of both signs it may be a supervised loss.
        elif plays or 2 * sum(event.mixed for event in events) > len(events):
            yield from _entropy_penalized(events)


def _against_returns(events: Sequence[PolicyPulled]) -> Finding | None:
    fitted = [event for event in events if event.weighting is not None]
    turned = [event for event in fitted if event.weighting is Weighting.TO_GO and event.reverse]
    if len(turned) < FEWEST or len(turned) < MOSTLY * len(fitted):
        return None
    return rule.finding(
        f"In {len(turned)} of {len(fitted)} updates the weights of actions are their returns with the opposite sign: "
        "the more an action earned, the less likely it becomes.",
        cause="An optimizer minimizes. Minimizing `log_prob * return` lowers the probability of the actions with the "
        "highest returns, so the agent learns to earn as little as it can.",
        fix="Put a minus before the product: `loss = -(log_prob * returns).sum()`. If there is one, check the sign of "
        "the returns or advantages, and that their order is that of the actions.",
        subject=Subject("loss", "policy"),
        place=turned[-1].place,
        evidence=[
            Evidence("updates with the opposite sign", len(turned)),
            Evidence("updates whose weights are known from the rewards", len(fitted)),
            Evidence("discount that fits", turned[-1].discount or 0.0),
        ],
        variant=Away.AGAINST_RETURNS,
    )


def _against_values(events: Sequence[PolicyPulled], plays: bool) -> Finding | None:
    known = [event.agreement for event in events if event.agreement is not None]
    mixed = plays or 2 * sum(event.mixed for event in events) > len(events)
    single = [pair for event in events for pair in zip(event.pulls, event.surprises, strict=False)]
    if len(known) >= FEWEST and mixed:
        middle = sorted(known)[len(known) // 2]
        opposite = sum(value < 0 for value in known)
        if middle > OPPOSITE or opposite < MOSTLY * len(known):
            return None
        counted, number = f"in {opposite} of {len(known)} updates", middle
    elif len(single) >= FEWEST_SINGLE:
        correlation = _correlation(single)
        both = {pull > 0 for pull, _ in single} == {True, False}
        if correlation is None or correlation > OPPOSITE or not (both or plays):
            return None
        counted, number = f"in {len(single)} updates of one action each", correlation
    else:
        return None
    return rule.finding(
        f"Actions become less likely where the critic's value is raised, {counted} (correlation {number:.2f}).",
        cause="A value is raised where more was earned than expected. The policy must make these actions more likely; "
        "here it makes them less likely, so the agent learns to avoid what works.",
        fix="Use `advantage = returns - values.detach()` (not the other way round) and `loss = -(log_prob * "
        "advantage).mean()`: one minus in all.",
        subject=Subject("loss", "policy"),
        place=events[-1].place,
        evidence=[Evidence("correlation of both pulls", number), Evidence("updates", len(known) or len(single))],
        variant=Away.AGAINST_VALUES,
    )


def _other_action(events: Sequence[PolicyPulled]) -> Finding | None:
    compared = [event for event in events if event.played]
    played, other = sum(event.played for event in compared), sum(event.other for event in compared)
    if played < FEWEST_MOVES or len(compared) < FEWEST or other < OTHERS * played:
        return None
    return rule.finding(
        f"At least {other:,} of {played:,} moves were made with another action than the one whose log-probability is "
        "trained.",
        cause="The reward belongs to the action that the environment was given. Trained on another one, drawn "
        "separately, the policy gets rewards that its actions did not cause.",
        fix="Draw once and use it twice: `action = dist.sample()`, `env.step(action.item())`, `dist.log_prob(action)`.",
        subject=Subject("loss", "policy"),
        place=compared[-1].place,
        evidence=[Evidence("moves", played), Evidence("with another action, at least", other)],
        variant=Away.OTHER_ACTION,
    )


def _entropy_penalized(events: Sequence[PolicyPulled]) -> Iterator[Finding]:
    weights = [event.entropy for event in events if event.entropy is not None]
    if len(weights) < FEWEST or min(weights) <= 0:
        return
    middle = sorted(weights)[len(weights) // 2]
    yield rule.finding(
        f"The loss rises with the entropy of the policy in all {len(weights)} updates that were looked at (by "
        f"{middle:.3g} for each unit), so the policy is pushed to be certain.",
        cause="An entropy bonus keeps a policy exploring. Added to the loss instead of subtracted, it makes the policy "
        "choose one action before it knows which is good.",
        fix="Subtract it: `loss = policy_loss - 0.01 * entropy`.",
        subject=Subject("loss", "entropy"),
        place=events[-1].place,
        evidence=[Evidence("rise of the loss for one unit of entropy", middle), Evidence("updates", len(weights))],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Away.ENTROPY_PENALIZED,
    )


def _correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Of two columns of numbers; None if one of them is constant."""
    count = len(pairs)
    one, other = sum(a for a, _ in pairs) / count, sum(b for _, b in pairs) / count
    product = math.fsum((a - one) * (b - other) for a, b in pairs)
    size = math.sqrt(math.fsum((a - one) ** 2 for a, _ in pairs) * math.fsum((b - other) ** 2 for _, b in pairs))
    return product / size if size > 0 else None
