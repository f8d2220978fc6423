"""Can the model output its targets? Its weights are pushed far to all sides, and the outputs show the limits."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.restore import same_pass, untouched
from unstuck.capture.observers.losses import class_axis
from unstuck.capture.torch_hooks.hooks import after_modules_of
from unstuck.capture.trial.model_probe import Compared
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES, VALUE_LOSSES
from unstuck.findings.relations import Answer, Relation, State

MARGIN = 0.1
"""As a share of the spread of the targets."""
MANY = 0.05
"""The share of targets out of reach from which that is more than outliers."""
FAR = 1e4
DRAWS = 6
SECONDS = 8.0
"""Targets that were not reached by then may be within reach of weights that were not tried."""
FEWEST = 8


def answers(compared: Sequence[Compared]) -> list[Answer]:
    """One for each loss, of the kinds that compare with targets in a known way."""
    found = [one for comparison in compared if (one := _answer(comparison)) is not None]
    return found or [_is(State.DOES_NOT_APPLY, "Not tested: no loss of a kind with targets that can be out of reach.")]


def _is(
    state: State,
    sentence: str,
    form: str = "",
    compared: Compared | None = None,
    measures: dict[str, bool | int | float | str | None] | None = None,
) -> Answer:
    return Answer(
        relation=Relation.REACH,
        state=state,
        sentence=sentence,
        form=form,
        subject=compared.name if compared else "",
        measures=measures or {},
        place=compared.place if compared else None,
    )


def _answer(compared: Compared) -> Answer | None:
    given, target = compared.prediction, compared.target.detach()
    if compared.name in CLASS_LOSSES:
        classes = given.shape[class_axis(given)] if given.dim() else 0
        if classes == 1:
            return _is(
                State.BROKEN,
                f"{compared.name} gets scores of one class ({tuple(given.shape)}): its probability is always 1, and "
                "the loss 0 whatever the model computes.",
                "one-class",
                compared,
                {"classes": 1},
            )
        return _is(State.HOLDS, f"{compared.name} compares scores of {classes} classes.", compared=compared)
    if compared.name in BINARY_LOSSES and target.is_floating_point():
        return _of_probabilities(compared, target)
    if compared.name in VALUE_LOSSES and target.shape == given.shape and target.numel() >= FEWEST:
        return _of_values(compared, target.float())
    return None


def _of_probabilities(compared: Compared, target: Tensor) -> Answer:
    low, high = float(target.min()), float(target.max())
    outside = float(((target < 0) | (target > 1)).float().mean())
    if outside >= MANY:
        return _is(
            State.BROKEN,
            f"{outside:.0%} of the targets of {compared.name} lie outside of 0 to 1 ({low:.3g} to {high:.3g}): no "
            "probability is one of these, and the loss has no lowest value.",
            "not-probabilities",
            compared,
            {"share": outside, "lowest target": low, "highest target": high},
        )
    share = f"{1 - outside:.2%} of the" if outside else "All"
    return _is(State.HOLDS, f"{share} targets of {compared.name} are probabilities.", compared=compared)


def _of_values(compared: Compared, target: Tensor) -> Answer | None:
    if not bool(torch.isfinite(target).all()):
        return _is(State.DOES_NOT_APPLY, "Not tested: some targets are not finite.")
    margin = MARGIN * float(target.std(correction=0))

    def outside(least: float, most: float) -> float:
        return float(((target < least - margin) | (target > most + margin)).float().mean())

    limits = _limits(compared, lambda least, most: outside(least, most) < MANY)
    if limits is None:
        return _is(
            State.DOES_NOT_APPLY, "Not tested: the weights of the model could not all be pushed to their limits."
        )
    low, high = float(target.min()), float(target.max())
    least, most = limits
    share = outside(least, most)
    numbers = f"{least:.3g} to {most:.3g}, and the targets go from {low:.3g} to {high:.3g}"
    measures = {"lowest": least, "highest": most, "lowest target": low, "highest target": high, "share": share}
    if share >= MANY:
        return _is(
            State.BROKEN,
            f"However its weights are pushed, the model outputs {numbers}: {share:.0%} of the targets are out of "
            "reach.",
            "outside",
            compared,
            {**measures},
        )
    return _is(State.HOLDS, f"The model can output {numbers}.", compared=compared, measures={**measures})


def _limits(compared: Compared, is_enough: Callable[[float, float], bool]) -> tuple[float, float] | None:
    """The lowest and the highest output, whichever weights are pushed, or as far as they are enough; None if no weight
    moves the outputs, or if time does not suffice to try them all."""
    called, taken = compared.called, compared.taken
    own = (i for i, one in enumerate(called.outputs) if one is compared.prediction)
    index = taken.output if taken else next(own, None)
    if index is None:
        return None
    model = called.module

    def outputs() -> Tensor:
        output = list(tensors_in(call(model, called.inputs)))[index].detach().float().flatten()
        return output[taken.places] if taken is not None else output

    with untouched(model), torch.no_grad(), contextlib.suppress(RuntimeError, ValueError, IndexError):
        layers: list[nn.Module] = []

        def ended(module: nn.Module, *_: object) -> None:
            layers.append(module)

        with after_modules_of(model, ended), same_pass(model):
            usual = outputs()
        began, moves = time.monotonic(), False
        least, most = _ends(usual)
        # The last layer need not be the one that decides: that of a mixture of experts may only weigh them.
        for layer in dict.fromkeys((*reversed(layers), *model.modules())):
            for _ in _pushed(layer):
                if time.monotonic() - began > SECONDS:
                    return None
                with same_pass(model):
                    now = outputs()
                moves = moves or not torch.equal(now, usual)
                low, high = _ends(now)
                least, most = min(least, low), max(most, high)
            if moves and is_enough(least, most):
                break
        return (least, most) if moves and least <= most else None
    return None


def _ends(values: Tensor) -> tuple[float, float]:
    """The lowest and the highest; what overflows has no limit."""
    known = torch.nan_to_num(values[~torch.isnan(values)])
    return (float(known.min()), float(known.max())) if known.numel() else (math.inf, -math.inf)


def _pushed(layer: nn.Module) -> Iterator[None]:
    """The layer with its outputs pushed to all sides, one after the other; it is put back in between."""
    generator = torch.Generator().manual_seed(0)
    # A bias first: it moves outputs without regard to inputs.
    for parameter in sorted(layer.parameters(recurse=False), key=Tensor.dim):
        before = parameter.detach().clone()
        for push in _pushes(before.shape, generator):
            parameter.data.copy_(before + FAR * push.to(before))
            yield
        parameter.data.copy_(before)


def _pushes(shape: torch.Size, generator: torch.Generator) -> Iterator[Tensor]:
    for sign in (1.0, -1.0):
        yield torch.full(shape, sign)
    for _ in range(DRAWS):
        yield torch.randn(shape, generator=generator)
    if len(shape) == 1:
        for unit in range(min(2, shape[0])):
            for sign in (1.0, -1.0):
                only = torch.zeros(shape)
                only[unit] = sign
                yield only
