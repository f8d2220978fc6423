"""What a step does and says: order, clipping, noise, schedule, facts."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from gradients.loops import data, optimizer_of, parts_of, small_model, weights
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, IterableDataset

from unstuck import GradientManager
from unstuck.gradients import Clip, ClipAdaptive, ClipNorm, ClipValue, others, suggest_max_norm

INPUTS, LABELS = data(12)
PARTS = parts_of(12, [4, 4, 4])


def loss_of(model: nn.Module, part: slice = slice(None), size: float = 1.0) -> Tensor:
    return size * functional.cross_entropy(model(INPUTS[part]), LABELS[part])


def gradient_used(clip: float | Clip | ClipValue | None, size: float = 1.0, **options: object) -> list[Tensor]:
    """What plain SGD with a learning rate of 1 was given, from how the weights moved."""
    model = small_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=1.0), clip=clip, **options)  # type: ignore[arg-type]
    manager.backward(loss_of(model, size=size))
    manager.step()
    return [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def test_the_facts_of_a_step() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}], lr=0.1
    )
    manager = GradientManager(
        model, optimizer, accumulate=2, clip=0.05, scaler=torch.amp.GradScaler("cpu", init_scale=8.0)
    )
    steps = []
    for part in manager.batches(PARTS):
        manager.backward(loss_of(model, part), count=4)
        steps.append(manager.step())
    waiting, full, rest = steps
    assert (waiting.updated, waiting.skipped, waiting.micro_steps, waiting.norm, waiting.clipped) == (
        False,
        False,
        1,
        None,
        False,
    )
    assert (full.updated, full.index, full.micro_steps, full.items, full.lr) == (True, 1, 2, 8, (0.1, 0.5))
    assert full.norm is not None
    assert full.norm > 0.05
    assert full.norm_after == pytest.approx(0.05, rel=1e-3)
    assert (full.clipped, full.limit, full.scale) == (True, 0.05, 8.0)
    assert (rest.updated, rest.index, rest.micro_steps, rest.items) == (True, 2, 1, 4)
    assert manager.last is rest
    assert repr(waiting) == "<window of step 1: 1 micro-step so far>"
    assert repr(full) == f"<step 1: gradient norm {full.norm:.4g}, clipped to 0.05, 2 micro-steps, 8 items>"


def test_gradients_are_gone_after_a_step() -> None:
    model = small_model()
    manager = GradientManager(model, optimizer_of("sgd", model))
    manager.backward(loss_of(model))
    manager.step()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_global_norm_is_what_torch_does() -> None:
    for size in (0.001, 1.0, 1000.0):
        model = small_model()
        loss_of(model, size=size).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        expected = [parameter.grad for parameter in model.parameters()]
        given = gradient_used(0.1, size)
        assert torch.allclose(flat(given), flat([g for g in expected if g is not None]), rtol=1e-5, atol=1e-6)


def test_each_layer_on_its_own() -> None:
    plain = gradient_used(None)
    limit = float(flat(plain[2:]).norm()) / 2
    clipped = gradient_used(ClipNorm(limit, per="layer"))
    assert flat(clipped[2:]).norm() == pytest.approx(limit, rel=1e-4)
    first = min(1.0, limit / float(flat(plain[:2]).norm()))
    assert torch.allclose(flat(clipped[:2]), flat(plain[:2]) * first, rtol=1e-4, atol=1e-7)


def test_each_group_on_its_own_limit() -> None:
    model = small_model()
    groups = [{"params": [*model[0].parameters()]}, {"params": [*model[2].parameters()]}]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    manager = GradientManager(model, torch.optim.SGD(groups, lr=1.0), clip=ClipNorm([0.01, 0.02], per="group"))
    manager.backward(loss_of(model))
    step = manager.step()
    moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    assert flat(moved[:2]).norm() == pytest.approx(0.01, rel=1e-2)
    assert flat(moved[2:]).norm() == pytest.approx(0.02, rel=1e-2)
    assert step.norm_after == pytest.approx(math.hypot(0.01, 0.02), rel=1e-3)
    manager.optimizers[0].add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    manager.backward(loss_of(model))
    manager.step()  # the new group has no gradient, so its missing limit does not matter yet


def test_by_value_warns_and_turns_the_gradient() -> None:
    with pytest.warns(UserWarning, match="ClipValue changes the direction"):
        clip = ClipValue(0.01)
    plain, clipped = flat(gradient_used(None)), flat(gradient_used(clip))
    assert float(clipped.abs().max()) == pytest.approx(0.01, rel=1e-3)
    assert functional.cosine_similarity(plain, clipped, dim=0) < 0.99
    assert functional.cosine_similarity(plain, flat(gradient_used(0.01)), dim=0) > 0.9999


def test_adaptive_learns_what_is_ordinary() -> None:
    model = small_model()
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=1e-6), clip=ClipAdaptive(0.9, warmup=10))
    for _ in range(15):
        manager.backward(loss_of(model))
        ordinary = manager.step()
    manager.backward(loss_of(model, size=50.0))
    spike = manager.step()
    assert spike.clipped
    assert spike.norm_after == pytest.approx(ordinary.norm, rel=1e-2)
    assert spike.limit == pytest.approx(ordinary.norm, rel=1e-2)


def test_adaptive_passes_over_what_is_not_finite() -> None:
    clip = ClipAdaptive(0.5, warmup=2)
    none = lambda: pytest.fail("a global clip asks for no places")  # noqa: E731
    for value in (1.0, math.nan, 3.0, math.inf, 2.0):
        clip.factor(torch.ones(1), torch.tensor(value), None, none)
    clip.factor(torch.ones(1), torch.tensor(100.0), None, none)
    assert float(clip.limit) == 2.0  # type: ignore[arg-type]


def test_noise_comes_before_the_clip_and_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    plain, noisy = flat(gradient_used(None)), flat(gradient_used(None, noise=0.1))
    assert torch.equal(torch.rand(3), expected)
    assert float((noisy - plain).std()) == pytest.approx(0.1, rel=0.25)
    assert torch.equal(noisy, flat(gradient_used(None, noise=lambda step: 0.1 / (1 + step))))
    assert not torch.equal(noisy, flat(gradient_used(None, noise=0.1, noise_seed=1)))
    assert float(flat(gradient_used(0.01, noise=10.0)).norm()) == pytest.approx(0.01, rel=1e-2)
    with pytest.raises(ValueError, match="at least 0"):
        gradient_used(None, noise=-1.0)


def test_the_scheduler_is_stepped_once_per_optimizer_step() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    manager = GradientManager(model, optimizer, accumulate=2, scheduler=scheduler)
    rates = []
    for _ in range(2):
        for part in manager.batches(PARTS):
            manager.backward(loss_of(model, part, 1e-3))
            step = manager.step()
            rates += step.lr if step.updated else []
    assert rates == [1, 1 / 2, 1 / 3, 1 / 4]


def test_a_stream_of_unknown_length() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(range(5))

    for loader in ((n for n in range(5)), DataLoader(Stream(), batch_size=None), iter([0] * 5), {1, 2, 3, 4, 5}):
        model = small_model()
        manager = GradientManager(model, optimizer_of("sgd", model), accumulate=2)
        sizes = []
        for _ in manager.batches(loader):
            manager.backward(loss_of(model))
            step = manager.step()
            sizes += [step.micro_steps] if step.updated else []
        assert sizes == [2, 2, 1]


def test_nothing_is_drawn_ahead_where_it_need_not_be() -> None:
    model = small_model()
    drawn = []

    def draws():  # type: ignore[no-untyped-def]
        for n in range(3):
            drawn.append(n)
            yield n

    manager = GradientManager(model, optimizer_of("sgd", model))
    for n in manager.batches(draws()):
        assert drawn[-1] == n
        manager.backward(loss_of(model))
        manager.step()


def test_the_last_batch_may_be_passed_over() -> None:
    model = small_model()
    manager = GradientManager(model, optimizer_of("sgd", model), accumulate=4)
    for index in manager.batches(range(6)):
        if index == 5:
            continue
        manager.backward(loss_of(model))
        manager.step()
    assert manager.steps == 2
    assert manager.last is not None
    assert manager.last.micro_steps == 1


def test_batches_have_the_length_of_their_loader() -> None:
    model = small_model()
    manager = GradientManager(model, optimizer_of("sgd", model))
    assert len(manager.batches(range(7))) == 7
    with pytest.raises(TypeError, match="does not say how many"):
        len(manager.batches(n for n in range(7)))


class Reads(TorchDispatchMode):
    """Counts the values that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("clip", [None, 0.1, 100.0])
def test_one_value_is_read_per_step_and_none_per_micro_step(clip: float | None) -> None:
    model = small_model()
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=3, clip=clip)
    with Reads() as reads:
        for _ in manager.batches(range(6)):
            manager.backward(loss_of(model), count=torch.tensor(12))
            before = reads.count
            step = manager.step()
            assert reads.count - before == int(step.updated)


def test_nothing_at_all_is_read_when_non_finite_gradients_are_ignored() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = GradientManager(model, optimizer, accumulate=3, on_nonfinite="ignore")
    with Reads() as reads:
        for _ in manager.batches(range(5)):
            manager.backward(loss_of(model), count=torch.tensor(12))
            step = manager.step()
    assert reads.count == 0
    assert (step.updated, step.norm, step.items) == (True, None, 24)
    assert repr(step) == "<step 2, 2 micro-steps, 24 items>"


def test_a_manager_leaves_nothing_behind() -> None:
    model = small_model()
    manager = GradientManager(model, optimizer_of("sgd", model))
    manager.backward(loss_of(model))
    manager.step()
    del manager
    gc.collect()
    assert not any(live.model is model for live in others.managers())


def test_suggested_threshold() -> None:
    norms = [1.0 + 0.01 * n for n in range(95)] + [50.0] * 5 + [math.nan, None]
    assert suggest_max_norm(norms) == 2.0
    assert suggest_max_norm([0.1234]) == 0.13
    assert suggest_max_norm([3.0]) == 3.0
    assert suggest_max_norm([120.0, 1.0], quantile=1.0) == 120.0


def test_weights_do_not_depend_on_who_divides() -> None:
    """A window of one micro-batch is the plain loop, to the last bit."""
    hand, model = small_model(), small_model()
    optimizer = optimizer_of("adamw", hand)
    manager = GradientManager(model, optimizer_of("adamw", model), clip=0.1)
    for _ in range(5):
        loss_of(hand).backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        manager.backward(loss_of(model))
        manager.step()
    assert torch.equal(weights(hand), weights(model))
