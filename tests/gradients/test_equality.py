"""Accumulated over micro-batches, the weights are those of one large batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients.loops import by_hand, data, optimizer_of, parts_of, small_model, weights, windows
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from unstuck import GradientManager

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=9)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=2e-6)


@given(SIZES, st.integers(1, 5), st.sampled_from(["sgd", "adamw"]), st.sampled_from([None, 0.05, 1.0]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_mean_over_examples(sizes: list[int], accumulate: int, kind: str, clip: float | None, scaled: bool) -> None:
    check_mean_over_examples(sizes, accumulate, kind, clip, scaled)


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clip", [None, 0.05, 1.0])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@given(st.lists(st.integers(1, 17), min_size=1, max_size=25), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_mean_over_examples_at_length(
    kind: str, clip: float | None, scaled: bool, sizes: list[int], accumulate: int
) -> None:
    check_mean_over_examples(sizes, accumulate, kind, clip, scaled)


def check_mean_over_examples(sizes: list[int], accumulate: int, kind: str, clip: float | None, scaled: bool) -> None:
    inputs, labels = data(sum(sizes))
    parts = parts_of(sum(sizes), sizes)
    hand, model = small_model(), small_model()
    norms = by_hand(hand, optimizer_of(kind, hand), inputs, labels, [*windows(parts, accumulate)], max_norm=clip)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12) if scaled else None
    manager = GradientManager(model, optimizer_of(kind, model), accumulate=accumulate, clip=clip, scaler=scaler)
    seen = []
    for part in manager.batches(parts):
        manager.backward(functional.cross_entropy(model(inputs[part]), labels[part]), count=part.stop - part.start)
        step = manager.step()
        seen += [step.norm] if step.updated else []
    assert close(weights(model), weights(hand))
    assert seen == pytest.approx(norms, rel=1e-4)


@given(SIZES, st.integers(1, 5), st.sampled_from(["sgd", "adamw"]))
@settings(max_examples=30, deadline=None)
def test_sum_over_examples(sizes: list[int], accumulate: int, kind: str) -> None:
    inputs, labels = data(sum(sizes))
    parts = parts_of(sum(sizes), sizes)
    hand, model = small_model(), small_model()
    by_hand(hand, optimizer_of(kind, hand), inputs, labels, [*windows(parts, accumulate)], reduction="sum")
    manager = GradientManager(model, optimizer_of(kind, model), accumulate=accumulate, reduction="sum")
    for part in manager.batches(parts):
        manager.backward(functional.cross_entropy(model(inputs[part]), labels[part], reduction="sum"))
        manager.step()
    assert close(weights(model), weights(hand))


@given(
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=8),
    st.integers(1, 4),
    st.sampled_from(["mean", "sum"]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_per_token_with_any_padding(valid: list[list[bool]], accumulate: int, reduction: Any, on_device: bool) -> None:
    """Micro-batches of four tokens of which any may be padding: also all of them."""
    inputs, labels = data(4 * len(valid))
    labels[~torch.tensor(valid).flatten()] = -100
    parts = parts_of(len(labels), [4] * len(valid))
    large = [part for part in windows(parts, accumulate) if (labels[part] >= 0).any()]
    hand, model = small_model(), small_model()
    by_hand(hand, torch.optim.SGD(hand.parameters(), lr=0.1), inputs, labels, large)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    manager = GradientManager(model, optimizer, accumulate=accumulate, reduction=reduction)
    for part in manager.batches(parts):
        loss = functional.cross_entropy(model(inputs[part]), labels[part], reduction=reduction)
        if reduction == "mean" and not (labels[part] >= 0).any() and accumulate == 1:
            continue  # a window of nothing has no mean
        tokens = (labels[part] != -100).sum()
        manager.backward(loss, count=tokens if on_device else int(tokens))
        manager.step()
    assert close(weights(model), weights(hand))


def test_the_mean_of_means_would_be_wrong() -> None:
    """The premise of counting: unequal micro-batches, averaged without their counts, train other weights."""
    inputs, labels = data(7)
    parts = parts_of(7, [6, 1])
    hand, model = small_model(), small_model()
    by_hand(hand, optimizer_of("sgd", hand), inputs, labels, [slice(0, 7)])
    manager = GradientManager(model, optimizer_of("sgd", model), accumulate=2)
    for part in manager.batches(parts):
        manager.backward(functional.cross_entropy(model(inputs[part]), labels[part]))
        manager.step()
    assert not close(weights(model), weights(hand))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_a_dataloader_tells_the_size_of_its_last_batch(accumulate: int, drop_last: bool) -> None:
    inputs, labels = data(23)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, drop_last=drop_last)
    sizes = [4, 4, 4, 4, 4] + [3] * (not drop_last)
    large = [*windows(parts_of(sum(sizes), sizes), accumulate)]
    hand, model = small_model(), small_model()
    by_hand(hand, optimizer_of("adamw", hand), inputs, labels, large * 3)
    manager = GradientManager(model, optimizer_of("adamw", model), accumulate=accumulate)
    items = []
    for _ in range(3):
        for x, y in manager.batches(loader):
            manager.backward(functional.cross_entropy(model(x), y))
            step = manager.step()
            items += [step.items] if step.updated else []
    assert close(weights(model), weights(hand))
    assert items == [part.stop - part.start for part in large] * 3


def test_losses_of_one_micro_step_add_up() -> None:
    inputs, labels = data(8)
    hand, model = small_model(), small_model()
    optimizer = optimizer_of("sgd", hand)
    (functional.cross_entropy(hand(inputs), labels) + 0.1 * hand(inputs).square().mean()).backward()
    optimizer.step()
    manager = GradientManager(model, optimizer_of("sgd", model), accumulate=2)
    for part in manager.batches([slice(0, 4), slice(4, 8)]):
        manager.backward(functional.cross_entropy(model(inputs[part]), labels[part]), count=4)
        manager.backward(0.1 * model(inputs[part]).square().mean(), count=4)
        manager.step()
    assert close(weights(model), weights(hand))


def test_activation_checkpointing_changes_nothing() -> None:
    from torch.utils.checkpoint import checkpoint

    inputs, labels = data(12)
    trained = []
    for reentrant in (None, False, True):
        model = small_model()
        manager = GradientManager(model, optimizer_of("adamw", model), accumulate=3, clip=0.1)
        for part in manager.batches(parts_of(12, [4, 4, 4])):
            x = inputs[part].requires_grad_()
            scores = model(x) if reentrant is None else checkpoint(model, x, use_reentrant=reentrant)
            manager.backward(functional.cross_entropy(scores, labels[part]))
            manager.step()
        trained.append(weights(model))
    assert torch.equal(trained[0], trained[1])
    assert torch.equal(trained[0], trained[2])


def test_bfloat16_autocast_without_a_scaler() -> None:
    inputs, labels = data(12)
    trained = []
    for managed in (False, True):
        model = small_model()
        optimizer = optimizer_of("sgd", model)
        manager = GradientManager(model, optimizer, clip=0.1) if managed else None
        for part in parts_of(12, [4, 4, 4]):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(inputs[part]), labels[part])
            if manager:
                manager.backward(loss)
                manager.step()
            else:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        trained.append(weights(model))
    assert torch.equal(*trained)  # not only close: the same operations on the same numbers
