"""A watched run ends in the same bits as an unwatched one."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings import ALL, HOWS, MODELS, OPTIMIZERS, STEPS, Way, few_with_all_pairs, train

from unstuck.capture import watching
from unstuck.record import read


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(inplace=True), nn.Linear(16, 3)), torch.randn(20, 12)


def convolution() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(4 * 36, 3)
    )
    return model, torch.randn(20, 1, 8, 8)


def compare(folder: Path, way: Way, steps: int, backend: str) -> None:
    bare = train(way, steps, backend)
    with warnings.catch_warnings(), watching(folder):
        warnings.filterwarnings("error", message=".*global hooks.*")
        watched = train(way, steps, backend)
    for name in bare:
        assert watched[name] == bare[name], name
    record = read(folder)
    assert record.ended is not None
    # A scaler that begins too high leaves out the first steps.
    assert steps - 10 <= record.ended.steps <= steps
    assert not record.notes


FAST = few_with_all_pairs(ALL)


@pytest.mark.parametrize("way", FAST, ids=str)
def test_bit_for_bit(tmp_path: Path, way: Way):
    compare(tmp_path / "run", way, 75, "eager")  # the first 50 are recorded, then some


@pytest.mark.slow
@pytest.mark.parametrize("way", ALL, ids=str)
def test_bit_for_bit_in_every_way(tmp_path: Path, way: Way):
    compare(tmp_path / "run", way, STEPS, "aot_eager")


def test_every_pair_is_tried():
    for first, second in itertools.combinations(range(3), 2):
        assert {(way[first], way[second]) for way in ALL} == {(way[first], way[second]) for way in FAST}
    assert {way.how for way in ALL} == set(HOWS)
    assert {way.model for way in ALL} == set(MODELS)
    assert {way.optimizer for way in ALL} == set(OPTIMIZERS)


def test_a_difference_would_be_seen():
    way = Way("mlp", "sgd", "eager")
    one = train(way, 3)
    torch.manual_seed(0)
    assert one == train(way, 3)
    longer = train(way, 4)
    assert [name for name in one if one[name] == longer[name]] == ["scaler", "attributes"]


def scaled() -> list[object]:
    model, inputs = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=2)
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [p.tolist() for p in model.parameters()] + [scaler.get_scale()]


def recomputed() -> list[object]:
    model, inputs = convolution()
    for reentrant in (True, False):
        checkpoint(model, inputs.requires_grad_(), use_reentrant=reentrant).square().mean().backward()
    return [p.grad.tolist() for p in model.parameters()]


def second_order() -> list[object]:
    model, inputs = perceptron()
    loss = model(inputs.requires_grad_()).square().mean()
    (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
    slope.square().sum().backward()
    return [p.grad.tolist() for p in model.parameters() if p.grad is not None]


def transformed() -> list[object]:
    model, inputs = perceptron()
    parameters = dict(model.named_parameters())

    def loss(values, row):
        return nn.functional.mse_loss(torch.func.functional_call(model, values, (row,)), torch.zeros(3))

    model[1].inplace = False
    slopes = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, inputs)
    return [slope.tolist() for slope in slopes.values()]


def traced() -> list[object]:
    model, inputs = perceptron()
    script = torch.jit.trace(model, inputs)
    scripted = torch.jit.script(model)
    return [script.graph_for(inputs).__str__().count("norm"), scripted(inputs).tolist()]


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.criterion(self.layer(inputs), labels)


def scripted_with_a_loss() -> list[object]:
    model = torch.jit.script(WithLoss())
    return [model(torch.ones(3, 12), torch.arange(3)).item(), str(model.criterion.graph)]


def under_a_dispatch_mode() -> list[object]:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Listing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    model, inputs = perceptron()
    with Listing():
        nn.functional.mse_loss(model(inputs), torch.zeros(20, 3)).backward()
    return list(seen)


def under_a_function_mode() -> list[object]:
    from torch.overrides import TorchFunctionMode

    seen: list[str] = []

    class Listing(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", "?"))
            return function(*args, **(kwargs or {}))

    model, inputs = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Listing():
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), torch.zeros(20, 3)).backward()
            optimizer.step()
    # Reading `p.grad` and shapes are properties, which our own code reads too; operations are what counts.
    return [name for name in seen if name not in ("__get__",)]


def backward_over_iterators() -> list[object]:
    model, inputs = perceptron()
    losses = [model(inputs).square().mean(), model(inputs).abs().mean()]
    torch.autograd.backward(loss for loss in losses)
    torch.autograd.backward(map(torch.mean, [model(inputs), model(inputs) ** 2]))
    torch.autograd.backward((model(inputs).mean(), model(inputs).sum()))
    return [p.grad.tolist() for p in model.parameters()]


def clipping_iterators() -> list[object]:
    model, inputs = perceptron()
    model(inputs).square().mean().backward()
    found = [nn.utils.clip_grad_norm_(itertools.chain(model.parameters(), ()), 0.1).item()]
    found.append(nn.utils.clip_grad_norm_(filter(None, []), 0.1).item())  # no warning: it is not a generator
    found.append(nn.utils.clip_grad_norm_((p for p in []), 0.1).item())
    return found + [p.grad.tolist() for p in model.parameters()]


def pickling_a_function() -> list[object]:
    function = nn.utils.clip_grad_norm_
    return [function is nn.utils.clip_grad.clip_grad_norm_, pickle.loads(pickle.dumps(function)) is function]


@pytest.mark.parametrize(
    "program",
    [
        backward_over_iterators,
        clipping_iterators,
        pickling_a_function,
        scaled,
        recomputed,
        second_order,
        transformed,
        traced,
        scripted_with_a_loss,
        under_a_dispatch_mode,
        under_a_function_mode,
    ],
    ids=lambda program: program.__name__,
)
def test_special_ways_to_train(tmp_path: Path, program):
    def run() -> tuple[object, list[str]]:
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = program()
        return result, [f"{warning.filename}:{warning.lineno} {warning.message}" for warning in caught]

    run()  # warnings torch gives only once
    bare = run()
    with watching(tmp_path / "run"):
        watched = run()
    assert watched == bare
    assert not read(tmp_path / "run").notes


def test_swapping_tensors_still_works(tmp_path: Path):
    """`swap_tensors` refuses tensors that anyone holds a weak reference to."""
    model, inputs = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watching(tmp_path / "run"), contextlib.ExitStack() as stack:
        model(inputs).sum().backward()
        optimizer.step()
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, False)
        optimizer.zero_grad()
        model.double()
    assert model[0].weight.dtype is torch.float64


class Warns(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for level in (1, 2, 3, 4):
            warnings.warn("look at this", stacklevel=level)
        return inputs


def test_warnings_about_the_callers_of_a_forward_name_the_same_lines(tmp_path: Path):
    def lines() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Warns()(torch.ones(2))
        return [(warning.filename, warning.lineno) for warning in caught]

    bare = lines()
    with watching(tmp_path / "run"):
        assert lines() == bare
