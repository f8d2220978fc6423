"""After `unstuck.check` everything is what it was, bit by bit, also when the user's code raises."""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest

import unstuck

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
nn = torch.nn

X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


class Noisy(nn.Module):
    """BatchNorm, dropout, tied weights, a frozen part, attributes that forward writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 3)
        self.calls = 0
        self.history: list[int] = []
        self.plain = torch.zeros(3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.fails_in_eval = False
        self.fails = False

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.history.append(self.calls)
        self.plain += 1
        self.seen += 1
        self.last = x
        self.drawn = random.random() + numpy.random.rand()
        if self.fails or (self.fails_in_eval and not self.training):
            raise RuntimeError("on purpose")
        x = self.dropout(self.norm(self.second(self.first(x)).relu()))
        return self.head(self.frozen(x + 0.1 * torch.randn_like(x)))


def bits(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().reshape(-1).view(torch.uint8).tolist()


def attributes(module: Any) -> dict[str, object]:
    plain = {name: value for name, value in vars(module).items() if isinstance(value, int | bool)}
    return plain | {"names": list(vars(module)), "history": list(getattr(module, "history", []))}


def everything(model: Any, *optimizers: Any) -> list[object]:
    states = [
        [(id(key), name, bits(item) if torch.is_tensor(item) else item) for name, item in kept.items()]
        for optimizer in optimizers
        for key, kept in optimizer.state.items()
    ]
    groups = [
        {name: item if name != "params" else [id(p) for p in item] for name, item in group.items()}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    return [
        [(name, id(tensor), bits(tensor)) for name, tensor in (*model.named_parameters(), *model.named_buffers())],
        [(id(p.grad), bits(p.grad), p.requires_grad, p._version) for p in model.parameters()],
        [attributes(module) for module in model.modules()],
        bits(getattr(model, "plain", None)),
        (states, groups, [sorted(vars(optimizer)) for optimizer in optimizers]),
        (torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())),
    ]


def trained(make: Any = torch.optim.AdamW, **options: Any) -> tuple[Any, Any]:
    """In the middle of a training: moments, a gradient for some, a stale one for a frozen parameter."""
    torch.manual_seed(0)
    model = Noisy()
    optimizer = make(model.parameters(), **{"lr": 0.1} | options)
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()
    model.first.weight.grad = None
    model.frozen.bias.grad = torch.full((6,), -0.0)
    model.norm.eval()
    return model, optimizer


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"amsgrad": True, "foreach": False}),
        (torch.optim.RMSprop, {"momentum": 0.5}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_in_the_middle_of_a_training(make: Any, options: dict[str, Any]) -> None:
    model, optimizer = trained(make, **options)
    before = everything(model, optimizer)
    unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
    assert everything(model, optimizer) == before


def test_an_optimizer_that_never_stepped_has_no_state_afterwards() -> None:
    model = Noisy()
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = everything(model, optimizer)
    unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
    assert everything(model, optimizer) == before
    assert not optimizer.state
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before"):
        schedule.step()  # torch still knows that no step was taken


@pytest.mark.parametrize("attribute", ["fails", "fails_in_eval"])
def test_also_when_the_model_raises(attribute: str) -> None:
    model, optimizer = trained()
    setattr(model, attribute, True)
    before = everything(model, optimizer)
    if attribute == "fails":
        with pytest.raises(RuntimeError, match="on purpose"):
            unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
    else:
        assert unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y)) is not None
    assert everything(model, optimizer) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_also_when_the_loss_raises(error: type[BaseException]) -> None:
    model, optimizer = trained()
    before = everything(model, optimizer)

    def loss_fn(output: Any, target: Any) -> Any:
        raise error

    with pytest.raises(error):
        unstuck.check(model, loss_fn, optimizer, (X, Y))
    assert everything(model, optimizer) == before


def test_the_next_steps_are_those_without_a_check() -> None:
    outcomes = []
    for look in (False, True):
        model, optimizer = trained()
        if look:
            unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
        outcomes.append([bits(parameter) for parameter in model.parameters()])
    assert outcomes[0] == outcomes[1]


def test_a_graph_from_before_is_still_good() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    loss = nn.functional.cross_entropy(model(X), Y)
    unstuck.check(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), (X, Y))
    loss.backward()
    assert model[0].weight.grad is not None


def test_hooks_stay_and_those_of_the_optimizer_do_not_run() -> None:
    model, optimizer = trained()
    ran: list[str] = []
    model.head.register_forward_hook(lambda *_: ran.append("forward"))
    model.head.weight.register_hook(lambda gradient: ran.append("backward"))
    optimizer.register_step_post_hook(lambda *_: ran.append("step"))
    hooks = dict(model.head._forward_hooks)
    unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
    assert dict(model.head._forward_hooks) == hooks
    assert "step" not in ran
    assert {"forward", "backward"} <= set(ran)


def test_gradients_of_layers_that_are_no_part_of_the_model_are_restored_too() -> None:
    other = nn.Linear(3, 3)
    other(torch.ones(1, 3)).sum().backward()
    before = bits(other.weight.grad)
    model = nn.Linear(6, 3)
    unstuck.check(model, lambda out, y: nn.functional.cross_entropy(other(out), y), None, (X, Y))
    assert bits(other.weight.grad) == before


def test_a_lazy_model_is_refused_before_anything_is_touched() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet.*call the model on a batch first"):
        unstuck.check(model, nn.CrossEntropyLoss(), None, (X, Y))
    assert nn.parameter.is_lazy(model[0].weight)
    assert unstuck.check(model).ok


def test_the_batch_is_not_changed() -> None:
    model, optimizer = trained()
    tokens = torch.randint(0, 9, (4, 8))
    inputs, targets, x = tokens.clone(), tokens.clone(), X.clone()
    unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (x, Y))
    embed = nn.Sequential(nn.Embedding(9, 9))
    unstuck.check(embed, lambda out, y: nn.functional.cross_entropy(out.transpose(1, 2), y), None, (inputs, targets))
    assert torch.equal(x, X)
    assert torch.equal(inputs, tokens)
    assert torch.equal(targets, tokens)


@pytest.fixture
def process_group() -> Any:
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(os.name == "nt", reason="gloo")
def test_wrapped_in_distributed_data_parallel(process_group: Any) -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)))
    optimizer = torch.optim.Adam(model.parameters())
    before = everything(model.module, optimizer)
    report = unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
    assert everything(model.module, optimizer) == before
    assert report.diagnoses == ()
    loss = nn.functional.cross_entropy(model(X), Y)
    loss.backward()  # the reducer is ready for a pass of the user's own
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_copy_is_not_needed() -> None:
    """A model that cannot be copied is checked all the same."""
    model, optimizer = trained()
    model.lock = __import__("threading").Lock()
    with pytest.raises(TypeError):
        copy.deepcopy(model)
    before = everything(model, optimizer)
    unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (X, Y))
    assert everything(model, optimizer) == before
