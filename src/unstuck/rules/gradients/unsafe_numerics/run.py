"""G15 in a run: operations in the graph of a loss that reached an edge."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Backward, NonFinite, OperationFact, Place
from unstuck.findings import Evidence, Finding, Subject
from unstuck.record import Record
from unstuck.rules.gradients.unsafe_numerics import Formula, rule
from unstuck.rules.gradients.unsafe_numerics.forms import (
    LOG_ONE_MINUS,
    LOG_SIGMOID,
    LOG_SOFTMAX,
    LOG_SUM_EXP,
    SAME_EDGE,
)

FORMULAS = {
    ("log", "softmax"): (LOG_SOFTMAX.form, LOG_SOFTMAX.fix),
    ("log", "sigmoid"): (LOG_SIGMOID.form, LOG_SIGMOID.fix),
    ("log", "rsub", "sigmoid"): (LOG_ONE_MINUS.form, LOG_ONE_MINUS.fix),
    ("log", "sum", "exp"): (LOG_SUM_EXP.form, LOG_SUM_EXP.fix),
    ("log",): ("log", "Keep its argument above 0 with clamp(min=1e-8), or stay in log space."),
    ("sqrt",): ("sqrt", "Add a small number under the root: sqrt(... + 1e-8)."),
    ("div",): ("a division", "Keep the denominator away from 0: clamp(min=1e-8), or add a small number."),
    ("exp",): ("exp", "Limit its argument with clamp(max=50), or compute in log space (logsumexp, softplus)."),
    ("acos",): ("acos", "Keep its argument inside: clamp(-1 + 1e-6, 1 - 1e-6), or use atan2."),
    ("asin",): ("asin", "Keep its argument inside: clamp(-1 + 1e-6, 1 - 1e-6), or use atan2."),
    ("pow",): ("a power below 1", "Add a small number to its base."),
}
"""By operation and the operations that made its input: its formula and how to make it safe."""
EDGES = {"acos": "1 or -1", "asin": "1 or -1", "exp": "the largest number of its type"}


def find(record: Record) -> Iterator[Finding]:
    """Operations in the graph of a loss with inputs at their edge, and the one that made the first NaN."""
    reported: set[str] = set()
    broken = next(record.of(NonFinite), None)
    for backward in record.of(Backward):
        earlier = broken if broken is not None and broken.step < backward.step else None
        for fact in backward.graph.operations if backward.graph is not None else ():
            name = SAME_EDGE.get(fact.name, fact.name)
            # What comes after the first NaN may be its result, unless the operation can have made it.
            if (name,) in FORMULAS and name not in reported and (earlier is None or name in _suspects(earlier)):
                reported.add(name)
                made_it = broken is not None and broken.step <= backward.step and name in _suspects(broken)
                yield _reached(name, fact, backward.place, backward.step, broken if made_it else None)
    for event in record.of(NonFinite):
        name = next(iter(_suspects(event)), "") if len(event.suspects) == 1 else ""
        if (name,) in FORMULAS and name not in reported and event.low is not None:
            fact = OperationFact(name, low=event.low, high=event.high)
            yield _reached(name, fact, event.place, event.step, event)


def _suspects(event: NonFinite) -> set[str]:
    """The operations that can have made it."""
    names = [node.partition("Backward")[0].lower() for node in event.suspects]
    return {SAME_EDGE.get(name, name) for name in names}


def _reached(
    name: str, fact: OperationFact, place: Place | None, step: int, broken: NonFinite | None = None
) -> Finding:
    chains = [chain for chain in FORMULAS if (name, *fact.behind)[: len(chain)] == chain]
    form, fix = FORMULAS[max(chains, key=len)]
    low, high = ("infinity" if end is None else f"{end:.3g}" for end in (fact.low, fact.high))
    span = f"{low} to {high}"
    what = {"div": "denominators", "exp": "results"}.get(name, "numbers")
    edge = f"reached its edge, {EDGES.get(name, '0')}, at step {step + 1}"
    if broken is not None and broken.step == step:
        edge = f"produced a NaN or infinity at step {step + 1}"
    elif broken is not None:
        edge = f"{edge}, and may have caused the non-finite value at step {broken.step + 1}"
    return rule.finding(
        f"{form} on the way to the loss {edge}: its {what} ranged from {span}.",
        cause="There its value or slope is not finite, and one such number makes every gradient before it NaN.",
        fix=fix,
        subject=Subject("call", name),
        place=place,
        evidence=[Evidence(what, span), Evidence("step", step + 1)],
        variant=Formula.AT_EDGE,
    )
