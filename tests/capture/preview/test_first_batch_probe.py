"""A trial shows what its model received and predicts, and the run does not notice that anybody asks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture import Session
from unstuck.capture.preview import first_batch_probe
from unstuck.capture.preview.first_batch_probe import FirstBatchProbe
from unstuck.capture.trial.lab import Lab
from unstuck.events import BatchShown, Event, Predicted, RunStarted
from unstuck.findings.preview import Preview, previews_of
from unstuck.interventions import Seed, StopAfter
from unstuck.record import Record
from unstuck.trials.runner import Program, Runner, Variant


@pytest.fixture(autouse=True)
def time_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are left out where they would take too long; here, only where a test says so."""
    monkeypatch.setattr(first_batch_probe, "GRACE", 1e9)


Batch = Callable[[int], tuple[Any, Tensor]]


class Steps:
    """A training loop as scripts write it; `watched`, as a trial watches it."""

    def __init__(self, watched: bool = True) -> None:
        self.lab = Lab()
        self.events: list[Event] = [RunStarted(script="train.py")]
        self._session: Session | None = None
        if watched:
            probe = FirstBatchProbe(self.lab, self.events.append)
            self._session = Session(self.events.append, listener=self, probe=probe)

    def heard(self, event: Event) -> None:
        pass

    def window_ended(self) -> None:
        self.lab.step_ended()

    def train(self, model: nn.Module, batch: Batch, loss_name: str = "cross_entropy", steps: int = 3) -> list[float]:
        losses = []
        optimizer = None
        if self._session is not None:
            self._session.install()
        try:
            for step in range(steps):
                inputs, target = batch(step)
                output = model(inputs)
                output = output.flatten(0, 1) if output.dim() == 3 else output
                loss = getattr(F, loss_name)(output, target)
                if optimizer is None:
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        finally:
            if self._session is not None:
                self._session.remove()
            self.lab.undo()
        return losses

    @property
    def preview(self) -> Preview:
        (found,) = previews_of(Record(Path(), tuple(self.events)))
        return found


def images(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    pictures = torch.rand(8, 3, 10, 12, generator=generator)
    pictures[3] = pictures[1]
    pictures[5] = 0.25
    return pictures, torch.tensor([0, 1, 2, 1, 0, 2, 2, 2])


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(720, 3)
    )


def test_pictures_are_shown_as_the_model_received_them() -> None:
    run = Steps()
    run.train(cnn(), images)
    (shown,) = run.preview.tensors
    given, target = images(0)
    assert (shown.name, shown.dtype, shown.shape) == ("input", "float32", (8, 3, 10, 12))
    assert shown.low == pytest.approx(float(given.min()), rel=1e-5)
    assert shown.high == pytest.approx(float(given.max()), rel=1e-5)
    assert shown.mean == pytest.approx(float(given.mean()), rel=1e-5)
    assert (shown.examples, shown.duplicates, shown.constant, shown.broken) == (8, 1, 1, 0.0)
    assert shown.scaling == "scaled to be shown: 0 is black, 1 white"
    expected = (given[2] * 255).round().permute(1, 2, 0).reshape(-1).to(torch.uint8)
    assert shown.drawn[2].pixels == bytes(expected.tolist())
    assert [one.target for one in shown.drawn] == [str(value) for value in target.tolist()]


def test_classes_are_counted_and_filters_and_predictions_followed() -> None:
    run = Steps()
    model = cnn()
    before = model[0].weight.detach().clone()
    run.train(model, images, steps=20)
    preview = run.preview
    assert preview.targets is not None
    batches = preview.targets.batches
    assert batches > 1
    assert preview.targets.counts == {"0": 2 * batches, "1": 2 * batches, "2": 4 * batches}
    layer = preview.first_layer
    assert layer is not None
    assert (layer.name, layer.kind, layer.count, layer.end.step) == ("0", "Conv2d", 6, 20)
    assert layer.moved == pytest.approx(float((model[0].weight - before).norm() / before.norm()), rel=1e-4)
    assert layer.start.scale == pytest.approx(float(before.abs().max()))
    assert preview.dynamics is not None
    assert [shot.step for shot in preview.dynamics.snapshots] == [0, 1, 2, 4, 8, 16, 20]
    assert preview.dynamics.targets == (0, 1, 2, 1, 0, 2, 2, 2)
    right = [
        sum(a == b for a, b in zip(s.values, preview.dynamics.targets, strict=True)) for s in preview.dynamics.snapshots
    ]
    assert right[-1] > right[0]


class Odd(nn.Module):
    """Everything that a look could disturb: buffers, dropout, generators of its own, counters, numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = cnn()
        self.noise = torch.Generator().manual_seed(3)
        self.calls = 0
        self.history: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.history.append(float(x.mean()))
        shift = torch.randn(x.shape, generator=self.noise) * 0.1 + float(numpy.random.rand())
        return self.inside(x + shift) * (1 + 0.01 * self.calls) + len(self.history) * 0.01


@pytest.mark.parametrize("build", [cnn, Odd])
def test_the_run_does_not_notice(build: Callable[[], nn.Module]) -> None:
    def trained(watched: bool) -> tuple[list[float], list[Tensor], list[bool]]:
        torch.manual_seed(5)
        numpy.random.seed(5)
        model = build()
        run = Steps(watched)
        losses = run.train(model, images, steps=25)
        assert any(isinstance(event, BatchShown) for event in run.events) is watched
        state = [value.detach().clone() for value in model.state_dict().values()]
        return losses, [*state, torch.rand(3)], [part.training for part in model.modules()]

    plain, shown = trained(False), trained(True)
    assert plain[0] == shown[0]
    assert all(torch.equal(one, other) for one, other in zip(plain[1], shown[1], strict=True))
    assert plain[2] == shown[2]


def test_weights_made_in_the_first_call_are_made_by_the_run() -> None:
    def losses(watched: bool) -> list[float]:
        torch.manual_seed(1)
        return Steps(watched).train(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), images)

    assert losses(False) == losses(True)


SCRIPT = """
import torch, torch.nn.functional as F
from torch import nn
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(144, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step % 2 == 0):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_trial_is_the_same_bit_by_bit_and_so_is_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    changes = (Seed(), StopAfter(40))
    with Runner(Program("train.py"), tmp_path / "runs") as runner:
        variants = [Variant("plain", changes, every=1), Variant("shown", changes, every=1, show_data=True)]
        plain, shown = runner.run(variants, 60)
    assert len(plain.curve.losses) == 40
    assert plain.curve == shown.curve
    events = [
        [(type(event), event.step, event.place) for event in run.record().events if not getattr(event, "asked", False)]
        for run in (plain, shown)
    ]
    assert events[0] == events[1]
    asked = [event.step for event in shown.record().of(Predicted) if event.asked]
    assert asked[0] == 0
    assert not any(event.asked for event in plain.record().of(Predicted))
    assert "preview" not in shown.notes


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + value) for value in ids)


def tokens(step: int) -> tuple[Tensor, Tensor]:
    ids = torch.arange(24).reshape(4, 6) % 9
    return ids, (ids.reshape(-1) + 1) % 9


class Flat(nn.Module):
    """(examples, positions) -> a row of scores for each position, flattened for the loss outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 9)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


def test_tokens_are_decoded_by_the_programs_own_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "tokenizer", Tokenizer(), raising=False)
    run = Steps()
    run.train(Flat(), tokens, steps=21)
    (shown,) = run.preview.tensors
    assert (shown.form, shown.name, shown.drawn[0].text) == ("ids", "ids", "abcdef")
    assert shown.drawn[1].numbers[:3] == (6.0, 7.0, 8.0)
    assert run.preview.dynamics is not None
    assert run.preview.dynamics.kind == "right"
    last = run.preview.dynamics.snapshots[-1]
    assert last.step == 20
    assert all(value is not None and 0 <= value <= 1 for value in last.values)


def test_without_a_tokenizer_there_are_ids() -> None:
    run = Steps()
    run.train(
        nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 3)),
        lambda s: (tokens(s)[0], torch.tensor([0, 1, 2, 0])),
    )
    assert run.preview.tensors[0].drawn[0].text == ""
    assert run.preview.tensors[0].drawn[0].numbers[:3] == (0.0, 1.0, 2.0)


def test_tables_and_series_and_outputs_of_one_number() -> None:
    def rows(step: int) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, 40).reshape(10, 4)
        x[0, 0] = float("nan") if step == 99 else 1e4
        return x, x.sum(1, keepdim=True) / 1e4

    run = Steps()
    run.train(nn.Linear(4, 1), rows, "mse_loss")
    preview = run.preview
    assert preview.tensors[0].form == "table"
    assert preview.tensors[0].drawn[0].numbers[0] == 1e4
    assert preview.tensors[0].drawn[0].target == "0.9997"
    assert preview.dynamics is not None
    assert preview.dynamics.kind == "value"
    assert len(preview.dynamics.snapshots[0].values) == 10
    assert preview.targets is not None
    assert preview.targets.counts == {}


def test_what_is_not_finite_is_told() -> None:
    def broken(step: int) -> tuple[Tensor, Tensor]:
        pictures, target = images(step)
        pictures[0, 0, 0, 0] = float("nan")
        pictures[1] = float("inf")
        return pictures, target

    run = Steps()
    run.train(cnn(), broken)
    (shown,) = run.preview.tensors
    assert shown.broken == pytest.approx((1 + 360) / 2880)
    assert shown.high is not None
    assert shown.high < 1


class Once(nn.Linear):
    """Does not like to be asked between its own calls."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            raise RuntimeError("not now")
        return super().forward(x)


def test_a_model_that_refuses_is_left_alone() -> None:
    run = Steps()
    losses = run.train(Once(4, 3), lambda step: (torch.ones(6, 4), torch.zeros(6, dtype=torch.long)))
    assert len(losses) == 3
    assert run.preview.trouble == "the model cannot be called with its first batch again (RuntimeError)"
    assert run.preview.tensors


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(6, 4, dtype=torch.float64),
        torch.ones(6, 4).to_sparse().to_dense(),
        torch.zeros(6, 4).bool().float(),
        torch.full((6, 4), float("nan")),
        torch.randn(6, 4).T.contiguous().T,
        torch.randn(6, 1).expand(6, 4),
    ],
    ids=["double", "dense", "zeros", "nan", "transposed", "expanded"],
)
def test_odd_inputs_are_shown_or_left_out(given: Tensor) -> None:
    run = Steps()
    model = nn.Linear(4, 3).to(given.dtype)
    run.train(model, lambda step: (given, torch.tensor([0, 1, 2, 0, 1, 2])))
    assert run.preview.tensors[0].shape == (6, 4)


def test_a_dry_run_before_training_is_not_taken_for_it() -> None:
    run = Steps()
    model = cnn()
    model(torch.zeros(2, 3, 10, 12))
    run.train(model, images)
    assert run.preview.tensors[0].shape == (8, 3, 10, 12)


def test_large_pictures_and_long_runs_stay_small() -> None:
    big = torch.rand(40, 3, 200, 160)
    target = torch.arange(40) % 3
    run = Steps()
    model = nn.Sequential(nn.Conv2d(3, 64, 16, stride=16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))
    run.train(model, lambda step: (big, target))
    assert len(msgspec.json.encode(run.preview)) < 1_500_000
    (shown,) = run.preview.tensors
    assert len(shown.drawn) == 16
    assert (shown.drawn[0].height, shown.drawn[0].width) == (96, 77)


@pytest.mark.slow
def test_looks_are_few_however_long_the_run() -> None:
    run = Steps()
    model = nn.Linear(4, 3)
    run.train(model, lambda step: (torch.ones(6, 4), torch.zeros(6, dtype=torch.long)), steps=1500)
    assert run.preview.dynamics is not None
    steps = [shot.step for shot in run.preview.dynamics.snapshots]
    assert 10 <= len(steps) <= 64
    assert steps[-1] > 1400


def test_looking_stops_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_batch_probe, "GRACE", 0.0)
    monkeypatch.setattr(first_batch_probe, "SHARE", 0.0)
    run = Steps()
    run.train(nn.Linear(4, 3), lambda step: (torch.ones(6, 4), torch.zeros(6, dtype=torch.long)), steps=30)
    assert run.preview.dynamics is not None
    assert [shot.step for shot in run.preview.dynamics.snapshots] == [0, 1]
