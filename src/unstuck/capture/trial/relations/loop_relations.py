"""What is asked of a loop with a frozen batch: does a step lower its loss, do all inputs matter, does their order?"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from unstuck.capture.trial.relations.inputs import Exchange, blocks, reordered, whole_tensors
from unstuck.capture.trial.relations.loop_probe import (
    Ask,
    LoopProbe,
    Questions,
    Reply,
    Tensors,
    Training,
    added,
    cosine,
    product,
)
from unstuck.events import Place
from unstuck.findings.relations import Answer, Number, Relation, State

UNTIL_FROZEN = 2
"""Iterations until the batch is frozen."""
UNSTEADY = 0.01
"""The share of the loss by which two passes over the same batch may differ."""
SAME = 1e-6
REORDERED = 1e-4
"""Sums in another order differ by rounding."""
SMALL = 1e-3
"""The share of the loss by which a small step is promised to change it."""
FINER = 0.25
ABOVE_NOISE = 10.0
ROUNDING = 2e-7
FOREIGN = 0.5
"""The cosine below which a gradient is not that of the loss. Clipping by value and noise leave it higher."""
TRAINED = 20
"""Steps after which an input without effect is looked at again: weights that begin as 0 hide it at first."""
NO_TIME = "its questions took too long, and this one was not asked."

Replies = Generator[Ask, Reply, Answer]


def examine(probe: LoopProbe, training: Training) -> Questions:
    """All questions about one optimizer and the models it trains, the most telling first."""
    for _ in range(UNTIL_FROZEN):
        yield Ask()
    first = yield Ask(differentiate=True)
    again = yield Ask()
    loop = Loop(training, first, again)
    if loop.problem:
        for relation in (Relation.DESCENT, Relation.INPUTS, Relation.ORDER):
            probe.answer(loop.does_not_apply(relation, loop.problem))
        return
    probe.answer((yield from _descent(loop)))
    if loop.is_first(probe):
        yield from _ask_of_inputs(probe, loop)


class Loop:
    """One training, as it answers where nothing is changed."""

    def __init__(self, training: Training, first: Reply, again: Reply) -> None:
        self.training = training
        self.first = first
        self.used, self.own, self.agreement = _own_losses(first)
        self.loss = self.loss_of(first)
        self.noise = abs(self.loss - self.loss_of(again))
        self.problem = self._problem(again)

    def loss_of(self, reply: Reply) -> float:
        """The losses that its gradient comes from."""
        known = [reply.losses[index] for index in self.used if -index <= len(reply.losses)]
        return math.fsum(known) if known else math.nan

    def _problem(self, again: Reply) -> str:
        if not self.first.losses:
            return "no loss was back-propagated between two steps."
        if not math.isfinite(self.loss):
            return "the loss is not finite."
        if len(again.losses) != len(self.first.losses):
            return "the number of backward passes differs from step to step."
        if self.noise > UNSTEADY * abs(self.loss):
            return (
                f"the same batch and the same weights gave a loss of {self.loss:.4g} and then "
                f"{self.loss_of(again):.4g}: what the loop draws could not be frozen."
            )
        return ""

    def is_same(self, reply: Reply, tolerance: float = SAME) -> bool:
        """The same losses, and the same gradient?"""
        if len(reply.losses) != len(self.first.losses):
            return False
        limits = (tolerance * max(abs(one), 1e-12) + 2 * self.noise for one in self.first.losses)
        near = zip(reply.losses, self.first.losses, limits, strict=True)
        if not all(abs(one - other) <= limit for one, other, limit in near):
            return False
        difference = [
            a if b is None else b if a is None else a - b
            for a, b in zip(_dense(reply.gradient), _dense(self.first.gradient), strict=True)
        ]
        noisy = 1e-3 if self.noise else tolerance
        size = product(self.first.gradient, self.first.gradient)
        return product(difference, difference) <= noisy**2 * size

    def is_first(self, probe: LoopProbe) -> bool:
        """Inputs are asked about once, not for each optimizer."""
        return sum(answer.relation is Relation.DESCENT for answer in probe.answers) == 1

    def does_not_apply(self, relation: Relation, why: str) -> Answer:
        """With this reason."""
        return Answer(
            relation=relation,
            state=State.DOES_NOT_APPLY,
            sentence=f"Not tested: {why}",
            subject=self.training.name,
            place=self.training.place,
        )


def _dense(gradient: Tensors) -> Tensors:
    return added([gradient])


def _own_losses(reply: Reply) -> tuple[tuple[int, ...], Tensors, float | None]:
    """Which of the latest losses the optimizer's gradient comes from, counted from the end; the gradient of these, and
    its cosine with what the optimizer was given.

    What was cleared in between does not count: a generator's loss reaches the discriminator, too.
    """
    best: tuple[tuple[int, ...], Tensors, float | None] = (tuple(range(-len(reply.losses), 0)), [], None)
    used: tuple[int, ...] = ()
    total: Tensors = []
    for index in range(-1, -len(reply.own) - 1, -1):
        if not product(reply.own[index], reply.own[index]):
            continue
        used, total = (*used, index), added([total, reply.own[index]] if total else [reply.own[index]])
        found = cosine(total, reply.gradient)
        if found is not None and (best[2] is None or found > best[2] - 0.01):
            best = (used, total, found)
    return best


def _descent(loop: Loop) -> Replies:
    """Is the loss of the batch lower a little along the optimizer's own step, by as much as its gradient promises?"""
    training, first = loop.training, loop.first
    given = cosine(first.gradient, first.gradient)
    why = ""
    if given is None:
        why = "the step was given no gradient."
    elif loop.agreement is None:
        why = "no loss reaches the weights of this optimizer."
    elif not any(bool((part != 0).any()) for part in first.step):
        why = "the step left all weights as they were."
    if why:
        return loop.does_not_apply(Relation.DESCENT, why)
    promised = product(loop.own, first.step)
    if _outweighs(training, first):
        return loop.does_not_apply(Relation.DESCENT, "weight decay moves the weights further than the gradient.")
    training.step = first.step
    floor = SMALL * max(abs(loop.loss), 1e-6)
    size = min(1.0, max(floor, ABOVE_NOISE * 3 * loop.noise) / max(abs(promised), 1e-30))
    slopes, changes = [], []
    for share in (size, FINER * size):
        forth = yield Ask(along=share)
        back = yield Ask(along=-share)
        change = loop.loss_of(forth) - loop.loss_of(back)
        slopes.append(change / (2 * share))
        changes.append(change)
    whole = yield Ask(along=1.0)
    return _judged(loop, size, promised, slopes, changes, loop.loss_of(whole))


def _outweighs(training: Training, reply: Reply) -> bool:
    """Does weight decay explain a step against the gradient?"""
    decays = any(group.get("weight_decay") for group in training.optimizer.param_groups)
    return decays and product(reply.gradient, reply.step) > 0


def _judged(
    loop: Loop, size: float, promised: float, slopes: Sequence[float], changes: Sequence[float], whole: float
) -> Answer:
    training, reply = loop.training, loop.first
    noise = ABOVE_NOISE * (loop.noise + ROUNDING * abs(loop.loss))
    clear = all(
        math.isfinite(change) and abs(change) > noise * share for change, share in zip(changes, (1, FINER), strict=True)
    )
    uphill = clear and min(slopes) > 0
    along = product(reply.gradient, reply.step)
    maximizes = any(group.get("maximize") for group in training.optimizer.param_groups)
    agreement = loop.agreement or 0.0
    measures: dict[str, Number] = {
        "optimizer": training.name,
        "rate": float(training.optimizer.param_groups[0].get("lr") or 0.0),
        "loss": loop.loss,
        "share": size,
        "promised": promised * size,
        "real": slopes[0] * size,
        "cosine": agreement,
        "whole": whole,
        "maximizes": maximizes,
    }
    moved = f"{size:.2g} of one step of {training.name}" if size < 1 else f"one step of {training.name}"
    numbers = f"{slopes[0] * size:+.3g}, and the gradient of the loss promises {promised * size:+.3g}"

    def answer(state: State, sentence: str, form: str = "") -> Answer:
        return Answer(
            relation=Relation.DESCENT,
            state=state,
            sentence=sentence,
            form=form,
            subject=training.name,
            measures=measures,
            place=training.place,
        )

    if uphill and along > 0:
        sentence = f"On a frozen batch {moved} raises the loss of {loop.loss:.4g} ({numbers})."
        return answer(State.BROKEN, sentence, "uphill")
    if agreement < FOREIGN and not (not uphill and clear and agreement > 0):
        sentence = (
            f"The gradient that {training.name} is given is not that of the loss (cosine {agreement:.2f}); "
            f"on a frozen batch {moved} changes the loss of {loop.loss:.4g} by {slopes[0] * size:+.3g}."
        )
        return answer(State.BROKEN, sentence, "foreign-gradient")
    if uphill:
        sentence = (
            f"On a frozen batch {moved} changes the loss of {loop.loss:.4g} by {numbers}: what backward() computes is "
            "not the derivative of this loss."
        )
        return answer(State.BROKEN, sentence, "wrong-derivative")
    if not clear:
        return loop.does_not_apply(
            Relation.DESCENT, f"{moved} changes the loss of {loop.loss:.4g} by less than rounding or chance does."
        )
    too_long = math.isfinite(whole) and whole > loop.loss + noise
    more = f" The whole step raises it to {whole:.4g}: it is too long." if too_long else ""
    sentence = f"On a frozen batch {moved} changes the loss of {loop.loss:.4g} by {numbers}.{more}"
    return answer(State.HOLDS, sentence)


def _ask_of_inputs(probe: LoopProbe, loop: Loop) -> Questions:
    """Inputs, their parts and their order: what changes neither the loss nor its gradient?"""
    wholes = list(whole_tensors(probe.given))
    orders = list(reordered(probe.given))
    asked: list[Exchange] = []
    silent: list[Exchange] = []
    parts = [block for whole in wholes for block in blocks(whole, probe.given[whole.call].tensors[whole.tensor])]
    for exchange in (*wholes, *parts):
        is_inside = any((e.call, e.tensor) == (exchange.call, exchange.tensor) and not e.what for e in silent)
        if is_inside or not probe.has_time:
            continue
        asked.append(exchange)
        if loop.is_same((yield Ask(exchange=exchange))):
            silent.append(exchange)
    arranged: list[Exchange] = []
    unordered: list[Exchange] = []
    for exchange in orders:
        if not probe.has_time:
            break
        arranged.append(exchange)
        if loop.is_same((yield Ask(exchange=exchange)), REORDERED):
            unordered.append(exchange)
    if silent or unordered:
        later = yield from _trained(loop)
        if later.problem:
            again = f"without effect at first; after {TRAINED} steps it could not be looked at again: {later.problem}"
            for relation, found, every in (
                (Relation.INPUTS, silent, of_inputs(loop, wholes, asked, silent)),
                (Relation.ORDER, unordered, of_order(loop, orders, arranged, unordered)),
            ):
                names = ", ".join(one.words for one in found)
                probe.answer(loop.does_not_apply(relation, f"{names} {again}") if found else every)
            return
        silent = yield from _still(later, silent, SAME)
        unordered = yield from _still(later, unordered, REORDERED)
    probe.answer(of_inputs(loop, wholes, asked, silent))
    probe.answer(of_order(loop, orders, arranged, unordered))


def _trained(loop: Loop) -> Generator[Ask, Reply, Loop]:
    """The same loop after some steps on its batch."""
    for _ in range(TRAINED):
        yield Ask(is_free=True)
    first = yield Ask(differentiate=True)
    again = yield Ask()
    return Loop(loop.training, first, again)


def _still(loop: Loop, suspects: Sequence[Exchange], tolerance: float) -> Generator[Ask, Reply, list[Exchange]]:
    """Those without effect in the trained loop, too, also if examples get the part of another one."""
    still: list[Exchange] = []
    for exchange in suspects:
        other = exchange._replace(shift=2, order=exchange.order[::-1])
        replies = (yield Ask(exchange=exchange)), (yield Ask(exchange=other))
        still += [exchange] if all(loop.is_same(reply, tolerance) for reply in replies) else []
    return still


FLAT = "every gradient is exactly 0, whatever the inputs: a clamp, a saturated function or a detach stops them."


def of_inputs(loop: Loop, wholes: Sequence[Exchange], asked: Sequence[Exchange], silent: list[Exchange]) -> Answer:
    """What exchanging inputs and their parts showed, as far as it was asked."""
    if not wholes:
        return loop.does_not_apply(Relation.INPUTS, "the inputs of the model do not differ between examples.")
    if not asked:
        return loop.does_not_apply(Relation.INPUTS, NO_TIME)
    if not silent:
        parts = sum(bool(one.what) for one in asked)
        names = ", ".join(dict.fromkeys(f"`{one.name}`" for one in asked if not one.what))
        each = f"each of {names}" if "," in names else names
        more = f" and each of {parts} parts" if parts > 1 else ""
        sentence = f"Exchanged between examples, {each}{more} changes the loss or its gradient."
        return _about_inputs(loop, State.HOLDS, sentence)
    if not product(loop.first.gradient, loop.first.gradient):
        return loop.does_not_apply(Relation.INPUTS, FLAT)
    every = len(wholes) > 0 and all(any(e == whole for e in silent) for whole in wholes)
    united = _united(silent)
    names = ", ".join(exchange.words for exchange in united)
    form = "nothing" if every else "argument" if not united[0].what else united[0].what
    model = united[0].model
    sentence = (
        f"Exchanging {names} between examples changes neither the loss ({loop.loss:.4g}) nor its gradient, before and "
        f"after {TRAINED} steps: {model} gets {'them' if len(united) > 1 else 'it'} and does not use "
        f"{'them' if len(united) > 1 else 'it'}."
    )
    share = sum(exchange.stop - exchange.start for exchange in united if exchange.what == united[0].what)
    measures: dict[str, Number] = {
        "unused": names,
        "size": united[0].size,
        "share": share / united[0].size if united[0].size else 1.0,
    }
    return _about_inputs(loop, State.BROKEN, sentence, form, f"{model}, {united[0].name}", measures)


def _united(silent: Sequence[Exchange]) -> list[Exchange]:
    """Blocks side by side become one."""
    united: list[Exchange] = []
    for exchange in silent:
        last = united[-1] if united else None
        goes_on = last and exchange.what and last == exchange._replace(start=last.start, stop=last.stop)
        if last and goes_on and last.stop == exchange.start:
            united[-1] = last._replace(stop=exchange.stop)
        else:
            united.append(exchange)
    return united


def of_order(
    loop: Loop, orders: Sequence[Exchange], arranged: Sequence[Exchange], unordered: Sequence[Exchange]
) -> Answer:
    """What another order of positions showed, as far as it was asked."""
    if not orders:
        return loop.does_not_apply(Relation.ORDER, "no input is a sequence: ids [N, T] or features [N, T, F].")
    if not arranged:
        return loop.does_not_apply(Relation.ORDER, NO_TIME)
    if not unordered:
        names = ", ".join(f"`{one.name}`" for one in arranged)
        return Answer(
            relation=Relation.ORDER,
            state=State.HOLDS,
            sentence=f"With the positions of {names} in another order, the loss or its gradient changes.",
            subject=arranged[0].model,
        )
    first = unordered[0]
    return Answer(
        relation=Relation.ORDER,
        state=State.BROKEN,
        sentence=f"With the {first.size} positions of `{first.name}` in another order, the same for all examples, the "
        f"loss ({loop.loss:.4g}) and its gradient stay the same, before and after {TRAINED} steps.",
        form="unordered",
        subject=f"{first.model}, {first.name}",
        measures={"positions": first.size, "loss": loop.loss, "model": first.model, "input": first.name},
    )


def _about_inputs(
    loop: Loop,
    state: State,
    sentence: str,
    form: str = "",
    subject: str = "",
    measures: dict[str, Number] | None = None,
    place: Place | None = None,
) -> Answer:
    return Answer(
        relation=Relation.INPUTS,
        state=state,
        sentence=sentence,
        form=form,
        subject=subject or loop.training.name,
        measures={"loss": loop.loss, **(measures or {})},
        place=place,
    )
