"""P18: a variational autoencoder whose code is not used, says nothing, or is drawn with the wrong spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import CodeSeen, Spread
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Code(Variant):
    """What is wrong with the code."""

    NOT_USED = "not-used", "nothing but the divergence uses the mean of the code"
    COLLAPSED = "collapsed", "the code is the same for every example, so the decoder cannot learn from it"
    REWARDED = "rewarded", "the loss falls when the code moves away from the standard Gaussian"
    WRONG_SPREAD = "wrong-spread", "the noise is not multiplied by the standard deviation"


rule = Rule(
    code="P18",
    name="unused-code",
    title="a code that the decoder does not get, that says nothing, or that is drawn or penalized the wrong way",
    severity=Severity.ERROR,
    explains=("O07", "O28", "P21", "R03"),
    needs=(CodeSeen,),
    variants=Code.titles(),
)

FEWEST = 3
NOTHING = 0.02
"""Nats of a whole code: with fewer, it does not distinguish two examples."""
LONG = 60
"""Steps after which a code says something if it ever will, unless its weight is raised later."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The graph of the loss says how the code is used, and its numbers what it says."""
    lines: dict[object, list[CodeSeen]] = {}
    for event in record.of(CodeSeen):
        lines.setdefault(event.place and event.place.key, []).append(event)
    for events in lines.values():
        if len(events) >= FEWEST:
            yield from _of(events, record.ended.steps if record.ended is not None else None)


def _of(events: Sequence[CodeSeen], steps: int | None) -> Iterator[Finding]:
    last = events[-1]
    if not any(event.used for event in events):
        yield rule.finding(
            "The mean of the code is used in the divergence and nowhere else: the decoder does not get it.",
            cause="What the decoder is given does not depend on the input, so it can only learn the average example, "
            "and the encoder only to make the divergence small.",
            fix="Decode what was drawn from the code: `z = mu + eps * std`, `decode(z)`.",
            subject=Subject("loss", "code"),
            place=last.place,
            evidence=[Evidence("numbers in a code", last.size), Evidence("divergence in nats", last.nats or 0.0)],
            variant=Code.NOT_USED,
        )
        return
    if all(event.rewarded for event in events):
        yield rule.finding(
            "The loss falls when the code moves away from the standard Gaussian: the divergence has the wrong sign.",
            cause="The divergence is a price for every bit in the code. With the wrong sign it is a reward that has no "
            "limit, and the rest of the loss soon does not matter.",
            fix="Add it: `kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()`, `loss = reconstruction + kl`.",
            subject=Subject("loss", "divergence"),
            place=last.place,
            evidence=[
                Evidence("divergence in nats, first", events[0].nats or 0.0),
                Evidence("divergence in nats, last", last.nats or 0.0),
            ],
            variant=Code.REWARDED,
        )
    spreads = {event.spread for event in events}
    if len(spreads) == 1 and last.spread in (Spread.VARIANCE, Spread.LOGARITHM):
        yield _wrong_spread(last)
    late = [event for event in events if event.nats is not None and 2 * event.step > last.step]
    # A code may be given more room, or find its use, until the end.
    is_late = steps is not None and last.step >= max(LONG, steps // 5)
    most = min(NOTHING, events[0].nats or 0.0)  # nor does it begin to say something
    if is_late and late and all(event.nats is not None and event.nats < most for event in late):
        yield _collapsed(last)


def _wrong_spread(last: CodeSeen) -> Finding:
    factor = "`exp(logvar)`, the variance" if last.spread is Spread.VARIANCE else "`logvar` itself"
    return rule.finding(
        f"The noise of the code is multiplied by {factor}, while the divergence takes `exp(logvar)` for the variance.",
        cause="The two parts of the loss then mean different codes: what is drawn is not what the divergence measures, "
        "and new examples drawn from the standard Gaussian do not look like those of the encoder.",
        fix="Draw with the standard deviation: `std = torch.exp(0.5 * logvar)`, `z = mu + eps * std`.",
        subject=Subject("loss", "code"),
        place=last.place,
        evidence=[Evidence("numbers in a code", last.size)],
        variant=Code.WRONG_SPREAD,
    )


def _collapsed(last: CodeSeen) -> Finding:
    nats = last.nats or 0.0
    return rule.finding(
        f"The code says nothing: its divergence is {nats:.2g} nats for {last.size} numbers, whatever the example.",
        cause="The price of the divergence is higher than what the code saves in reconstruction, so the encoder gives "
        "every example the same code, and the decoder learns the average.",
        fix="Give the divergence less weight, or raise its weight from 0 over the first epochs. Check that "
        "reconstruction and divergence are summed over the same things: both for one example, or both for the batch.",
        subject=Subject("loss", "code"),
        place=last.place,
        evidence=[Evidence("divergence in nats", nats), Evidence("numbers in a code", last.size)],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Code.COLLAPSED,
    )
