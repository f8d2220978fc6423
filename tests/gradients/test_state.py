"""Saved in the middle of a window and taken up again, a run ends in the same weights."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from gradients.loops import data, optimizer_of, parts_of, small_model, weights
from torch.nn import functional

from unstuck import GradientManager
from unstuck.gradients import ClipAdaptive, MisuseError

INPUTS, LABELS = data(30)
PARTS = parts_of(30, [3, 1, 2, 4] * 3)


class Run:
    """Everything a checkpoint holds."""

    def __init__(self) -> None:
        self.model = small_model()
        self.optimizer = optimizer_of("adamw", self.model)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        self.manager = GradientManager(
            self.model,
            self.optimizer,
            accumulate=3,
            clip=ClipAdaptive(0.5, warmup=2),
            scaler=self.scaler,
            scheduler=self.scheduler,
            noise=0.01,
        )

    def train(self, parts: list[slice], stop: int | None = None) -> None:
        for index, part in enumerate(self.manager.batches(parts), 1):
            loss = functional.cross_entropy(self.model(INPUTS[part]), LABELS[part])
            self.manager.backward(loss, count=part.stop - part.start)
            self.manager.step()
            if index == stop:
                break

    def parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("model", "optimizer", "scheduler", "scaler", "manager")}

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self.parts().items()}, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        states = torch.load(file, weights_only=True)  # nothing in it needs more trust than weights do
        for name, part in self.parts().items():
            part.load_state_dict(states[name])


@pytest.mark.parametrize("stop", range(1, 12))
def test_round_trip_anywhere(stop: int) -> None:
    whole, first, second = Run(), Run(), Run()
    whole.train(PARTS)
    first.train(PARTS, stop)
    second.load(first.save())
    second.train(PARTS[stop:])
    assert torch.equal(weights(second.model), weights(whole.model))
    assert second.manager.steps == whole.manager.steps == 4
    assert second.scheduler.last_epoch == 4


def test_a_resumed_window_can_be_finished_at_once() -> None:
    first, second = Run(), Run()
    first.train(PARTS, 2)
    second.load(first.save())
    assert second.manager.finish().items == first.manager.finish().items == 4
    assert torch.equal(weights(second.model), weights(first.model))


def test_a_module_called_module_keeps_its_name() -> None:
    """As DDP's wrapper is called: only that one is left out of the names."""
    model = torch.nn.ModuleDict(
        {"module": torch.nn.ModuleDict({"head": torch.nn.Linear(5, 3)}), "head": torch.nn.Linear(5, 3)}
    )
    manager = GradientManager(model, optimizer_of("sgd", model), accumulate=2)
    for part in manager.batches(PARTS):
        scores = model["module"]["head"](INPUTS[part]) + 2 * model["head"](INPUTS[part])  # type: ignore[index]
        manager.backward(functional.cross_entropy(scores, LABELS[part]))
        manager.step()
        break
    assert [*manager.state_dict()["gradients"]] == [
        "module.head.weight",
        "module.head.bias",
        "head.weight",
        "head.bias",
    ]


def test_not_between_backward_and_step() -> None:
    run = Run()
    next(iter(loop := iter(run.manager.batches(PARTS))))
    run.manager.backward(functional.cross_entropy(run.model(INPUTS), LABELS))
    with pytest.raises(MisuseError, match=r"call state_dict\(\) after step\(\)"):
        run.manager.state_dict()
    del loop


def test_a_window_of_another_model() -> None:
    run, other = Run(), small_model()
    run.train(PARTS, 2)
    stranger = torch.nn.Sequential(other)
    manager = GradientManager(stranger, optimizer_of("sgd", stranger), accumulate=3)
    with pytest.raises(ValueError, match="other parameters than this model's"):
        manager.load_state_dict(run.manager.state_dict())
