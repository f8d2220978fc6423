"""Several optimizers, several managers, and parameters out of the ordinary."""

from __future__ import annotations

import pytest
import torch
from gradients.loops import data, small_model, weights
from torch import Tensor, nn
from torch.nn import functional

from unstuck import GradientManager
from unstuck.gradients import ClipNorm, MisuseError

INPUTS, LABELS = data(12)
PARTS = [slice(0, 4), slice(4, 8), slice(8, 12)]


def loss_of(model: nn.Module, part: slice = slice(None)) -> Tensor:
    return functional.cross_entropy(model(INPUTS[part]), LABELS[part])


def test_two_optimizers_for_one_loss() -> None:
    hand, model = small_model(), small_model()
    pairs = [
        [torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.AdamW(net[2].parameters(), lr=0.01)]
        for net in (hand, model)
    ]
    manager = GradientManager(model, pairs[1], clip=0.1, scaler=torch.amp.GradScaler("cpu"))
    for _ in range(3):
        loss_of(hand).backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.1)
        for optimizer in pairs[0]:
            optimizer.step()
            optimizer.zero_grad()
        manager.backward(loss_of(model))
        step = manager.step()
    assert torch.allclose(weights(hand), weights(model), atol=1e-6)
    assert step.lr == (0.1, 0.01)


def test_an_optimizer_whose_parameters_rest() -> None:
    model = small_model()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)]
    for scaler in (None, torch.amp.GradScaler("cpu")):
        manager = GradientManager(model, optimizers, scaler=scaler)
        manager.backward(model[0](INPUTS).square().mean())  # the head takes no part
        assert manager.step().updated


class Adversaries:
    """A generator and a critic, small enough to compare by hand."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.artist = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.artist_optimizer = torch.optim.Adam(self.artist.parameters(), lr=0.01)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.01)

    def judge(self, samples: Tensor, real: bool) -> Tensor:
        scores = self.critic(samples)
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_gan_with_a_manager_for_each(accumulate: int) -> None:
    """The artist's loss goes through the critic, whose window stays clean, open or not."""
    torch.manual_seed(1)
    noise, real = torch.randn(6, 4, 2), torch.randn(6, 4, 2) + 3
    hand, managed = Adversaries(), Adversaries()
    for start in range(0, 6, accumulate):
        rows = slice(start, start + accumulate)
        z, truth = noise[rows].flatten(0, 1), real[rows].flatten(0, 1)
        artist_loss = hand.judge(hand.artist(z), True)
        critic_loss = hand.judge(truth, True) + hand.judge(hand.artist(z).detach(), False)
        artist_gradients = torch.autograd.grad(artist_loss, [*hand.artist.parameters()])
        critic_gradients = torch.autograd.grad(critic_loss, [*hand.critic.parameters()])
        for parameter, gradient in zip(hand.artist.parameters(), artist_gradients, strict=True):
            parameter.grad = gradient
        for parameter, gradient in zip(hand.critic.parameters(), critic_gradients, strict=True):
            parameter.grad = gradient
        hand.artist_optimizer.step()
        hand.critic_optimizer.step()

    critic = GradientManager(managed.critic, managed.critic_optimizer, accumulate=accumulate)
    artist = GradientManager(managed.artist, managed.artist_optimizer, accumulate=accumulate)
    for index in critic.batches(artist.batches(range(6))):
        fake = managed.artist(noise[index])
        artist.backward(managed.judge(fake, True))
        critic.backward(managed.judge(real[index], True))
        critic.backward(managed.judge(fake.detach(), False))
        artist.step()
        critic.step()
    assert critic.steps == artist.steps == 6 // accumulate
    assert torch.allclose(weights(managed.artist), weights(hand.artist), atol=1e-5)
    assert torch.allclose(weights(managed.critic), weights(hand.critic), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*trainable parameters are in no optimizer")
def test_both_networks_may_be_parts_of_one_model() -> None:
    it = Adversaries()
    both = nn.ModuleDict({"artist": it.artist, "critic": it.critic})
    critic = GradientManager(both, it.critic_optimizer, accumulate=2)
    artist = GradientManager(both, it.artist_optimizer)
    for _ in critic.batches(artist.batches(range(2))):
        fake = it.artist(torch.randn(4, 2))
        critic.backward(it.judge(fake.detach(), False))
        critic.step()
        artist.backward(it.judge(fake, True))
        artist.step()  # which clears its own gradients, and not those of the critic's open window
    assert (critic.steps, artist.steps) == (1, 2)


def test_a_shared_loop_needs_a_known_length() -> None:
    it = Adversaries()
    critic = GradientManager(it.critic, it.critic_optimizer, accumulate=2)
    artist = GradientManager(it.artist, it.artist_optimizer, accumulate=2)
    loop = iter(critic.batches(artist.batches(iter(range(6)))))
    with pytest.raises(MisuseError, match="only over a loader of known length"):
        next(loop)


def test_frozen_parameters_and_groups_added_later() -> None:
    model = small_model()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    manager = GradientManager(model, optimizer, clip=ClipNorm(0.1, per="layer"))
    before = weights(model[0])
    manager.backward(loss_of(model))
    manager.step()
    assert torch.equal(weights(model[0]), before)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    manager.backward(loss_of(model))
    step = manager.step()
    assert step.lr == (0.1, 0.01)
    assert not torch.equal(weights(model[0]), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("clip", [None, 0.01, ClipNorm(0.01, per="layer")])
def test_sparse_gradients(clip: float | ClipNorm | None) -> None:
    """Rows that occur twice count once in the norm."""
    sparse, dense = (nn.Embedding(6, 3, sparse=kind) for kind in (True, False))
    dense.load_state_dict(sparse.state_dict())
    norms = []
    for model in (sparse, dense):
        manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2, clip=clip)
        for rows in manager.batches([torch.tensor([1, 1, 2]), torch.tensor([2, 5, 5])]):
            manager.backward(model(rows).square().sum())
            step = manager.step()
        norms.append(step.norm)
    assert norms[0] == pytest.approx(norms[1])
    assert torch.allclose(sparse.weight, dense.weight, atol=1e-7)


def test_complex_half_and_double_parameters_in_one_norm() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.waves = nn.Parameter(torch.tensor([3 + 4j, 0j]))
            self.halves = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
            self.doubles = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.idle = nn.Parameter(torch.ones(2))
            self.empty = nn.Parameter(torch.ones(0))

        def loss(self) -> Tensor:
            return (
                self.waves.abs().square().sum() / 2
                + self.halves.sum().double()
                + 2 * self.doubles.sum()
                + self.empty.sum()
            )

    model = Mixed()
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=1.0), clip=1.0)
    manager.backward(model.loss())
    step = manager.step()
    assert step.norm == pytest.approx((25 + 3 + 8) ** 0.5)
    assert step.norm_after == pytest.approx(1.0, rel=1e-4)
    assert torch.allclose(model.waves, torch.tensor([3 + 4j, 0j]) * (1 - 1 / 6), rtol=1e-4)


def test_half_precision_norms_do_not_overflow() -> None:
    parameter = nn.Parameter(torch.zeros(10_000, dtype=torch.float16))
    model = nn.ParameterList([parameter])
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    manager.backward((parameter * 1000).sum())
    assert manager.step().norm == pytest.approx(1e5, rel=1e-3)


@pytest.mark.parametrize("option", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_every_kind_of_adamw_under_a_scaler(option: dict[str, bool]) -> None:
    trained = []
    for managed in (False, True):
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **option)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        manager = GradientManager(model, optimizer, scaler=scaler, clip=0.1) if managed else None
        for _ in range(5):
            loss = 40 * loss_of(model)
            if manager:
                manager.backward(loss)
                manager.step()
                continue
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        trained.append(weights(model))
    assert torch.equal(*trained)


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=0.1))
    manager.backward(model.head(model.embed(torch.arange(5))).square().sum())
    assert model.embed.weight.grad is not None
    expected = float(model.embed.weight.grad.norm())
    assert manager.step().norm == pytest.approx(expected)
