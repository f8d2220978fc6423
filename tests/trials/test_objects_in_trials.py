"""Experiments on live objects train for real and leave no trace."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from unstuck.interventions import (
    AddParameters,
    ChangeInputs,
    ClipGradients,
    EditSource,
    FreezeBatch,
    Intervention,
    NoDropout,
    NoWeightDecay,
    Seed,
    SetOption,
    SetRate,
    SweepRate,
)
from unstuck.judge import judge
from unstuck.trials.objects import ObjectContext
from unstuck.trials.runner import Variant

pytestmark = pytest.mark.usefixtures("one_thread")


VARIANTS: tuple[tuple[Intervention, ...], ...] = (
    (),
    (Seed(2),),
    (FreezeBatch(), NoDropout(), NoWeightDecay()),
    (ChangeInputs("zeros"),),
    (ChangeInputs("shuffled"),),
    (ChangeInputs("noise"),),
    (SetRate(10.0),),
    (SetOption("eps", 1e-3), ClipGradients(0.1), AddParameters()),
    (SweepRate(1e-3, 1e5, 12),),
)


class Parts:
    """One notebook: a model, a loss, an optimizer, a scheduler and a loader."""

    def __init__(
        self, model: nn.Module, loss_fn: Any, optimizer: torch.optim.Optimizer, loader: Any, sizes: tuple[int, ...] = ()
    ) -> None:
        self.model, self.loss_fn, self.optimizer, self.loader = model, loss_fn, optimizer, loader
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

    def context(self) -> ObjectContext:
        return ObjectContext(self.model, self.loss_fn, self.optimizer, self.loader)

    def train(self, steps: int) -> list[float]:
        losses: list[float] = []
        while len(losses) < steps:
            for inputs, target in self.loader:
                self.optimizer.zero_grad()
                loss = self.loss_fn(self.model(inputs), target)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                losses.append(loss.item())
                if len(losses) == steps:
                    break
        return losses


class Last(nn.Module):
    """An LSTM that remembers its last state between batches, as loops over long texts do."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.head(self.lstm(x)[0][:, -1])


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Augments with generators of its own."""

    def __init__(self) -> None:
        self.rng, self.own = np.random.default_rng(3), random.Random(4)
        self.asked = 0

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        noise = float(self.rng.normal()) + self.own.random() + float(np.random.rand()) + GLOBAL_RNG.random()
        return torch.full((6,), noise + index), torch.tensor(index % 2)


GLOBAL_RNG = np.random.default_rng(8)


def mlp() -> Parts:
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
    data = TensorDataset(torch.randn(40, 6), torch.randint(2, (40,)))
    return Parts(
        model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), 1e-2), DataLoader(data, 8, shuffle=True)
    )


def conv() -> Parts:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(144, 3)
    )
    data = TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(3, (24,)))
    loader = DataLoader(data, 6, shuffle=True, generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    return Parts(model, nn.CrossEntropyLoss(), optimizer, loader)


def lstm() -> Parts:
    data = TensorDataset(torch.randn(20, 7, 3), torch.randn(20, 2))
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(6))
    model = Last()
    return Parts(
        model,
        nn.functional.mse_loss,
        torch.optim.AdamW(model.parameters(), 1e-2),
        DataLoader(data, 5, sampler=sampler),
    )


def own_generators() -> Parts:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    return Parts(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.RMSprop(model.parameters(), 1e-4),
        DataLoader(Noisy(), 5, shuffle=True),
    )


def parameters_of_the_loss() -> Parts:
    """A parameter that no module holds is in the optimizer too."""
    model, scale = nn.Linear(4, 1), torch.zeros(1, requires_grad=True)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2).mean() * (-scale).exp().sum() + scale.sum()

    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
    return Parts(model, loss, torch.optim.Adam([*model.parameters(), scale], 0.05), batches)


def kept_workers() -> Parts:
    model = nn.Linear(6, 2)
    data = TensorDataset(torch.randn(16, 6), torch.randint(2, (16,)))
    loader = DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True)
    return Parts(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1), loader)


def seeded(make: Callable[[], Parts]) -> Parts:
    global GLOBAL_RNG
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    GLOBAL_RNG = np.random.default_rng(8)
    return make()


@pytest.mark.parametrize("make", [mlp, conv, lstm, own_generators, parameters_of_the_loss])
def test_training_goes_on_as_if_nothing_had_been(make: Callable[[], Parts]) -> None:
    plain = seeded(make)
    expected = plain.train(7) + plain.train(9)

    parts = seeded(make)
    losses = parts.train(7)
    outcomes = parts.context().run([Variant(str(n), changes) for n, changes in enumerate(VARIANTS)], 12)
    assert [outcome.status for outcome in outcomes] == ["stopped"] * len(VARIANTS), outcomes
    assert losses + parts.train(9) == expected
    assert _state(parts) == _state(plain)


def _state(parts: Parts) -> list[bytes]:
    tensors = [*parts.model.state_dict().values()]
    tensors += [value for state in parts.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return [tensor.numpy().tobytes() for tensor in tensors] + [repr(parts.scheduler.state_dict()).encode()]


def test_a_pass_over_kept_workers_goes_on() -> None:
    expected: list[float] = []
    seen: list[float] = []
    for values, experiment in ((expected, False), (seen, True)):
        parts = seeded(kept_workers)
        for number, (inputs, _) in enumerate(parts.loader):
            values.append(inputs.sum().item())
            if number == 1 and experiment:
                assert parts.context().run([Variant("a")], 3)[0].status == "stopped"
    assert seen == expected


def test_an_interrupted_trial_is_undone_too() -> None:
    parts = seeded(mlp)
    before = copy.deepcopy(parts.model.state_dict())
    real, calls = parts.loss_fn, []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(output, target)

    parts.loss_fn = loss
    with pytest.raises(KeyboardInterrupt):
        parts.context().run([Variant("a", (FreezeBatch(), NoDropout()))], 5)
    after = parts.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.nn.functional.dropout(torch.ones(100)).eq(0).any(), "dropout must be back"


def test_pending_gradients_stay() -> None:
    parts = seeded(mlp)
    inputs, target = next(iter(parts.loader))
    parts.loss_fn(parts.model(inputs), target).backward()
    gradients = [(parameter.grad, parameter.grad.clone()) for parameter in parts.model.parameters()]
    parts.context().run([Variant("a")], 5)
    for parameter, (tensor, value) in zip(parts.model.parameters(), gradients, strict=True):
        assert parameter.grad is tensor
        assert torch.equal(tensor, value)


def test_the_same_seed_repeats_and_another_differs() -> None:
    for make in (mlp, conv, own_generators):
        context = seeded(make).context()
        one, again, other = (
            context.run([Variant(name, (seed,), every)], 8)[0].curve.losses
            for name, seed, every in (("a", Seed(0), None), ("b", Seed(0), 1), ("c", Seed(1), None))
        )
        assert one == again
        assert one != other
        assert len(other) == 8


class Stream:
    """Any iterable will do."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for _ in range(3):
            yield {"x": torch.randn(5, 4)}


class WithLoss(nn.Module):
    """Returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        x.mul_(1.0)
        return {"loss": ((self.layer(x) - x) ** 2).mean(), "logits": x}


def test_a_batch_is_frozen_whatever_the_loader() -> None:
    model, stream = WithLoss(), Stream()
    context = ObjectContext(model, None, torch.optim.Adam(model.parameters(), 0.05), stream)
    (outcome,) = context.run([Variant("a", (FreezeBatch(),))], 60)
    losses = outcome.curve.finite
    assert losses[-1] < 0.05 * losses[0]
    assert all(later < earlier for earlier, later in itertools.pairwise(losses[:10]))
    assert stream.passes == 0, "what the trial counted is taken back"
    assert outcome.notes["loader"] is True


def test_lbfgs_is_given_its_closure_and_keeps_its_history() -> None:
    assert _lbfgs(experiment=True) == _lbfgs(experiment=False)


def _lbfgs(experiment: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    batch = (torch.randn(16, 4), torch.randn(16, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(4)]
    if experiment:
        (outcome,) = ObjectContext(model, nn.MSELoss(), optimizer, [batch]).run([Variant("a")], 6)
        assert outcome.status == "stopped"
        assert len(outcome.curve.losses) == 6
        assert outcome.curve.finite[-1] < outcome.curve.finite[0]
    return losses + [optimizer.step(closure).item() for _ in range(4)]


def test_the_record_of_a_trial_can_be_judged() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Softmax(1))
    batches = [(torch.randn(16, 4), torch.randint(8, (16,))) for _ in range(3)]
    context = ObjectContext(model, nn.functional.cross_entropy, torch.optim.Adam(model.parameters()), batches)
    (outcome,) = context.run([Variant("a")], 30)
    codes = [diagnosis.lead.code for diagnosis in judge(record=outcome.record()).diagnoses]
    assert codes[0] == "O12"


def test_a_model_left_in_evaluation_is_trained_and_left_there() -> None:
    parts = seeded(conv)
    parts.model.eval()
    (outcome,) = parts.context().run([Variant("a")], 6)
    assert outcome.status == "stopped"
    assert not any(module.training for module in parts.model.modules())


def test_what_cannot_be_trained_is_said() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batch = (torch.randn(3, 4), torch.randn(3, 1))
    with pytest.raises(ValueError, match="only once"):
        ObjectContext(model, nn.MSELoss(), optimizer, iter([batch]))
    with pytest.raises(ValueError, match="only once"):
        ObjectContext(model, nn.MSELoss(), optimizer, (batch for _ in range(3)))
    with pytest.raises(TypeError, match="loader must give batches"):
        ObjectContext(model, nn.MSELoss(), optimizer, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim"):
        ObjectContext(model, nn.MSELoss(), None, [batch])  # type: ignore[arg-type]
    (empty,) = ObjectContext(model, nn.MSELoss(), optimizer, []).run([Variant("a")], 3)
    assert (empty.status, empty.reason) == ("failed", "the loader gave no batch")
    (three,) = ObjectContext(model, nn.MSELoss(), optimizer, [(*batch, batch)]).run([Variant("a")], 3)
    assert three.status == "crashed"
    assert "batch must be (inputs, target)" in three.reason
    (script,) = ObjectContext(model, nn.MSELoss(), optimizer, [batch]).run([Variant("a", (EditSource(()),))], 3)
    assert script.status == "crashed"
    assert "these are objects" in script.reason


def test_a_trial_ends_in_time() -> None:
    parts = seeded(mlp)
    (outcome,) = parts.context().runner.run([Variant("a")], 0.2, lambda variant, folder: None)
    assert outcome.status == "killed"
    assert outcome.seconds < 2
