"""Tensors of every kind are read, or named as unreadable in a note; none of them is an error of ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainings import bits

from unstuck.capture import watching
from unstuck.events import OptimizerStep, TensorGauges, TensorsNamed
from unstuck.record import Record, read


class Holder(nn.Module):
    """A module around any parameters, with any function of them as its output."""

    def __init__(self, function: Callable[..., object], **parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value, requires_grad=value.is_floating_point() or value.is_complex()))

    def forward(self, *inputs: object) -> object:
        return self.function(self, *inputs)


def descend(model: nn.Module, loss_of: Callable[[], Tensor], steps: int = 4, **options: object) -> list[object]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, **options)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(bits(loss))
    return [losses, [bits(p) for p in model.parameters() if p.layout is torch.strided and not p.is_meta]]


def sparse_gradients() -> object:
    model = nn.Embedding(6, 3, sparse=True)
    return descend(model, lambda: model(torch.tensor([1, 1, 4])).square().sum())


def sparse_inputs() -> object:
    rows = torch.eye(4).to_sparse()
    model = Holder(lambda self, inputs: torch.sparse.mm(inputs, self.weight), weight=torch.ones(4, 2))
    return descend(model, lambda: F.mse_loss(model(rows), torch.zeros(4, 2)))


def compressed_rows() -> object:
    rows = torch.eye(4).to_sparse_csr()
    model = Holder(lambda self, inputs: inputs @ self.weight, weight=torch.ones(4, 2))
    return descend(model, lambda: model(rows).square().sum())


def sparse_parameters() -> object:
    model = Holder(lambda self, x: torch.sparse.mm(self.weight, x), weight=torch.eye(3).to_sparse())
    return descend(model, lambda: model(torch.ones(3, 2)).square().sum())


def complex_numbers() -> object:
    model = nn.Linear(3, 2, dtype=torch.complex64)
    return descend(model, lambda: model(torch.ones(4, 3, dtype=torch.complex64)).abs().square().mean())


def complex_conjugates() -> object:
    model = Holder(lambda self, x: x @ self.weight.conj(), weight=torch.ones(3, 2, dtype=torch.complex128))
    return descend(model, lambda: model(torch.ones(4, 3, dtype=torch.complex128)).conj().abs().sum())


def eight_bits() -> object:
    scaled = torch.ones(3, 2).to(torch.float8_e4m3fn)
    model = Holder(lambda self, x: x @ self.weight.float() @ self.free, weight=scaled, free=torch.ones(2, 2))
    model.weight.requires_grad_(False)
    return descend(model, lambda: F.mse_loss(model(torch.ones(4, 3).to(torch.float8_e5m2).float()), torch.zeros(4, 2)))


def eight_bits_returned() -> object:
    model = Holder(lambda self, x: (x @ self.weight).to(torch.float8_e4m3fn), weight=torch.ones(3, 2))
    return descend(model, lambda: model(torch.ones(4, 3)).float().sum())


def quantized() -> object:
    table = torch.quantize_per_tensor(torch.randn(4, 3), 0.1, 0, torch.qint8)

    class Dequantizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", table)

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs

    layer, model = Dequantizer(), nn.Linear(3, 2)
    return descend(model, lambda: F.mse_loss(model(layer(table).dequantize()), torch.zeros(4, 2)))


def without_data() -> object:
    model = nn.Linear(3, 2, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(4, 3, device="meta")), torch.zeros(4, 2, device="meta")).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return tuple(model.weight.shape)


def partly_without_data() -> object:
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2, device="meta")])
    return descend(model, lambda: F.mse_loss(model[0](torch.ones(4, 3)), torch.zeros(4, 2)))


def fake() -> object:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
        optimizer.step()
        return tuple(model.weight.shape)


def empty_parameters() -> object:
    model = Holder(lambda self, x: x @ self.weight + self.none.sum(), weight=torch.ones(3, 2), none=torch.ones(0, 5))
    return descend(model, lambda: F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2)))


def only_empty_parameters() -> object:
    model = Holder(lambda self: self.none.sum(), none=torch.ones(0))
    return descend(model, lambda: model())


def empty_batches() -> object:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return descend(model, lambda: F.cross_entropy(model(torch.ones(0, 3)), torch.ones(0).long(), reduction="sum"))


def numbers_without_dimensions() -> object:
    model = Holder(lambda self, x: self.scale * x, scale=torch.tensor(2.0))
    return descend(model, lambda: F.mse_loss(model(torch.tensor(3.0)), torch.tensor(1.0)))


def losses_with_dimensions() -> object:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1), reduction="none").backward(torch.ones(4, 1))
        optimizer.step()
    return bits(model.weight)


def half_precision() -> object:
    model = nn.Linear(3, 2, dtype=torch.float16)  # torch 2.4 has no mse_loss for these
    return descend(model, lambda: (model(torch.ones(4, 3).half()) - torch.zeros(4, 2).half()).square().mean())


def doubles_beside_halves() -> object:
    model = nn.ModuleList([nn.Linear(3, 2, dtype=torch.bfloat16), nn.Linear(3, 2, dtype=torch.float64)])
    return descend(
        model, lambda: model[0](torch.ones(4, 3).bfloat16()).float().sum() + model[1](torch.ones(4, 3).double()).sum()
    )


def strides_of_every_kind() -> object:
    model = Holder(
        lambda self, x: (x @ self.turned @ self.wide[:, ::2]).sum() + self.spread.sum(),
        turned=torch.ones(40, 300).T,
        wide=torch.ones(40, 400),
        spread=torch.ones(1).expand(9000).clone().view(3, 3000)[:, ::3],
    )
    return descend(model, lambda: model(torch.ones(4, 300)))


def expanded_gradients() -> object:
    model = Holder(lambda self: self.weight.sum(), weight=torch.ones(100, 100))
    return descend(model, lambda: model())


def nested() -> object:
    model = nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return descend(model, lambda: model(rows).values().square().mean())


class Tagged(Tensor):
    """A subclass of the user's own."""


def subclasses() -> object:
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.ones(2, 3).as_subclass(Tagged))
    rows = torch.ones(4, 3).as_subclass(Tagged)
    return descend(model, lambda: F.mse_loss(model(rows), torch.zeros(4, 2)).as_subclass(Tensor))


def transformed_gradients() -> object:
    model = nn.Linear(3, 2)
    values = {name: p.detach() for name, p in model.named_parameters()}

    def loss(given: dict[str, Tensor], row: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, given, (row,)), torch.zeros(2))

    rows = torch.ones(4, 3)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(values, rows)
    slope = torch.func.grad(lambda given: torch.func.vmap(loss, (None, 0))(given, rows).mean())(values)
    forward = torch.func.jvp(lambda row: loss(values, row), (rows[0],), (rows[0],))
    curve = torch.func.hessian(loss)(values, rows[0])["bias"]["bias"]
    return bits([each, slope, list(forward), curve])


def a_step_inside_a_transform() -> object:
    model = nn.Linear(3, 2)

    def through(rows: Tensor) -> Tensor:
        model.train()
        model.zero_grad()
        return F.softmax(model(rows), -1).sum(-1)

    return bits(torch.func.vmap(through)(torch.ones(4, 2, 3)))


def odd_outputs() -> object:
    model = Holder(lambda self, x: {"a": [(x @ self.weight).sum(), None, "text"], 3: (1, {2.5})}, weight=torch.ones(3))
    return descend(model, lambda: model(torch.ones(3))["a"][0])


def lazy_parameters() -> object:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
        optimizer.step()
    return bits(list(model.parameters()))


def inference_tensors() -> object:
    model = nn.Linear(3, 2)
    with torch.inference_mode():
        outputs = model(torch.ones(4, 3))
        F.cross_entropy(outputs, torch.zeros(4).long())
    return descend(model, lambda: F.mse_loss(model(outputs[:, [0, 1, 1]].clone()), torch.zeros(4, 2)))


READABLE = [
    sparse_gradients,
    sparse_inputs,
    compressed_rows,
    complex_numbers,
    complex_conjugates,
    eight_bits,
    eight_bits_returned,
    quantized,
    empty_parameters,
    only_empty_parameters,
    empty_batches,
    numbers_without_dimensions,
    losses_with_dimensions,
    half_precision,
    doubles_beside_halves,
    strides_of_every_kind,
    expanded_gradients,
    nested,
    odd_outputs,
    lazy_parameters,
    inference_tensors,
    sparse_parameters,
]
NOT_MEASURED = [transformed_gradients, a_step_inside_a_transform, fake]
UNREADABLE = {without_data: "weight", partly_without_data: "a parameter", subclasses: "weight"}


def same_and_recorded(program: Callable[[], object], folder: Path) -> Record:
    torch.manual_seed(0)
    bare = program()
    torch.manual_seed(0)
    with watching(folder):
        watched = program()
    assert watched == bare
    return read(folder)


@pytest.mark.parametrize("program", READABLE, ids=lambda program: program.__name__)
def test_read_like_any_other(tmp_path: Path, program):
    record = same_and_recorded(program, tmp_path / "run")
    assert [note.text for note in record.notes] == []
    assert len(list(record.of(OptimizerStep))) >= 3
    gauges = list(record.of(TensorGauges))
    assert gauges or program is only_empty_parameters
    assert all(len(gauge.weight_norm) == len(named.names) for gauge in gauges for named in record.of(TensorsNamed))


@pytest.mark.parametrize("program", NOT_MEASURED, ids=lambda program: program.__name__)
def test_left_alone_where_measuring_would_be_seen(tmp_path: Path, program):
    assert not same_and_recorded(program, tmp_path / "run").notes


@pytest.mark.parametrize("program", UNREADABLE, ids=lambda program: program.__name__)
def test_named_in_a_note_where_nothing_can_be_read(tmp_path: Path, program):
    notes = [note.text for note in same_and_recorded(program, tmp_path / "run").notes]
    assert len(notes) == 1
    assert UNREADABLE[program] in notes[0]


@pytest.fixture
def one_rank() -> Iterator[None]:
    from torch import distributed

    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_distributed_tensors_are_read_shard_by_shard(tmp_path: Path):
    from torch.distributed.device_mesh import init_device_mesh

    tensor = pytest.importorskip("torch.distributed.tensor")
    if not hasattr(tensor, "Shard"):
        pytest.skip("distributed tensors have no public names in this torch")
    Shard, distribute_module, distribute_tensor = tensor.Shard, tensor.distribute_module, tensor.distribute_tensor

    mesh = init_device_mesh("cpu", (1,))

    def shard(name: str, module: nn.Module, mesh: object) -> None:
        for key, value in list(module._parameters.items()):
            if value is not None:
                module.register_parameter(key, nn.Parameter(distribute_tensor(value.data, mesh, [Shard(0)])))

    def program() -> object:
        model = distribute_module(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), mesh, shard)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [bits(parameter.full_tensor()) for parameter in model.parameters()]

    record = same_and_recorded(program, tmp_path / "run")
    assert not record.notes
    assert all(norm is not None and norm > 0 for gauge in record.of(TensorGauges) for norm in gauge.weight_norm[:1])
