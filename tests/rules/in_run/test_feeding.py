"""Data, seeds, evaluations, memory: what only looks guilty stays silent, variants are found."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset, TensorDataset

import unstuck
from unstuck.events import BatchSeen, Evaluated, GraphsKept, LoaderSeen, Seeded
from unstuck.interventions import ChangeInputs
from unstuck.judge import judge
from unstuck.record import Record
from unstuck.rule import find_rule

CODES = "R06 R09 M03 M04 M05 M06 M13".split()


@pytest.fixture
def codes(recorded: Callable[[Callable[[], object]], Record]) -> Callable[[Callable[[], object]], set[str]]:
    def run(training: Callable[[], object]) -> set[str]:
        verdict = judge(record=recorded(training), rules=[rule for code in CODES if (rule := find_rule(code))])
        assert not verdict.failures
        return {diagnosis.lead.code for diagnosis in verdict.diagnoses}

    return run


def a_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def classifier(features: int = 6, classes: int = 3) -> tuple[nn.Module, Optimizer]:
    model = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, classes))
    return model, Adam(model.parameters(), lr=1e-2)


def labelled(count: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6)
    return x, x[:, :classes].argmax(1)


# M03


@pytest.mark.parametrize("kept", ["list", "sum", "output", "attribute"])
def test_graphs_that_are_kept_are_found(codes, kept):
    def training():
        model, optimizer = classifier()
        history, total, holder = [], 0.0, nn.Module()
        holder.seen = ()
        for _ in range(20):
            x, y = labelled(16)
            optimizer.zero_grad()
            scores = model(x)
            loss = F.cross_entropy(scores, y)
            loss.backward()
            optimizer.step()
            if kept == "list":
                history.append(loss)
            elif kept == "sum":
                total = total + loss
            elif kept == "attribute":
                holder.seen = (*holder.seen, loss * 2)
            else:
                history.append(loss + scores.sum())

    assert codes(training) == {"M03"}


def test_the_last_few_losses_are_no_leak(codes):
    def training():
        model, optimizer = classifier()
        last = collections.deque(maxlen=5)
        for _ in range(30):
            last.append(a_step(model, optimizer, *labelled(16)))

    assert codes(training) == set()


def test_ten_models_whose_losses_are_computed_together_are_no_leak(codes):
    def training():
        pairs = [classifier() for _ in range(10)]
        for _ in range(12):
            x, y = labelled(16)
            losses = [F.cross_entropy(model(x), y) for model, _ in pairs]
            for (_, optimizer), loss in zip(pairs, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    assert codes(training) == set()


def test_nothing_of_ours_keeps_a_graph_alive(recorded):
    import weakref

    freed = []

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            weakref.finalize(ctx, freed.append, 1)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    def training():
        model, optimizer = classifier()
        for _ in range(10):
            x, y = labelled(8)
            optimizer.zero_grad()
            F.cross_entropy(Mark.apply(model(x)), y).backward()
            optimizer.step()
        assert len(freed) >= 9

    record = recorded(training)
    assert not list(record.of(GraphsKept))


# M06


def test_an_evaluation_outside_of_sampled_windows_is_seen(codes):
    def training():
        model, optimizer = classifier()
        for _ in range(73):
            a_step(model, optimizer, *labelled(16))
        model.eval()
        for _ in range(3):
            print(model(torch.randn(32, 6)).argmax(1).sum())

    assert codes(training) == {"M06"}


def test_transforms_that_are_modules_are_no_models(recorded):
    class Transformed(Points):
        def __getitem__(self, index):
            return nn.Flatten(0)(self.x[index]), self.x[index, :3].argmax()

    def training():
        model, optimizer = classifier()
        loader = DataLoader(Transformed(), batch_size=16, shuffle=True)
        for _ in range(15):
            for x, y in loader:
                a_step(model, optimizer, x, y)
        model.eval()
        for _ in range(3):
            for x, y in loader:
                print(F.cross_entropy(model(x), y).item())

    record = recorded(training)
    assert {event.model for event in record.of(BatchSeen)} == {"", "Sequential"}
    assert {event.model for event in record.of(Evaluated)} == {"Sequential"}
    assert sum(event.unused for event in record.of(Evaluated)) >= 4


def target_network():
    model, optimizer = classifier()
    target, _ = classifier()
    target.eval()
    for _ in range(20):
        x, _ = labelled(16)
        optimizer.zero_grad()
        F.mse_loss(model(x), target(x).detach()).backward()
        optimizer.step()


def policy_gradient():
    model, optimizer = classifier()
    model.eval()
    for _ in range(10):
        chosen = [torch.log_softmax(model(torch.randn(4, 6)), 1)[:, 0] for _ in range(8)]
        optimizer.zero_grad()
        torch.cat(chosen).mean().backward()
        optimizer.step()


def playing_games():
    model, optimizer = classifier()
    for _ in range(12):
        for _ in range(5):
            model(torch.randn(1, 6)).argmax().item()
        a_step(model, optimizer, *labelled(16))


def looking_at_shapes():
    model, optimizer = classifier()
    print(model(torch.randn(2, 6)).shape)
    for _ in range(12):
        a_step(model, optimizer, *labelled(16))


def attacking():
    model, optimizer = classifier()
    for _ in range(3):
        for _ in range(5):
            a_step(model, optimizer, *labelled(16))
        model.eval()
        for _ in range(4):
            x, y = labelled(16)
            x.requires_grad_()
            torch.autograd.grad(F.cross_entropy(model(x), y), x)
        model.train()


@pytest.mark.parametrize("training", [target_network, policy_gradient, playing_games, looking_at_shapes, attacking])
def test_calls_that_are_no_evaluation(codes, training):
    assert "M06" not in codes(training)


# Evaluated, M13


def with_validation(shuffled: bool, epochs: int = 6, steps: int = 25) -> Callable[[], None]:
    def training():
        x, y = labelled(600, 2)
        val_x, val_y = labelled(200, 2)
        if shuffled:
            val_y = val_y[torch.randperm(200)]
        model, optimizer = classifier(classes=2)
        for _ in range(epochs):
            model.train()
            for _ in range(steps):
                rows = torch.randint(0, 600, (32,))
                a_step(model, optimizer, x[rows], y[rows])
            model.eval()
            with torch.no_grad():
                for part in torch.arange(200).split(50):
                    F.cross_entropy(model(val_x[part]), val_y[part])

    return training


def test_labels_apart_from_their_inputs(codes):
    assert codes(with_validation(shuffled=True)) == {"M13"}


def test_a_good_validation(codes):
    assert codes(with_validation(shuffled=False)) == set()


def test_every_evaluation_is_told_with_its_mean(recorded):
    record = recorded(with_validation(shuffled=False, epochs=7, steps=33))
    told = list(record.of(Evaluated))
    assert [event.step for event in told] == [33 * epoch for epoch in range(1, 8)]
    assert all(event.forwards == 4 and event.examples == 200 and event.classes == 2 for event in told)
    assert told[-1].accuracy > 0.8 > told[0].value
    assert not any(event.training_mode or event.grad_enabled for event in told)


def test_a_model_that_acts_between_its_steps_is_not_looked_at_each_time(recorded):
    looked_at = []

    def acting() -> None:
        model = nn.Linear(4, 2)
        optimizer = SGD(model.parameters(), 0.01)
        for _ in range(300):
            model.eval()
            looked_at.append(bool(torch.nn.modules.module._global_forward_pre_hooks))
            model.train()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    recorded(acting)
    assert sum(looked_at[100:]) < 50


class Lengthy(IterableDataset[Tensor]):
    """Would go through all its files to tell its length."""

    def __iter__(self):
        return iter(torch.ones(4, 2))

    def __len__(self) -> int:
        raise AssertionError("nobody but the program may ask")


def test_nobody_asks_a_chain_for_its_length(recorded):
    loader = DataLoader(ChainDataset([Lengthy(), Lengthy()]), batch_size=2)
    assert [seen.length for seen in recorded(lambda: collections.deque(loader, 0)).of(LoaderSeen)] == [None]


def test_a_long_evaluation_is_looked_at_for_a_while(recorded):
    def training():
        model, optimizer = classifier()
        for _ in range(60):
            a_step(model, optimizer, *labelled(8))
        model.eval()
        with torch.inference_mode():
            for _ in range(300):
                x, y = labelled(8)
                F.cross_entropy(model(x), y)

    (event,) = recorded(training).of(Evaluated)
    assert event.examples == 16 * 8


# M04


def by_class(order: str) -> Callable[[], None]:
    def training():
        x, y = labelled(320)
        if order != "random":
            rows = y.argsort()
            x, y = x[rows], y[rows]
        loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=order == "shuffled")
        model, optimizer = classifier()
        for _ in range(3):
            for x, y in loader:
                a_step(model, optimizer, x, y)

    return training


@pytest.mark.parametrize(("order", "expected"), [("sorted", {"M04"}), ("random", set()), ("shuffled", set())])
def test_batches_in_the_order_of_classes(codes, order, expected):
    assert codes(by_class(order)) == expected


def test_a_run_that_ends_inside_the_first_class(codes):
    def training():
        x, y = labelled(2000)
        rows = y.argsort()
        model, optimizer = classifier()
        for step, batch in enumerate(DataLoader(TensorDataset(x[rows], y[rows]), batch_size=16)):
            a_step(model, optimizer, *batch)
            if step == 36:
                break

    assert codes(training) == {"M04"}


def test_two_domains_with_a_label_each(codes):
    def training():
        model, optimizer = classifier(classes=2)
        for _ in range(20):
            optimizer.zero_grad()
            ones, zeros = torch.ones(16, dtype=torch.long), torch.zeros(16, dtype=torch.long)
            real = F.cross_entropy(model(torch.randn(16, 6) + 1), ones)
            fake = F.cross_entropy(model(torch.randn(16, 6) - 1), zeros)
            (real + fake).backward()
            optimizer.step()

    assert codes(training) == set()


# M05


class Points(Dataset):
    def __init__(self, seeds: bool = False):
        self.x = torch.randn(64, 6)
        self.rng = random.Random(0)
        self.seeds = seeds

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.x[index] + torch.rand(6), self.x[index, :3].argmax()


class Reseeding(Points):
    def __getitem__(self, index):
        torch.manual_seed(3)
        return super().__getitem__(index)


def epochs_over(make_loader: Callable[[], DataLoader], before: Callable[[], object] = lambda: None):
    def training():
        model, optimizer = classifier()
        for _ in range(5):
            before()
            for x, y in make_loader():
                a_step(model, optimizer, x, y)

    return training


def test_every_example_seeds_again(codes):
    assert codes(epochs_over(lambda: DataLoader(Reseeding(), batch_size=8, shuffle=True))) == {"M05"}


def test_a_generator_that_nobody_draws_from(codes):
    data = Points()
    assert codes(epochs_over(lambda: DataLoader(data, batch_size=8, shuffle=True))) == set()


def test_every_epoch_in_the_same_shuffled_order(codes):
    x, y = labelled(64)
    data = TensorDataset(x, y)
    same = epochs_over(lambda: DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1)))
    assert codes(same) == {"M05"}


def test_every_epoch_seeded_alike(codes):
    data = TensorDataset(*labelled(64))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    assert codes(epochs_over(lambda: loader, lambda: torch.manual_seed(1))) == {"M05"}


def test_every_epoch_in_another_order(codes):
    loader = DataLoader(TensorDataset(*labelled(64)), batch_size=64, shuffle=True)
    assert codes(epochs_over(lambda: loader)) == set()


def test_workers_are_left_alone(recorded):
    def batches():
        torch.manual_seed(5)
        data = TensorDataset(torch.arange(32.0)[:, None])
        loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
        return [batch.flatten().tolist() for _ in range(2) for (batch,) in loader], torch.rand(1).item()

    plain = batches()
    watched = []
    record = recorded(lambda: watched.append(batches()))
    assert watched == [plain]
    assert sum(event.passes for event in list(record.of(LoaderSeen))[-1:]) == 2
    assert {event.generator for event in record.of(Seeded) if event.seed is not None} == {"torch"}


# R06


def test_a_seed_that_was_set_before_the_watch(codes):
    assert codes(lambda: a_step(*classifier(), *labelled(8))) == set()


def test_no_seed_and_nothing_drawn(codes, monkeypatch):
    torch.seed()
    x, y = torch.linspace(-1, 1, 16)[:, None], torch.linspace(-2, 2, 16)[:, None]
    weight = torch.zeros(1, 1, requires_grad=True)

    def training():
        optimizer = SGD([weight], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(x @ weight, y).backward()
            optimizer.step()

    assert codes(training) == set()


def test_no_seed_and_random_weights(codes):
    torch.seed()
    assert codes(lambda: a_step(*classifier(), *labelled(8))) == {"R06"}


def test_a_state_that_is_restored_is_as_good_as_a_seed(codes):
    state = torch.get_rng_state()
    torch.seed()

    def training():
        torch.set_rng_state(state)
        a_step(*classifier(), *labelled(8))

    assert codes(training) == set()


# R09


def contrastive():
    model, optimizer = classifier(classes=16)
    for _ in range(20):
        a_step(model, optimizer, torch.randn(16, 6), torch.zeros(16, dtype=torch.long))


def large_inputs_that_train():
    model, optimizer = nn.Linear(6, 3), None
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(200):
        x, y = labelled(64)
        a_step(model, optimizer, x * 40, y)


def full_batch():
    model, optimizer = classifier()
    x, y = labelled(64)
    for _ in range(30):
        a_step(model, optimizer, x, y)


def repeated_rows():
    model, optimizer = classifier()
    for _ in range(20):
        x, y = labelled(8)
        a_step(model, optimizer, x.repeat(4, 1), y.repeat(4))


def mostly_zeros():
    model, optimizer = classifier()
    for _ in range(20):
        x = torch.zeros(32, 6)
        x[torch.arange(32), torch.randint(0, 6, (32,))] = 1.0
        a_step(model, optimizer, x, x[:, :3].argmax(1))


def masked():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x, mask):
            return self.layer(x) + mask

    model = Masked()
    optimizer = Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        x, y = labelled(16)
        optimizer.zero_grad()
        F.cross_entropy(model(x, mask=torch.tensor([0.0, 0.0, 0.0]).expand(16, 3)), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "training", [contrastive, large_inputs_that_train, full_batch, repeated_rows, mostly_zeros, masked]
)
def test_data_that_only_look_odd(codes, training):
    assert codes(training) == set()


def loans(*first: nn.Module, scale: float = 3e4) -> Callable[[], None]:
    """Columns of very different sizes, and labels that depend on the small ones."""

    def training():
        model = nn.Sequential(*first, nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizer = Adam(model.parameters(), lr=2e-3)
        for _ in range(150):
            x = torch.randn(50, 4)
            y = (x[:, :1] - x[:, 1:2] > 0).float()
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(x * torch.tensor([1.0, 1.0, 50.0, scale])), y).backward()
            optimizer.step()

    return training


def test_columns_of_very_different_sizes_explain_a_high_first_loss(recorded):
    verdict = judge(record=recorded(loans()))
    assert verdict.trend.word == "falling"
    assert verdict.diagnoses[0].lead.code == "R09"
    assert "R01" in verdict.diagnoses[0].explains
    rule = find_rule("R09")
    assert [tuple(way) for way in rule.remedy(verdict.diagnoses[0].lead)] == [(ChangeInputs("standardised"),)]


def test_columns_that_a_layer_brings_to_one_size(codes):
    assert codes(loans(nn.BatchNorm1d(4))) == set()


def test_binary_labels_of_one_kind(codes):
    def training():
        model = nn.Linear(6, 1)
        optimizer = Adam(model.parameters(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(torch.randn(16, 6)), torch.ones(16, 1)).backward()
            optimizer.step()

    assert codes(training) == {"R09"}


def test_what_reaches_the_first_layer_counts(recorded):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, pixels):
            return self.layer(pixels / 255)

    def training():
        model = Scaled()
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            a_step(model, optimizer, torch.rand(8, 6) * 255, torch.randint(0, 3, (8,)))

    seen = [event for event in recorded(training).of(BatchSeen) if event.model]
    assert len(seen) == 3
    assert seen[0].inputs[0].name == "pixels"
    assert seen[0].inputs[0].high > 100 > 1 >= seen[0].layer_input.high
    assert (seen[0].layer, seen[0].layer_kind) == ("layer", "Linear")


def test_check_tells_of_broken_and_equal_inputs():
    model, optimizer = classifier()
    x, y = labelled(8)
    x[3, 2] = float("nan")
    broken = unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (x, y))
    assert "R09" in {diagnosis.lead.code for diagnosis in broken.diagnoses}
    equal = unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (torch.ones(8, 6), y))
    assert "R09" in {diagnosis.lead.code for diagnosis in equal.diagnoses}
    assert unstuck.check(model, nn.CrossEntropyLoss(), optimizer, labelled(8)).ok


# The batch as the model received it


def test_the_report_shows_what_the_model_received(recorded):
    from unstuck.findings.result import Result
    from unstuck.findings.run_summary import run_summary
    from unstuck.report import terminal, text

    record = recorded(full_batch)
    verdict = judge(record=record)
    result = Result(command="run", verdict=verdict, run=run_summary(record, "", verdict))
    shown = terminal.plain(text.render(result))
    assert "Sequential received input: float32 [64, 6] from -" in shown


def test_a_scripted_model_is_read_as_far_as_it_goes(recorded):
    def training():
        model = torch.jit.trace(nn.Sequential(nn.Linear(6, 3)), torch.randn(2, 6))
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            a_step(model, optimizer, *labelled(8))

    assert [event.inputs[0].shape for event in recorded(training).of(BatchSeen) if event.model] == [(8, 6)] * 3
