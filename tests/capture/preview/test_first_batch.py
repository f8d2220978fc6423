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
from torch.nn.utils import parametrizations, prune

from unstuck.events import BatchShown, FiltersShown, Predicted
from unstuck.findings.preview import previews_of
from unstuck.record import Record

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
    assert {(event.kind, event.training_mode) for event in told} == {("class", False)}
    assert told[0].targets == tuple(float(label) for label in LABELS[:32].tolist())
    assert told[-1].values == tuple(float(one) for one in model(PICTURES[:32]).argmax(1).tolist())
    (preview,) = previews_of(record)
    assert preview.dynamics is not None
    assert (preview.dynamics.batch, len(preview.dynamics.snapshots)) == ("the first batch of the evaluations", 4)
    assert preview.targets is not None
    assert sum(preview.targets.counts.values()) == 10 * preview.targets.batches


def test_an_evaluation_before_training_does_not_take_the_place_of_the_first_batch(recorded: Recorded) -> None:
    model = convolutions()

    def train() -> None:
        model.eval()
        with torch.no_grad():
            model(PICTURES)
        training(model, [(PICTURES[:10], LABELS[:10])])()

    (shown,) = recorded(train).of(BatchShown)
    assert shown.tensors[0].shape == (10, 1, 8, 8)


def test_a_dry_run_before_training_is_not_taken_for_the_first_batch(recorded: Recorded) -> None:
    model = convolutions()

    def train() -> None:
        model(torch.zeros(2, 1, 8, 8))
        training(model, [(PICTURES[:10], LABELS[:10])])()

    (shown,) = recorded(train).of(BatchShown)
    assert shown.tensors[0].shape == (10, 1, 8, 8)


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

    recorded(train)
    assert gone == [True]


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


def test_no_code_of_the_program_is_run(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    class Asked:
        @property
        def __dict__(self) -> dict[str, object]:  # type: ignore[override]
            raise AssertionError

        def __getattr__(self, name: str) -> object:
            raise AssertionError

    def decode(ids: list[int]) -> str:
        raise AssertionError

    for name, value in {"decode": decode, "asked": Asked(), "itos": dict(enumerate("abcdefghijkl"))}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    model = nn.Sequential(nn.Embedding(12, 4), nn.Flatten(), nn.Linear(12, 2))
    (shown,) = recorded(training(model, [(torch.tensor([[1, 0, 3], [2, 2, 2]]), LABELS[:2])])).of(BatchShown)
    assert [one.text for one in shown.tensors[0].drawn] == ["bad", "ccc"]


def targets_shown(record: Record) -> dict[str, list[str]]:
    return {event.model: [one.target for one in event.tensors[0].drawn] for event in record.of(BatchShown)}


def test_each_model_has_the_targets_that_its_own_output_was_compared_with(recorded: Recorded) -> None:
    class Noise(nn.Linear):
        pass

    class Critic(nn.Linear):
        pass

    generator, critic = Noise(4, 4), Critic(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD([*generator.parameters(), *critic.parameters()], 0.1)
        fake = generator(torch.randn(6, 4))
        right, wrong = critic(torch.randn(6, 4) + 5), critic(fake)
        loss = F.binary_cross_entropy_with_logits(wrong, torch.zeros(6, 1))
        (loss + F.binary_cross_entropy_with_logits(right, torch.ones(6, 1))).backward()
        optimizer.step()

    assert targets_shown(recorded(train)) == {"Noise": [""] * 6, "Critic": ["1"] * 6}


def test_a_later_micro_batch_does_not_give_its_targets_to_the_first(recorded: Recorded) -> None:
    model = convolutions()

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for label in (0, 1):
            F.cross_entropy(model(PICTURES[:4]), torch.full((4,), label)).backward()
        optimizer.step()

    assert targets_shown(recorded(train)) == {"Sequential": ["0"] * 4}


def test_a_loss_of_something_else_says_nothing_of_the_batch(recorded: Recorded) -> None:
    model = convolutions()

    def train() -> None:
        model(PICTURES[:4]).square().mean().backward()
        with torch.no_grad():
            F.cross_entropy(torch.rand(4, 2), torch.ones(4, dtype=torch.int64))
        torch.optim.SGD(model.parameters(), 0.1).step()

    assert targets_shown(recorded(train)) == {"Sequential": [""] * 4}


def test_a_loss_inside_of_the_model_is_about_its_batch(recorded: Recorded) -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 2)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.layer(x.flatten(1))
            return scores, F.cross_entropy(scores, y)

    model = WithLoss()

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(PICTURES, LABELS)[1].backward()
            optimizer.step()

    record = recorded(train)
    assert targets_shown(record)["WithLoss"] == [str(label) for label in LABELS[:16].tolist()]
    assert {event.kind for event in record.of(Predicted)} == {"class"}


def test_an_output_is_not_asked_for_anything(recorded: Recorded) -> None:
    class Output:
        def __init__(self, scores: Tensor) -> None:
            self.scores = scores

        @property
        def logits(self) -> Tensor:
            raise AssertionError

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 2)

        def forward(self, x: Tensor) -> Output:
            return Output(self.layer(x.flatten(1)))

    model = Odd()
    record = recorded(lambda: [model(PICTURES).scores.mean().backward() for _ in range(3)])
    assert list(record.of(BatchShown))


@pytest.mark.parametrize("layout", ["torch", "flat", "turned"])
def test_the_share_of_positions_predicted_right(recorded: Recorded, layout: str) -> None:
    """(N, C, L) as torch has it, (N, L, C) flattened or turned for the loss."""
    aims = torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(0))
    scores = nn.Parameter(F.one_hot(aims, 3).float().movedim(2, 1 if layout == "torch" else 2) * 9)
    aims[2, 1:] = (aims[2, 1:] + 1) % 3

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = scores

        def forward(self, x: Tensor) -> Tensor:
            return self.scores * x

    model = Fixed()

    def train() -> None:
        for _ in range(2):
            output = model(torch.ones(4, 1, 1))
            if layout == "flat":
                loss = F.cross_entropy(output.view(-1, 3), aims.view(-1))
            else:
                loss = F.cross_entropy(output if layout == "torch" else output.transpose(1, 2), aims)
            loss.backward()

    told = list(recorded(train).of(Predicted))
    assert {(event.kind, event.values) for event in told} == {("right", (1.0, 1.0, 0.2, 1.0))}


def test_positions_that_cannot_be_told_apart_from_examples_are_not_counted(recorded: Recorded) -> None:
    """(L, N, C), turned to (N, C, L) for the loss."""
    aims = torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(0))
    model = nn.Linear(2, 3)

    def train() -> None:
        for _ in range(2):
            F.cross_entropy(model(torch.ones(5, 4, 2)).permute(1, 2, 0), aims).backward()

    assert {event.kind for event in recorded(train).of(Predicted)} == {"spread"}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_passed_over(recorded: Recorded) -> None:
    model = nn.Linear(4, 1)
    given = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    recorded(lambda: model(given).to_padded_tensor(0.0).sum().backward())


def test_classes_are_known_from_training_when_an_evaluation_computes_no_loss(recorded: Recorded) -> None:
    model = convolutions()

    def evaluate(step: int) -> None:
        model.eval()
        with torch.no_grad():
            model(PICTURES)

    batches = [(torch.rand(10, 1, 8, 8), torch.randint(0, 2, (10,))) for _ in range(4)]
    told = [event for event in recorded(training(model, batches, evaluate)).of(Predicted) if not event.learning]
    assert len(told) == 4
    assert {event.kind for event in told} == {"class"}


def test_filters_are_told_as_they_were_last_when_the_model_is_gone(recorded: Recorded) -> None:
    def train() -> None:
        training(convolutions(), [(PICTURES, LABELS)] * 14)()

    assert [event.step for event in recorded(train).of(FiltersShown)] == [0, 10, 14]


@pytest.mark.parametrize("change", ["weight norm", "lazy", "pruned"])
def test_first_layers_whose_weight_comes_or_goes(recorded: Recorded, change: str) -> None:
    def train() -> None:
        first: nn.Module = nn.LazyConv2d(4, 3) if change == "lazy" else nn.Conv2d(1, 4, 3)
        model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(2) if change == "lazy" else nn.Linear(144, 2))
        model(PICTURES).sum().backward() if change == "lazy" else None
        training(model, [(PICTURES, LABELS)] * 2)()
        if change == "weight norm":
            parametrizations.weight_norm(first)
        elif change == "pruned":
            prune.random_unstructured(first, "weight", 0.5)
        training(model, [(PICTURES, LABELS)] * 2)()

    assert list(recorded(train).of(BatchShown))
