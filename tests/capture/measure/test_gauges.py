"""What is measured of tensors, activations and layers, against the same computed in full."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unstuck.capture.measure.tensors import Scalars
from unstuck.events import Activations, Gauges, Histograms, LayersRan, LossesBetween, TensorGauges, TensorsNamed


class Backwards(nn.Module):
    """Runs its layers in another order than it holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(200, 5)
        self.first = nn.Linear(300, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.first(x)))


def train(model: nn.Module, steps: int = 4, inputs: torch.Tensor | None = None, **options) -> list[dict[str, float]]:
    """Train, and compute in full what every step changed."""
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    given = torch.randn(32, 300) if inputs is None else inputs
    exact = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(given).square().mean().backward()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer.step()
        pairs = model.named_parameters()
        exact.append(
            {name: float((after.detach() - before[name]).norm() / before[name].norm()) for name, after in pairs}
        )
    return exact


def columns(record, step: int) -> dict[str, dict[str, float | None]]:
    """The gauges of one step, by parameter."""
    names = next(record.of(TensorsNamed)).names
    gauges = next(event for event in record.of(TensorGauges) if event.step == step)
    fields = ("grad_norm", "grad_max", "grad_zero", "weight_norm", "update_ratio", "unmoved")
    return {name: {field: getattr(gauges, field)[place] for field in fields} for place, name in enumerate(names)}


def test_update_ratios_from_samples_are_close_to_the_truth(recorded):
    exact: list[dict[str, float]] = []
    model = Backwards()
    record = recorded(lambda: exact.extend(train(model)))
    for step, truth in enumerate(exact):
        measured = columns(record, step)
        for name, ratio in truth.items():
            assert measured[name]["update_ratio"] == pytest.approx(ratio, rel=0.03), (step, name)


@pytest.mark.parametrize("rows", [256, 300, 768, 3840])
@pytest.mark.parametrize("dark", [slice(0, 100), slice(80, 180), slice(200, 300)], ids=["left", "middle", "right"])
def test_features_that_are_always_zero_are_sampled_like_the_others(recorded, rows, dark):
    """The weights of the dark edge of all images get no gradient; AdamW only lets them decay."""
    exact: list[dict[str, float]] = []
    model = nn.Sequential(nn.Linear(300, rows, bias=False))
    inputs = torch.randn(32, 300)
    inputs[:, dark] = 0
    record = recorded(lambda: exact.extend(train(model, inputs=inputs)))
    for step, truth in enumerate(exact):
        assert columns(record, step)["0.weight"]["update_ratio"] == pytest.approx(truth["0.weight"], rel=0.05)


def test_norms_of_gradients_are_exact_and_weights_close(recorded):
    model = Backwards()
    last: dict[str, torch.Tensor] = {}

    def run() -> None:
        train(model, steps=3)
        last.update({name: p.grad.clone() for name, p in model.named_parameters()})

    measured = columns(recorded(run), 2)
    for name, gradient in last.items():
        assert measured[name]["grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-3)
        assert measured[name]["grad_max"] <= float(gradient.abs().max()) * 1.001
        share = float((gradient == 0).float().mean())
        assert measured[name]["grad_zero"] == pytest.approx(share, abs=0.05)
        assert measured[name]["weight_norm"] == pytest.approx(
            float(dict(model.named_parameters())[name].norm()), rel=0.05
        )


def test_columns_follow_the_order_of_execution(recorded):
    named = next(recorded(lambda: train(Backwards())).of(TensorsNamed))
    assert named.names == ("first.weight", "first.bias", "last.weight", "last.bias")
    assert named.kinds == ("Linear",) * 4
    assert named.depths[0] < named.depths[2]
    assert named.sizes == (60000, 200, 1000, 5)


def test_updates_too_small_for_16_bits_are_seen(recorded):
    def run() -> None:
        train(Backwards().bfloat16(), inputs=torch.randn(32, 300).bfloat16(), foreach=False, eps=1e-3)

    measured = columns(recorded(run), 3)
    assert measured["first.weight"]["unmoved"] is not None
    plain = columns(recorded(lambda: train(Backwards())), 3)
    assert plain["first.weight"]["unmoved"] is None


def test_units_that_never_wake_are_counted(recorded):
    model = Backwards()
    with torch.no_grad():
        model.first.bias[:50] = -100.0
    told = list(recorded(lambda: train(model)).of(Activations))
    assert told[-1].names == ("relu after first",)
    assert told[-1].dead[0] == pytest.approx(50 / 200, abs=0.02)
    assert told[-1].zero[0] > 0.5


def test_functions_and_modules_saturate_alike(recorded):
    class Squashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.squash = nn.Linear(300, 20), nn.Linear(20, 5), nn.Sigmoid()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.squash(self.b(torch.tanh(50 * self.a(x))))

    told = list(recorded(lambda: train(Squashed())).of(Activations))[-1]
    assert told.names == ("tanh after a", "sigmoid after b")
    assert told.saturated[0] > 0.8
    assert told.saturated[1] < 0.1


def test_histograms_count_every_sampled_value(recorded):
    record = recorded(lambda: train(Backwards()))
    named = next(record.of(TensorsNamed))
    weights = next(event for event in record.of(Histograms) if event.of == "weights")
    assert [sum(row) for row in weights.counts] == [min(size, 4096) for size in named.sizes]
    assert {event.of for event in record.of(Histograms)} == {"weights", "gradients", "activations"}


def test_layers_are_told_in_the_order_they_ran(recorded):
    told = next(recorded(lambda: train(Backwards())).of(LayersRan))
    assert told.names == ("first", "last")
    assert all(0 < size < 10 for size in told.rms)


def test_the_loss_of_every_step_is_kept(recorded):
    record = recorded(lambda: train(Backwards(), steps=130))
    assert [step for step, _ in record.losses] == list(range(130))
    assert list(record.of(LossesBetween))
    assert len(list(record.of(Gauges))) < 70


def test_numbers_from_a_device_are_the_same(recorded, monkeypatch):
    """What a device other than the CPU does, played on the CPU."""
    model = Backwards()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    at_once = recorded(lambda: train(model))
    model.load_state_dict(start)
    monkeypatch.setattr(Scalars, "immediate", ())
    later = recorded(lambda: train(model))
    for kind in (TensorGauges, Activations, Histograms, LayersRan):
        assert list(later.of(kind)) == list(at_once.of(kind)), kind


def test_a_loss_whose_gradients_are_cleared_does_not_count_in_any_window(recorded):
    def training() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        inputs = torch.randn(8, 4)
        for _ in range(70):
            for finish in (optimizer.zero_grad, optimizer.step):  # as sharpness-aware minimisation looks around first
                model(inputs).square().mean().backward()
                finish()
            optimizer.zero_grad()

    losses = [loss for _, loss in recorded(training).losses]
    assert len(losses) == 70
    assert max(losses) < 1.01 * min(losses)
