"""R11: not a pitfall, but what each model received in training."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import BatchSeen, BatchShown, InputFact
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="R11",
    name="seen-by-model",
    title="not a pitfall: the batch exactly as the model received it, for you to check",
    severity=Severity.ADVICE,
    needs=(BatchSeen,),
    good_news=True,
)

CAUSE = "After all preprocessing, this is what the model learns from. Is it what you intended?"
FIX = "Look at it: unstuck report --html page.html"
MOST = 3
MOST_LETTERS = 60


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A sentence for each of the first few inputs of each model's first training batch."""
    first: dict[str, BatchSeen] = {}
    for batch in record.of(BatchSeen):
        if batch.model:
            first.setdefault(batch.model, batch)
    texts = _texts(record)
    inputs = [(model, batch, fact) for model, batch in first.items() for fact in batch.inputs[:MOST]]
    for model, batch, fact in inputs[:MOST]:
        text = texts.get((model, fact.name), "")
        reads = f", the first one {shortened(text)}" if text else ""
        yield rule.finding(
            f"{model} received {described(fact)}{reads}.",
            cause=CAUSE,
            fix=FIX,
            subject=Subject("input", f"{model}.{fact.name}"),
            place=batch.place,
            evidence=_evidence(fact),
        )


def _texts(record: Record) -> dict[tuple[str, str], str]:
    """The text of token ids, by model and input."""
    return {
        (event.model, tensor.name): text
        for event in record.of(BatchShown)
        for tensor in event.tensors
        if (text := next((one.text for one in tensor.drawn if one.text), ""))
    }


def described(fact: InputFact) -> str:
    """`x: float32 [32, 3, 8, 8] from 0 to 1, half of it between 0.25 and 0.75`."""
    words = f"{fact.name}: {fact.dtype} {list(fact.shape or ())}"
    if fact.low is not None and fact.high is not None:
        words += f" from {fact.low:.4g} to {fact.high:.4g}"
    if len(fact.quantiles) == 5 and "float" in fact.dtype:
        words += f", half of it between {fact.quantiles[1]:.3g} and {fact.quantiles[3]:.3g}"
    return f"{words}, {fact.broken:.2%} of it not finite" if fact.broken else words


def shortened(text: str) -> str:
    """The beginning of a text, quoted, in one line."""
    flat = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f'"{flat if len(flat) <= MOST_LETTERS else flat[:MOST_LETTERS].rstrip() + "..."}"'


def _evidence(fact: InputFact) -> Iterator[Evidence]:
    yield Evidence("shape", str(list(fact.shape or ())))
    if fact.low is not None and fact.high is not None:
        yield Evidence("lowest value", fact.low)
        yield Evidence("highest value", fact.high)
