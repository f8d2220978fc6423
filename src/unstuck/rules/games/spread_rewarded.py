"""P32: a likelihood whose normalisation has the wrong sign, so that a larger spread always lowers the loss."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import SpreadSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Part(Variant):
    """What is wrong with the part of the loss that should keep a spread small."""

    WRONG_SIGN = "wrong-sign", "the term with the logarithm of the spread has the wrong sign"
    MISSING = "missing", "errors are divided by a learned spread, and no other term depends on it"


rule = Rule(
    code="P32",
    name="spread-rewarded",
    title="a likelihood in which a larger spread always lowers the loss",
    severity=Severity.ERROR,
    explains=("O07", "O28", "M14", "P11"),
    needs=(SpreadSeen,),
    variants=Part.titles(),
)

FEWEST = 3
"""Losses that show it."""
NEARLY_ALL = 0.95


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Both parts of the loss push the spread the same way, for nearly all examples and in every loss."""
    events = list(record.of(SpreadSeen))
    if len(events) < FEWEST:
        return
    if all(event.together >= NEARLY_ALL for event in events):
        yield _wrong_sign(events)
    elif all(event.alone and not event.shared for event in events):
        yield _missing(events)


def _wrong_sign(events: list[SpreadSeen]) -> Finding:
    last = events[-1]
    return rule.finding(
        "The log-variance term of the likelihood has the wrong sign: a larger spread makes the errors count less, and "
        "the other term of the loss rewards it too.",
        cause="The loss is not bounded below: it falls as long as the spread grows, and the predictions need not come "
        f"any closer to the targets. For {min(event.together for event in events):.0%} or more of the {last.spreads:,} "
        f"spreads both terms push the same way, in all {len(events)} losses that were looked at.",
        fix="A negative log-likelihood adds the logarithm: `0.5 * (log_var + (y - mean) ** 2 / log_var.exp())`, a "
        "log-density subtracts it: `-0.5 * z ** 2 - sigma.log()`. Or use `nn.GaussianNLLLoss` or "
        "`torch.distributions.Normal(mean, sigma).log_prob(y)`.",
        subject=Subject("loss", "spread"),
        place=last.place,
        evidence=[
            Evidence("losses looked at", len(events)),
            Evidence("spreads in one of them", last.spreads),
            Evidence("share that both terms push the same way", last.together),
        ],
        variant=Part.WRONG_SIGN,
    )


def _missing(events: list[SpreadSeen]) -> Finding:
    last = events[-1]
    return rule.finding(
        "Errors are divided by a spread that is learned, and no other term of the loss depends on it.",
        cause="Without the logarithm of the spread a larger one always lowers the loss, so the network can leave the "
        "errors as they are and let the spread grow.",
        fix="Add the normalisation: `0.5 * (log_var + (y - mean) ** 2 / log_var.exp())`.",
        subject=Subject("loss", "spread"),
        place=last.place,
        evidence=[Evidence("losses looked at", len(events)), Evidence("spreads in one of them", last.spreads)],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Part.MISSING,
    )
