"""Can the model output its targets? The last layer is pushed far to all sides, and the outputs show the limits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.restore import same_pass, untouched
from unstuck.capture.observers.losses import class_axis
from unstuck.capture.torch_hooks.hooks import after_modules_of
from unstuck.capture.trial.model_probe import Compared
from unstuck.findings.relations import Answer, Relation, State

VALUES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
MARGIN = 0.1
"""As a share of the spread of the targets."""
MANY = 0.05
"""The share of targets out of reach from which that is more than outliers."""
FAR = 1e4
DRAWS = 6
LAYERS = 3
"""The last layers with parameters that are tried until one of them moves the outputs."""
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
    if compared.name in ("cross_entropy", "nll_loss"):
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
    if compared.name in BINARY and target.is_floating_point():
        return _of_probabilities(compared, target)
    if compared.name in VALUES and target.shape == given.shape and target.numel() >= FEWEST:
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
    return _is(State.HOLDS, f"All targets of {compared.name} are probabilities.", compared=compared)


def _of_values(compared: Compared, target: Tensor) -> Answer | None:
    limits = _limits(compared)
    low, high = float(target.min()), float(target.max())
    if limits is None or not bool(torch.isfinite(target).all()):
        return _is(State.DOES_NOT_APPLY, "Not tested: the last layer could not be pushed to its limits.")
    least, most = limits
    margin = MARGIN * float(target.std(correction=0))
    outside = float(((target < least - margin) | (target > most + margin)).float().mean())
    numbers = f"{least:.3g} to {most:.3g}, and the targets go from {low:.3g} to {high:.3g}"
    measures = {"lowest": least, "highest": most, "lowest target": low, "highest target": high, "share": outside}
    if outside >= MANY:
        return _is(
            State.BROKEN,
            f"Whatever its last layer computes, the model can output {numbers}: {outside:.0%} of the targets are out "
            "of reach.",
            "outside",
            compared,
            {**measures},
        )
    return _is(State.HOLDS, f"The model can output {numbers}.", compared=compared, measures={**measures})


def _limits(compared: Compared) -> tuple[float, float] | None:
    """The lowest and the highest output, however the last layer is pushed; None if that does not move them."""
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
            if next(module.parameters(recurse=False), None) is not None:
                layers.append(module)

        with after_modules_of(model, ended), same_pass(model):
            usual = outputs()
        for layer in list(dict.fromkeys(reversed(layers)))[:LAYERS]:
            seen = [usual]
            for _ in _pushed(layer):
                with same_pass(model):
                    seen.append(outputs())
            if any(not torch.equal(one, usual) for one in seen[1:]):
                finite = torch.cat([one[torch.isfinite(one)] for one in seen])
                return (float(finite.min()), float(finite.max())) if finite.numel() else None
    return None


def _pushed(layer: nn.Module) -> Iterator[None]:
    """The layer with its outputs pushed to all sides, one after the other; it is put back in between."""
    bias, weight = getattr(layer, "bias", None), getattr(layer, "weight", None)
    parameter = bias if isinstance(bias, Tensor) else weight
    if not isinstance(parameter, Tensor):
        return
    before = parameter.detach().clone()
    generator = torch.Generator().manual_seed(0)
    ones = torch.ones(before.shape)
    pushes = [ones, -ones, *(torch.randn(before.shape, generator=generator) for _ in range(DRAWS))]
    if before.dim() == 1:
        for unit in range(min(2, len(before))):
            only = torch.zeros(before.shape)
            only[unit] = 1.0
            pushes += [only, -only]
    for push in pushes:
        parameter.data.copy_(before + FAR * push.to(before))
        yield
    parameter.data.copy_(before)
