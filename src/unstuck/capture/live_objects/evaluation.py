"""What passes in evaluation mode show: whether outputs depend on other examples, on later elements, on chance."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from unstuck.capture.live_objects import examples, future
from unstuck.capture.live_objects.passes import Pass, Passes, change
from unstuck.capture.objects import unwrap
from unstuck.capture.places import Places
from unstuck.events import DropoutFact, Leak


class Answers:
    """What the passes in evaluation mode showed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.between_examples: Leak | None = None
        self.from_future: Leak | None = None
        self.copies_input: tuple[int, ...] = ()
        self.dropping: tuple[DropoutFact, ...] = ()


def in_evaluation(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], inputs: Any, target: Any, places: Places | None = None
) -> Answers:
    """Run the batch in evaluation mode, as it is and changed. An exception there is not the user's mistake."""
    found = Answers()
    model = unwrap(model)
    with in_silence(), contextlib.suppress(Exception):
        model.eval()
        passes = Passes(model, loss_fn, target, places or Places())
        baseline = passes.run(inputs, losses=True)
        found.done.append("modes")
        found.dropping = _dropping(passes, inputs, baseline)
        axis = 0
        with contextlib.suppress(Exception):
            axis = _ask_of_time(passes, inputs, baseline, found)
        if examples.can_be_asked(model, inputs, axis) and not baseline.calls.batch_statistics:
            found.between_examples = examples.mixing(passes, inputs, baseline, axis)
            found.done.append("examples")
    return found


def _ask_of_time(passes: Passes, inputs: Any, baseline: Pass, found: Answers) -> int:
    """Looks into the future, if the model is evidently about that; the axis on which the examples lie."""
    candidates = future.sequences(inputs, baseline)
    for given in candidates:
        ahead = future.looking_ahead(passes, inputs, baseline, given)
        if given.ahead:
            found.from_future = found.from_future or ahead
        elif ahead is None and future.repeats(passes, inputs, baseline, given):
            found.copies_input = tuple(baseline.compared[given.loss].target.shape)
    if candidates:
        found.done.append("future")
    if any(given.ahead for given in candidates):
        found.done.append("next")
    return 1 - candidates[0].axis if candidates else 0


def _dropping(passes: Passes, inputs: Any, baseline: Pass) -> tuple[DropoutFact, ...]:
    """Calls that drop values in evaluation mode, if that makes two passes differ."""
    left_on = any(module.training for module in passes.model.modules())
    if not baseline.calls.dropping or left_on:
        return ()
    other = passes.run(inputs, other_numbers=True)
    calls = {(fact.function, fact.place): fact for fact in baseline.calls.dropping}
    return tuple(calls.values()) if change(baseline.outputs, other.outputs) > 0 else ()


@contextlib.contextmanager
def in_silence() -> Iterator[None]:
    """Hide what the model prints and warns of: it did so in an earlier pass already."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
