"""Carries out interventions on the program that runs in this process, and puts everything back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from unstuck.capture.trial.interventions import chance, loop, optimizers
from unstuck.capture.trial.interventions.batch import FrozenBatch
from unstuck.capture.trial.interventions.inputs import ChangedInputs
from unstuck.capture.trial.interventions.lab import Lab
from unstuck.capture.trial.interventions.probe import Probe
from unstuck.interventions import (
    AddParameters,
    ChangeInputs,
    ClearGradients,
    ClipGradients,
    DivideLoss,
    FreezeBatch,
    GiveLoss,
    Intervention,
    KeepGradients,
    NoClipping,
    NoDropout,
    NoSchedule,
    NoWeightDecay,
    OwnSeeds,
    ProbeModel,
    Seed,
    SetOption,
    SetRate,
    SweepRate,
    TakeSteps,
    TrainingMode,
    UnscaleBeforeClip,
)

__all__ = ["Lab", "intervene"]

_ACTIONS: dict[type, Callable[[Lab, Any], object]] = {
    Seed: lambda lab, wish: chance.seed(lab, wish.number),
    OwnSeeds: lambda lab, wish: chance.leave_to_chance(),
    FreezeBatch: lambda lab, wish: FrozenBatch(lab),
    ChangeInputs: lambda lab, wish: ChangedInputs(lab, wish.how),
    NoDropout: lambda lab, wish: chance.no_dropout(lab),
    NoWeightDecay: lambda lab, wish: optimizers.set_option(lab, "weight_decay", 0.0),
    SetRate: lambda lab, wish: optimizers.change_rates(lab, lambda optimizer, group, own: own * wish.factor),
    SweepRate: lambda lab, wish: optimizers.Sweep(lab, wish.first, wish.last, wish.steps),
    ClearGradients: lambda lab, wish: loop.clear_gradients(lab),
    KeepGradients: lambda lab, wish: loop.KeptGradients(lab),
    TakeSteps: lambda lab, wish: loop.take_steps(lab),
    TrainingMode: lambda lab, wish: loop.train_mode(lab),
    UnscaleBeforeClip: lambda lab, wish: loop.unscale_before_clip(lab),
    DivideLoss: lambda lab, wish: loop.divide_loss(lab, wish.by),
    GiveLoss: lambda lab, wish: loop.give_losses(lab, wish.form, wish.function),
    ClipGradients: lambda lab, wish: optimizers.clip(lab, wish.norm),
    NoClipping: lambda lab, wish: optimizers.clip_nothing(lab),
    AddParameters: lambda lab, wish: optimizers.add_parameters(lab),
    NoSchedule: lambda lab, wish: optimizers.hold_rates(lab),
    SetOption: lambda lab, wish: optimizers.set_option(lab, wish.name, wish.value),
    ProbeModel: lambda lab, wish: Probe(lab),
}


def intervene(changes: Iterable[Intervention]) -> Lab:
    """Carry out those that change torch; `StopAfter` and `EditSource` are the launcher's. `Lab.undo` ends them all."""
    lab = Lab()
    for wish in changes:
        action = _ACTIONS.get(type(wish))
        if action is not None:
            action(lab, wish)
    return lab
