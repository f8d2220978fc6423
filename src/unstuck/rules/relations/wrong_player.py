"""P14: two networks that train against each other, and a loss that pushes the wrong way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import Gauges, OptimizerSeen, OutputPulled
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Side(Variant):
    """What is wrong between the players."""

    SAME_SIDE = "same-side", "both players push the answers for generated examples the same way"
    NO_GRADIENT = "no-gradient", "the critic is never wrong, and the generator gets no gradient"
    SAME_LABELS = "same-labels", "the critic is pushed the same way for real and for generated examples"


rule = Rule(
    code="P14",
    name="wrong-player",
    title="two players of a game whose losses push the same way, or a critic that treats real and fake alike",
    severity=Severity.ERROR,
    needs=(OutputPulled,),
    variants=Side.titles(),
)

FEWEST = 10
FEWEST_GAUGES = 60
WON = 0.01
"""Of its first loss: a critic at this is right every time."""
GONE = 0.05
"""Of the first gradients."""
MOSTLY = 0.9
"""Of the steps that were looked at: a least-squares critic pushes an answer back when it has gone too far."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The critic's loss and the generator's, at the critic's answers."""
    trained = {event.optimizer: event.models for event in record.of(OptimizerSeen)}
    events = list(record.of(OutputPulled))
    for critic, generator in dict.fromkeys((event.model, event.source) for event in events if event.source):
        own = {label for label, models in trained.items() if critic in models and generator not in models}
        others = {label for label, models in trained.items() if generator in models and critic not in models}
        of_critic = [event for event in events if event.model == critic and event.optimizer in own]
        real = [event for event in of_critic if not event.source and not event.live]
        fake = [event for event in of_critic if event.source == generator]
        fooling = [
            event
            for event in events
            if event.model == critic and event.source == generator and event.live and event.optimizer in others
        ]
        labels, answers, wishes = _side(real), _side(fake), _side(fooling)
        if labels is not None and labels == answers:
            yield _same_labels(critic, fake, labels)
        elif labels is not None and answers is not None and answers == wishes:
            yield _same_side(critic, generator, fooling, answers)
        elif fooling:
            yield from _no_gradient(record, own, others, generator, fooling[-1])


def _no_gradient(
    record: Record, own: set[str], others: set[str], generator: str, last: OutputPulled
) -> Iterator[Finding]:
    losses = [gauge.loss for gauge in record.of(Gauges) if gauge.optimizer in own and gauge.loss is not None]
    norms = [
        gauge.grad_norm for gauge in record.of(Gauges) if gauge.optimizer in others and gauge.grad_norm is not None
    ]
    if min(len(losses), len(norms)) < FEWEST_GAUGES or min(losses) < 0:
        return
    third = len(norms) // 3
    early, late = _median(norms[:FEWEST]), _median(norms[-third:])
    first, end = _median(losses[:3]), max(losses[-len(losses) // 3 :])
    if not (0 < end < WON * first and late < GONE * early):
        return
    yield rule.finding(
        f"The critic is never wrong any more (its loss went from {first:.3g} to {end:.2g}), and the generator's "
        f"gradient fell from {early:.2g} to {late:.2g}: it has stopped learning.",
        cause="A generator that minimizes `log(1 - D(fake))` gets almost no gradient where the critic is sure, and a "
        "critic that learns faster soon is.",
        fix="Maximize `log D(fake)` instead: `loss_g = bce(critic(fake), ones)`. Then slow the critic down, or use a "
        "hinge or Wasserstein loss.",
        subject=Subject("module", generator),
        place=last.place,
        evidence=[
            Evidence("norm of the generator's gradient, first", early),
            Evidence("norm of the generator's gradient, last", late),
            Evidence("loss of the critic, first", first),
            Evidence("loss of the critic, last", end),
        ],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Side.NO_GRADIENT,
    )


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _side(events: Sequence[OutputPulled]) -> bool | None:
    """Are answers asked to rise? None if that changes, or is not known."""
    known = [event.direction for event in events if event.direction is not None]
    if len(known) < FEWEST:
        return None
    rising = sum(direction < 0 for direction in known)
    if rising >= MOSTLY * len(known):
        return True
    return False if rising <= (1 - MOSTLY) * len(known) else None


def _way(up: bool) -> str:
    return "up" if up else "down"


def _same_labels(critic: str, fake: Sequence[OutputPulled], up: bool) -> Finding:
    return rule.finding(
        f"The critic's loss pushes its answers {_way(up)} for real and for generated examples alike.",
        cause=f"{critic} is asked for the same answer whatever it is shown, so it learns a constant, and the "
        "generator gets no gradient that says what real examples look like.",
        fix="Give the two opposite targets: ones for real examples and zeros for generated ones; in a Wasserstein "
        "loss, opposite signs.",
        subject=Subject("module", critic),
        place=fake[-1].place,
        evidence=[Evidence("steps of the critic that were looked at", len(fake))],
        variant=Side.SAME_LABELS,
    )


def _same_side(critic: str, generator: str, fooling: Sequence[OutputPulled], up: bool) -> Finding:
    return rule.finding(
        f"The generator's loss pushes the critic's answers for generated examples {_way(up)}, and so does the "
        "critic's own loss.",
        cause=f"{generator} is trained to look generated instead of real: the two players pull in one direction, both "
        "losses fall, and the examples get no better.",
        fix="Train the generator with the target that the critic has for real examples (ones, if real examples are "
        "ones); in a Wasserstein loss, `loss_g = -critic(fake).mean()`.",
        subject=Subject("module", generator),
        place=fooling[-1].place,
        evidence=[Evidence("steps of the generator that were looked at", len(fooling))],
        variant=Side.SAME_SIDE,
    )
