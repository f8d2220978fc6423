"""R11: a run shows its first batch as the model received it, and predictions for batches that come again."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from unstuck.capture.vocabulary import looked_up
from unstuck.events import BatchShown, FiltersShown, Predicted
from unstuck.record import Record
from unstuck.report.seen import tables_of

Recorded = Callable[[Callable[[], object]], Record]

PICTURES = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = (PICTURES[:, 0, :4].mean((1, 2)) > PICTURES[:, 0, 4:].mean((1, 2))).long()


def convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


def training(
    model: nn.Module, batches: list[tuple[Tensor, Tensor]], after: Callable[[int], object] = lambda step: None
) -> Callable[[], None]:
    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step, (x, y) in enumerate(batches):
            model.train()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(step)

    return train


def test_pictures_are_shown_with_their_targets_and_the_filters_before_and_after(recorded: Recorded) -> None:
    model = convolutions()
    began = model[0].weight.detach().clone()
    record = recorded(training(model, [(PICTURES[:10], LABELS[:10]), (PICTURES[10:], LABELS[10:])] * 6))
    (shown,) = record.of(BatchShown)
    (tensor,) = shown.tensors
    assert (tensor.name, tensor.shape, tensor.form, len(tensor.drawn)) == ("input", (10, 1, 8, 8), "pictures", 10)
    assert tensor.low == pytest.approx(float(PICTURES[:10].min()), rel=1e-4)
    assert [one.target for one in tensor.drawn] == [str(label) for label in LABELS[:10].tolist()]
    assert tensor.drawn[3].pixels == bytes((PICTURES[3, 0] * 255).round().to(torch.uint8).reshape(-1).tolist())
    filters = list(record.of(FiltersShown))
    assert [event.step for event in filters] == [0, 10, 12]
    assert (filters[0].kind, filters[0].count, filters[0].moved) == ("Conv2d", 4, 0.0)
    moved = (model[0].weight.detach() - began).norm() / began.norm()
    assert filters[-1].moved == pytest.approx(float(moved), rel=1e-4)


class Spoils(nn.Module):
    """Changes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 2)

    def forward(self, images: Tensor, *, scale: Tensor | None = None) -> Tensor:
        images.zero_()
        return self.layer(images.flatten(1))


def test_it_is_shown_as_it_was_received_not_as_the_model_left_it(recorded: Recorded) -> None:
    (shown,) = recorded(training(Spoils(), [(PICTURES[:10].clone(), LABELS[:10])])).of(BatchShown)
    assert shown.tensors[0].high == pytest.approx(float(PICTURES[:10].max()), rel=1e-4)


def test_arguments_by_name_are_shown_too(recorded: Recorded) -> None:
    class Named(Spoils):
        def forward(self, images: Tensor, *, scale: Tensor | None = None) -> Tensor:
            return self.layer(images.flatten(1)) * scale

    model = Named()

    def train() -> None:
        model(images=PICTURES[:10], scale=torch.full((10, 1), 2.0)).sum().backward()

    (shown,) = recorded(train).of(BatchShown)
    assert [(one.name, one.form) for one in shown.tensors] == [("images", "pictures"), ("scale", "table")]


def evaluating(model: nn.Module, x: Callable[[], Tensor], y: Tensor) -> Callable[[int], None]:
    def evaluate(step: int) -> None:
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(x()), y)
                F.cross_entropy(model(torch.rand(8, 1, 8, 8)), y[:8])

    return evaluate


def test_what_is_predicted_for_the_first_batch_of_an_evaluation_is_kept(recorded: Recorded) -> None:
    model = convolutions()
    batches = [(torch.rand(10, 1, 8, 8), torch.randint(0, 2, (10,))) for _ in range(20)]
    record = recorded(training(model, batches, evaluating(model, lambda: PICTURES, LABELS)))
    told = list(record.of(Predicted))
    assert [event.step for event in told] == [5, 10, 15, 20]
    assert {(event.kind, event.classes, event.training_mode) for event in told} == {("class", 2, False)}
    assert told[0].targets == tuple(float(label) for label in LABELS[:32].tolist())
    assert told[-1].values == tuple(float(one) for one in model(PICTURES[:32]).argmax(1).tolist())
    (table,) = tables_of(record)
    assert table.dynamics is not None
    assert (table.dynamics.batch, len(table.dynamics.snapshots)) == ("the first batch of the evaluations", 4)
    assert table.target is not None
    assert sum(table.target.counts.values()) == 10 * table.target.batches


def test_a_batch_that_never_comes_again_tells_nothing(recorded: Recorded) -> None:
    model = convolutions()
    batches = [(torch.rand(10, 1, 8, 8), torch.randint(0, 2, (10,))) for _ in range(20)]
    record = recorded(training(model, batches, evaluating(model, lambda: torch.rand(40, 1, 8, 8), LABELS)))
    assert not list(record.of(Predicted))


def test_a_full_batch_comes_again_at_every_step(recorded: Recorded) -> None:
    record = recorded(training(convolutions(), [(PICTURES, LABELS)] * 12))
    told = list(record.of(Predicted))
    assert [event.step for event in told] == [0, 1, 2, 9]
    assert {(event.kind, event.training_mode, len(event.values)) for event in told} == {("class", True, 32)}


def test_outputs_too_large_to_keep_are_left_out(recorded: Recorded) -> None:
    model = nn.Linear(4, 2**18 + 1)

    def train() -> None:
        for _ in range(3):
            model(torch.ones(2, 4)).mean().backward()

    assert not list(recorded(train).of(Predicted))


def test_a_model_is_not_kept_alive(recorded: Recorded) -> None:
    gone = []

    def train() -> None:
        model = convolutions()
        training(model, [(PICTURES, LABELS)] * 3)()
        reference = weakref.ref(model)
        del model
        gc.collect()
        gone.append(reference() is None)

    record = recorded(train)
    assert gone == [True]
    assert len(list(record.of(FiltersShown))) == 1


def test_a_weight_that_is_computed_is_not_asked_for(recorded: Recorded) -> None:
    """Each look at a spectrally normalised weight in training moves its power iteration on."""

    def trained() -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = convolutions()
        parametrizations.spectral_norm(model[0])
        training(model, [(PICTURES, LABELS)] * 12)()
        return model.state_dict()

    alone = trained()
    states: list[dict[str, Tensor]] = []
    record = recorded(lambda: states.append(trained()))
    assert all(torch.equal(alone[name], states[0][name]) for name in alone)
    assert list(record.of(BatchShown))
    assert not list(record.of(FiltersShown))


def test_of_many_models_the_first_ones_are_shown(recorded: Recorded) -> None:
    def train() -> None:
        for _ in range(2):
            for model in models:
                model(torch.ones(2, 4)).mean().backward()

    models = [nn.Linear(4, 1) for _ in range(5)]
    assert len(list(recorded(train).of(BatchShown))) == 3


class Held:
    pass


def words_known(monkeypatch: pytest.MonkeyPatch, **names: object) -> None:
    for name, value in names.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)


LETTERS = "abcdefghijkl"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"itos": dict(enumerate(LETTERS))}, "bad"),
        ({"stoi": {letter: index for index, letter in enumerate(LETTERS)}}, "bad"),
        ({"vocab": [f"w{letter}" for letter in LETTERS]}, "wb wa wd"),
        ({"colours": [f"w{letter}" for letter in LETTERS]}, ""),
        ({"frequencies": {letter: 3 * index for index, letter in enumerate(LETTERS)}}, ""),
        ({"id2label": dict(enumerate(LETTERS))}, ""),
        ({"itos": dict(enumerate("abc"))}, ""),
    ],
)
def test_ids_are_read_with_a_table_of_words(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, object], text: str
) -> None:
    words_known(monkeypatch, **names)
    assert looked_up([1, 0, 3]) == text
    assert looked_up([1, 0, 99]) == ""


def test_a_table_may_be_held_by_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Held()
    data.__dict__["itos"] = dict(enumerate(LETTERS))
    words_known(monkeypatch, dataset=data)
    assert looked_up([1, 0, 3]) == "bad"


def test_no_function_of_the_program_is_called(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    def decode(ids: list[int]) -> str:
        raise AssertionError

    words_known(monkeypatch, decode=decode, itos=dict(enumerate(LETTERS)))
    model = nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(12, 2))
    (shown,) = recorded(training(model, [(torch.tensor([[1, 0, 3], [2, 2, 2]]), LABELS[:2])])).of(BatchShown)
    assert [one.text for one in shown.tensors[0].drawn] == ["bad", "ccc"]
