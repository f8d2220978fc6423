"""Does the same batch give the same answers twice in evaluation mode, whatever random numbers are drawn?

Answers that are drawn on purpose look the same from outside as dropout that was left on. So only what nobody means
counts: a functional dropout that ignores the mode, a layer that every call makes again, and chance that is there in
evaluation and not in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.passes import Passes, change
from unstuck.capture.live_objects.restore import same_pass, untouched
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.hooks import FunctionCalls, before_all_modules
from unstuck.capture.trial.model_probe import Called, Compared
from unstuck.events import Place
from unstuck.findings.relations import Answer, Number, Relation, State

NOISE = frozenset(
    ("rand", "randn", "rand_like", "randn_like", "normal", "normal_", "uniform_", "bernoulli", "bernoulli_", "dropout")
)
SAMPLES = frozenset(("multinomial", "poisson", "exponential_", "geometric_", "cauchy_", "log_normal_"))
"""Functions that draw an answer, as a generator of text does."""


def answers(models: Sequence[Called], compared: Sequence[Compared], places: Places) -> list[Answer]:
    """One for each model, or why there is none."""
    found = [_answer(called, any(one.called is called for one in compared), places) for called in models]
    return found or [_is(State.DOES_NOT_APPLY, "Not tested: no model was called before the first backward.")]


def _is(
    state: State,
    sentence: str,
    form: str = "",
    model: nn.Module | None = None,
    place: Place | None = None,
    **measures: Number,
) -> Answer:
    subject = type(model).__name__ if model is not None else ""
    return Answer(
        relation=Relation.STEADY,
        state=state,
        sentence=sentence,
        form=form,
        subject=subject,
        measures=measures,
        place=place,
    )


def _answer(called: Called, is_compared: bool, places: Places) -> Answer:
    model = called.module
    name = type(model).__name__
    with untouched(model):
        model.eval()
        if any(module.training for module in model.modules()):
            return _is(State.DOES_NOT_APPLY, f"Not tested: parts of {name} stay in training mode after eval().")
        passes = Passes(model, lambda output, target: None, None, places)
        baseline = passes.run(called.inputs)
        most = change(baseline.outputs, passes.run(called.inputs, other_numbers=True).outputs)
        if not baseline.outputs:
            return _is(State.DOES_NOT_APPLY, f"Not tested: {name} returns no numbers in evaluation mode.")
        if not most:
            return _is(State.HOLDS, f"In evaluation mode {name} gives the same answers twice.", model=model)
        if not passes.repeats(called.inputs, baseline):
            why = "even with the same random numbers, so the reason is outside of what can be put back."
            return _is(State.DOES_NOT_APPLY, f"Not tested: two passes of {name} differ {why}")
        differ = f"In evaluation mode two passes over the same batch differ by up to {most:.2g} times the spread of the"
        differ = f"{differ} outputs of {name}"
        kinds = " ".join(dict.fromkeys(type(module).__name__ for module in model.modules()))
        if baseline.calls.dropping:
            fact = baseline.calls.dropping[0]
            what = f"{fact.function} drops {fact.share:.0%} of the values there, too"
            measures: dict[str, Number] = {"change": most, "function": fact.function, "kinds": kinds}
            return _is(State.BROKEN, f"{differ}: {what}.", "dropout", model, fact.place, **measures)
        fresh = _fresh_layer(called, places)
        if fresh is not None:
            kind, place = fresh
            what = f"every call makes a new {kind}, with weights of its own"
            return _is(State.BROKEN, f"{differ}: {what}.", "new-layer", model, place, change=most, layer=kind)
        return _by_chance(called, is_compared, places, differ, most)


def _by_chance(called: Called, is_compared: bool, places: Places, differ: str, most: float) -> Answer:
    """Noise in the forward itself: on purpose, unless training does without it."""
    model = called.module
    calls = _draws(called, places)
    model.train()
    for module in model.modules():
        if not next(module.children(), None) and type(module).__module__.startswith("torch."):
            module.training = False  # dropout is not what this is about
    calm = Passes(model, lambda output, target: None, None, places)
    training = calm.run(called.inputs)
    same_in_training = change(training.outputs, calm.run(called.inputs, other_numbers=True).outputs) == 0
    model.eval()
    now = Passes(model, lambda output, target: None, None, places).run(called.inputs)
    fits = [one.shape for one in training.outputs] == [one.shape for one in now.outputs]
    drawn = next(((name, place) for name, place in calls if name in NOISE), None)
    is_sampling = any(name in SAMPLES for name, _ in calls)
    if drawn is not None and is_compared and same_in_training and fits and not is_sampling:
        name, place = drawn
        what = f"{name} is called there, and in training mode nothing is drawn"
        return _is(State.BROKEN, f"{differ}: {what}.", "only-in-evaluation", model, place, change=most, function=name)
    by = f" ({calls[0][0]} at {calls[0][1]})" if calls and calls[0][1] else ""
    return _is(State.DOES_NOT_APPLY, f"Not tested: {type(model).__name__} draws random numbers by itself{by}.")


class _Draws(FunctionCalls):
    """Functions that draw random numbers, and where."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self.calls: list[tuple[str, Place | None]] = []

    def called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "")
        if name in NOISE or name in SAMPLES:
            self.calls.append((name, self._places.here()))
        return function(*args, **kwargs)


def _draws(called: Called, places: Places) -> list[tuple[str, Place | None]]:
    draws = _Draws(places)
    with same_pass(called.module), torch.no_grad(), draws:
        list(tensors_in(call(called.module, called.inputs)))
    return draws.calls


def _fresh_layer(called: Called, places: Places) -> tuple[str, Place | None] | None:
    """The kind of the first layer with weights that is called in one pass only, and the line that calls it."""
    known = {id(module) for module in called.module.modules()}
    passes: list[list[tuple[nn.Module, Place | None]]] = []

    def begins(module: nn.Module, args: Any) -> None:
        if id(module) not in known and isinstance(next(module.parameters(), None), Tensor):
            passes[-1].append((module, places.here()))

    for _ in range(2):
        passes.append([])
        with before_all_modules(begins), same_pass(called.module), torch.no_grad():
            call(called.module, called.inputs)
    first, second = passes
    again = {id(module) for module, _ in second}
    return next(((type(module).__name__, place) for module, place in first if id(module) not in again), None)
