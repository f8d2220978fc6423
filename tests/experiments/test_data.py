"""`data`: what is wrong with the data sets of a script, and nothing where nothing is. Its pages have whole scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
    random_split,
)

from unstuck.capture.data_sets.examining import Examination
from unstuck.capture.data_sets.sources import Source
from unstuck.capture.data_sets.variables import is_of_evaluation
from unstuck.experiments import findings_in
from unstuck.findings import Finding
from unstuck.findings.data_sets import DataFound, Role
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.report import data_sets as report
from unstuck.report.terminal import plain
from unstuck.testing.experiments import experiment_on

Pair = tuple[Tensor, Tensor | None]


def examined(train: Pair | Source, test: Pair | Source | None = None, seconds: float = 30.0) -> DataFound:
    sources = [_source("train", Role.TRAINING, train)]
    if test is not None:
        sources.append(_source("test", Role.EVALUATION, test))
    return Examination(time.monotonic() + seconds).examine(sources)


def _source(name: str, role: Role, what: Pair | Source) -> Source:
    if isinstance(what, Source):
        return what
    x, y = what
    return Source(name, role, tables={"inputs": x} if y is None else {"inputs": x, "target": y})


def of_loader(role: Role, loader: DataLoader[Any], target: str = "1") -> Source:
    found = Source(str(role), role, loader=loader)
    found.target = target
    return found


def findings(found: DataFound) -> list[Finding]:
    return findings_in(Experiment(name="data", verdict=ExperimentVerdict.SOUND, sentence="", method="", data=found))


def ids(found: DataFound) -> set[str]:
    return {one.id for one in findings(found)}


def clusters(count: int = 600, kinds: int = 4, width: int = 10) -> tuple[Tensor, Tensor]:
    """Examples around a centre for each class."""
    torch.manual_seed(0)
    centres = 2 * torch.randn(kinds, width)
    y = torch.randint(0, kinds, (count,))
    return centres[y] + torch.randn(count, width), y


def split(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    size = len(x) * 3 // 4
    return (x[:size], y[:size]), (x[size:], y[size:])


def natural() -> dict[str, tuple[Tensor, Tensor]]:
    """Healthy data in which equal or similar examples are chance."""
    torch.manual_seed(1)
    few = torch.randint(0, 4, (900, 6))
    patterns = (torch.rand(40, 64) > 0.5)[torch.randint(0, 40, (900,))] ^ (torch.rand(900, 64) < 0.02)
    bars = torch.zeros(900, 1, 12, 12)
    rows, is_row = torch.randint(0, 12, (900,)), torch.randint(0, 2, (900,))
    for index in range(900):
        bars[index, 0][(rows[index], slice(None)) if is_row[index] else (slice(None), rows[index])] = 1
    cells = torch.randint(0, 16, (900,))
    symbols = torch.randint(0, 3, (900, 6))
    phases = 6.28 * torch.rand(900, 1)
    waves = torch.sin(torch.arange(48) / 8 + phases)
    noisy = torch.randn(900, 8)
    chance = torch.rand(900) < torch.sigmoid(3 * noisy[:, 0])
    skewed = torch.exp(1.5 * torch.randn(900, 6))
    return {
        "a table of a few categories": (few.float(), (few.sum(1) > 9).long()),
        "patterns of two grey levels": (patterns.float(), torch.randint(0, 3, (900,))),
        "bars": (bars, is_row),
        "states of a game": (torch.eye(16)[cells], cells % 4),
        "sequences of three symbols": (symbols, symbols.sum(1) % 3),
        "waves": (waves, (phases[:, 0] > 3).long()),
        "labels drawn by chance": (noisy, chance.long()),
        "heavy tails": (skewed, (skewed[:, 0] > skewed[:, 1]).long()),
        "numbers": (noisy, noisy @ torch.randn(8) + 0.1 * torch.randn(900)),
        "clusters": clusters(900),
        "a number for each example": (noisy, torch.arange(900)),
    }


@pytest.mark.parametrize("name", natural())
def test_nothing_is_said_about_healthy_data(name: str) -> None:
    train, test = split(*natural()[name])
    assert [one.message for one in findings(examined(train, test))] == []


def test_oversampled_training_data_are_healthy() -> None:
    (x, y), test = split(*clusters())
    rare = (y == 0).nonzero().flatten().repeat(4)
    assert ids(examined((torch.cat([x, x[rare]]), torch.cat([y, y[rare]])), test)) == set()


Fault = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Pair, Pair]]


def copies(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return (x, y), (torch.cat([a, x[:8]]), torch.cat([b, y[:8]]))


def near_copies(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return (x, y), (torch.cat([a, x[:8] + 1e-3 * torch.randn(8, 10)]), torch.cat([b, y[:8]]))


def wrong_labels(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    labels = y.clone()
    labels[::40] = (labels[::40] + 1) % 4
    return (x, labels), (a, b)


def missing_class(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return (x, y), (a[b != 2], b[b != 2])


def new_class(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return (x[y != 2], y[y != 2]), (a, b)


def leaked_column(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return (torch.cat([x, (y * 0.7 - 1)[:, None]], 1), y), (torch.cat([a, (b * 0.7 - 1)[:, None]], 1), b)


def conflicts(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return (torch.cat([x, x[:12]]), torch.cat([y, (y[:12] + 1) % 4])), (a, b)


def code_for_missing(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    changed = x.clone()
    changed[5:14, 3] = -999
    return (changed, y), (a, b)


def outlier(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    changed = x.clone()
    changed[5, 3] = 1e5
    return (changed, y), (a, b)


def holes(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    changed = x.clone()
    changed[5, 3] = float("nan")
    return (changed, y), (a, b)


def constant_column(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    changed = x.clone()
    changed[:, 3] = 7
    return (changed, y), (a, b)


def standardised_once(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Pair, Pair]:
    return ((x - x.mean(0)) / x.std(0), y), (20 + 9 * a, b)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (copies, "R12/equal"),
        (near_copies, "R12/near"),
        (wrong_labels, "R14"),
        (missing_class, "R15"),
        (new_class, "R09/unseen-class"),
        (leaked_column, "R16"),
        (conflicts, "R13/equal-inputs"),
        (code_for_missing, "R09/outlier"),
        (outlier, "R09/outlier"),
        (holes, "R09/broken-values"),
        (constant_column, "R09/constant-columns"),
        (standardised_once, "R26/range"),
    ],
)
def test_a_planted_fault_is_found(fault: Fault, expected: str) -> None:
    (x, y), (a, b) = split(*clusters())
    train, test = fault(x, y, a, b)
    # Copies with another label are labels that look wrong, too.
    assert ids(examined(train, test)) - {"R14"} == {expected} - {"R14"}
    assert expected in ids(examined(train, test))


def test_wrong_examples_are_named() -> None:
    (x, y), test = split(*clusters())
    labels = y.clone()
    labels[::40] = (labels[::40] + 1) % 4
    suspects = examined((x, labels), test).sets[0].suspects
    assert suspects is not None
    assert {one.example % 40 for one in suspects.first} == {0}
    assert all(y[one.example] == one.likely for one in suspects.first)


def test_windows_of_one_series_must_not_be_split_at_random() -> None:
    torch.manual_seed(0)
    windows = torch.randn(900).cumsum(0).unfold(0, 25, 1)
    x, y = windows[:, :24], windows[:, 24]
    order = torch.randperm(len(x))
    assert ids(examined(*split(x[order], y[order]))) == {"R12/overlapping"}
    assert ids(examined(*split(x, y))) == set()


class Flipped(Dataset[Any]):
    """The same example comes out in two ways."""

    def __init__(self, x: Tensor, y: Tensor, flips: bool) -> None:
        self.x, self.y, self.transform = x, y, self.flip if flips else None

    def flip(self, one: Tensor) -> Tensor:
        return one.flip(0) if torch.rand(()) < 0.5 else one

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        one = self.x[index]
        return (self.transform(one) if self.transform else one), self.y[index]


def test_augmentation_hides_no_copies() -> None:
    x, y = clusters()
    train = DataLoader(Flipped(x[:500], y[:500], True), batch_size=32)
    test = DataLoader(Flipped(x[480:], y[480:], False), batch_size=32)
    found = examined(of_loader(Role.TRAINING, train), of_loader(Role.EVALUATION, test))
    assert found.sets[0].varies
    assert found.sets[0].draws is not None
    assert not found.sets[1].varies
    assert found.comparisons[0].equal is not None
    assert found.comparisons[0].equal.count == 20


def test_examples_of_one_data_set_are_known_by_their_numbers() -> None:
    data = TensorDataset(*clusters(400))
    train = DataLoader(data, batch_size=32, sampler=SubsetRandomSampler(range(300)))
    apart = DataLoader(data, batch_size=32, sampler=SubsetRandomSampler(range(300, 400)))
    mixed = DataLoader(data, batch_size=32, sampler=SubsetRandomSampler(range(250, 400)))
    assert ids(examined(of_loader(Role.TRAINING, train), of_loader(Role.EVALUATION, apart))) == set()
    found = examined(of_loader(Role.TRAINING, train), of_loader(Role.EVALUATION, mixed))
    assert found.comparisons[0].shared is not None
    assert found.comparisons[0].shared.count == 50
    assert ids(found) == {"R12/shared"}
    one, other = random_split(data, [300, 100])
    train, test = (DataLoader(part, batch_size=50) for part in (one, other))
    assert ids(examined(of_loader(Role.TRAINING, train), of_loader(Role.EVALUATION, test))) == set()


def test_sorted_labels_without_shuffling() -> None:
    x, y = clusters()
    order = y.argsort()
    data = TensorDataset(x[order], y[order])
    assert ids(examined(of_loader(Role.TRAINING, DataLoader(data, batch_size=16)))) == {"M04"}
    assert ids(examined(of_loader(Role.TRAINING, DataLoader(data, batch_size=16, shuffle=True)))) == set()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.randn(4)


class Unreadable(Dataset[Any]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Tensor:
        if index == 77:
            raise KeyError("no such file: 77.png")
        time.sleep(0.002)
        return torch.randn(4)


def test_bad_input_is_a_sentence_each() -> None:
    endless = examined(of_loader(Role.TRAINING, DataLoader(Stream(), batch_size=50)), seconds=0.3).sets[0]
    assert endless.read > 0
    assert endless.why == f"The first {endless.read:,} examples of training were read; it did not end by then."
    broken = examined(of_loader(Role.TRAINING, DataLoader(Unreadable(), batch_size=10))).sets[0]
    assert broken.why == "Example 77 of training cannot be read: KeyError: 'no such file: 77.png'"
    assert broken.read == 99
    large = examined(of_loader(Role.TRAINING, DataLoader(Unreadable(), batch_size=1)), seconds=0.02).sets[0]
    assert large.why.endswith("were read, picked at random: there was no time for more.")
    empty = TensorDataset(torch.zeros(0, 3))
    assert examined(of_loader(Role.TRAINING, DataLoader(empty, batch_size=4))).sets[0].why == "training is empty."


class Batches:
    """Puts batches together in a way of its own."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(20):
            yield list(range(number, 400, 20))


def test_a_batch_sampler_is_read_in_batches() -> None:
    x, y = clusters(400)
    order = y.argsort()
    data = TensorDataset(x[order], y[order])
    shuffled = BatchSampler(RandomSampler(data), 25, True)
    chosen = BatchSampler(SubsetRandomSampler(range(300)), 25, False)
    for sampler, count in ((shuffled, 400), (Batches(), 400), (chosen, 300)):
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=lambda rows: default_collate(rows))
        found = examined(of_loader(Role.TRAINING, loader))
        assert (found.sets[0].read, found.sets[0].why) == (count, "")
        assert found.sets[0].batch_size == (None if isinstance(sampler, Batches) else 25)
        assert ids(found) == set()  # they are not given in the order of their labels


def test_pairs_of_ids_are_not_mixed_up() -> None:
    pairs = torch.cartesian_prod(torch.arange(40), torch.arange(30))[torch.randperm(1200)]
    rows = TensorDataset(pairs[:, 0], pairs[:, 1], pairs.sum(1) % 5)
    found = examined(of_loader(Role.TRAINING, DataLoader(rows, 50), target="2"))
    assert found.sets[0].equal == 0
    again = TensorDataset(*(torch.cat([column, column[:7]]) for column in rows.tensors))
    assert examined(of_loader(Role.TRAINING, DataLoader(again, 50), target="2")).sets[0].equal == 7


def test_ids_are_not_near_each_other() -> None:
    torch.manual_seed(0)
    pairs = torch.stack([torch.randint(0, 100, (2000,)), torch.randint(0, 200, (2000,))], 1)
    rated = split(pairs, (pairs[:, 0] % 3 == pairs[:, 1] % 3).float())
    words = "the quick brown fox jumps over the lazy dog".split()
    text = " ".join(words[number] for number in torch.randint(0, len(words), (1000,)).tolist())
    windows = torch.tensor([ord(letter) for letter in text]).unfold(0, 16, 1)
    for train, test in (rated, split(windows[:-1], windows[1:, -1])):
        found = examined(train, test)
        assert "R12/near" not in ids(found)
        assert found.comparisons[0].equal is not None


def test_padding_and_lengths_are_reported() -> None:
    torch.manual_seed(0)
    sequences = [torch.randint(1, 50, (int(length),)) for length in torch.randint(3, 20, (200,))]
    rows = [(one, int(one[0] > 25)) for one in sequences]

    def collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        padded = torch.nn.utils.rnn.pad_sequence([one for one, _ in items], batch_first=True)
        return padded, torch.tensor([label for _, label in items])

    def loader(part: list[tuple[Tensor, int]]) -> DataLoader[Any]:
        return DataLoader(part, 16, collate_fn=collate)  # type: ignore[arg-type]

    found = examined(of_loader(Role.TRAINING, loader(rows[:160])), of_loader(Role.EVALUATION, loader(rows[150:])))
    part = found.sets[0].parts[0]
    lengths = sorted(len(one) for one in sequences[:160])
    assert part.lengths is not None
    assert (part.lengths[0], part.lengths[2]) == (lengths[0], lengths[-1])
    assert 0.1 < part.padding < 0.7
    assert found.comparisons[0].equal is not None
    assert found.comparisons[0].equal.count == 10  # however they were padded
    words = plain(report.lines(found, 100))
    assert "padding is" in words
    assert "10 of 50 are equal" in words


@pytest.mark.parametrize(
    "name",
    [
        "x_test",
        "val_loader",
        "X_val",
        "testset",
        "Xte",
        "dev_data",
        "data['valid']",
        "self.test_ds",
        "trainer.val_loader",
        "train_sets['val']",
    ],
)
def test_names_of_evaluation(name: str) -> None:
    assert is_of_evaluation(name)


@pytest.mark.parametrize(
    "name",
    [
        "x_train",
        "values",
        "latest",
        "interval",
        "train_loader",
        "y",
        "contest",
        "testament",
        "train_eval_loader",
        "x_train_val",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_of_evaluation(name)


LATE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(600, 8)
y = (x[:, 0] > 0).long()
train = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=8, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters())

def evaluate():
    with torch.no_grad():
        for a, b in DataLoader(TensorDataset(x[480:], y[480:]), batch_size=40):
            model(a)

for epoch in range(100):
    for a, b in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    evaluate()
"""
ARRAYS = """
import numpy as np, torch
from torch import nn

def main():
    rng = np.random.RandomState(0)
    X = rng.randn(600, 8).astype("float32")
    Y = (X[:, 0] * 2 + X[:, 1]).astype("float32")
    first, second, target, other = X[:450], X[430:], Y[:450], Y[430:]
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(30):
        optimizer.zero_grad()
        loss = ((net(torch.from_numpy(first)).squeeze(1) - torch.from_numpy(target)) ** 2).mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(((net(torch.from_numpy(second)).squeeze(1) - torch.from_numpy(other)) ** 2).mean())

main()
"""
PLAYS = """
import torch
from torch import nn

policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters())
for episode in range(12):
    chosen = torch.distributions.Categorical(logits=policy(torch.randn(5, 4)))
    loss = -chosen.log_prob(chosen.sample()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_loader_that_is_built_in_the_evaluation_is_waited_for() -> None:
    done = experiment_on(LATE, "data")
    assert [one.id for one in findings_in(done)] == ["R12/equal"], done.sentence
    assert done.verdict is ExperimentVerdict.FLAWED
    assert done.data is not None
    assert [one.read for one in done.data.sets] == [500, 120]


def test_arrays_are_found_by_the_rows_that_the_model_is_given() -> None:
    done = experiment_on(ARRAYS, "data")
    assert done.data is not None, done.sentence
    assert [(one.name, one.read) for one in done.data.sets] == [("first", 450), ("second", 170)]
    assert done.data.sets[0].target is not None
    assert done.data.comparisons[0].equal is not None
    assert done.data.comparisons[0].equal.count == 20


def test_a_script_without_data_sets() -> None:
    done = experiment_on(PLAYS, "data")
    assert done.verdict is ExperimentVerdict.UNDECIDED
    assert done.sentence.startswith("No data set was found")


UNREADABLE = (
    LATE.replace("train = DataLoader(", "train = DataLoader(Sparse(")
    .replace("TensorDataset(x[:500], y[:500])", "x[:500], y[:500])")
    .replace(
        "torch.manual_seed(0)",
        """
class Sparse(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y, self.given = x, y, set()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if index in self.given:
            raise OSError("the file was read already")
        self.given.add(index)
        return self.x[index], self.y[index]

torch.manual_seed(0)""",
    )
)


def test_training_data_that_cannot_be_read_are_not_sound() -> None:
    done = experiment_on(UNREADABLE.replace("range(100)", "range(1)").replace("batch_size=8", "batch_size=500"), "data")
    assert done.verdict is ExperimentVerdict.UNDECIDED, done.sentence
    assert done.sentence.endswith("Its training data were not read, so nothing can be said of them.")


LOOP = """
import itertools, torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
x = torch.randn(600, 8)
y = (x[:, 0] > 0).long()
seen = TensorDataset(x[:500], y[:500])
first = DataLoader(seen, 32, shuffle=True)
other = DataLoader(TensorDataset(x[500:], y[500:]), 32)
net, teacher = nn.Linear(8, 2), nn.Linear(8, 2)
optimizer = torch.optim.Adam(net.parameters())

def score(loader):
    with torch.no_grad():
        return sum((net(a).argmax(1) == b).sum().item() for a, b in loader)

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TEACHER = """
for epoch in range(3):
    for a, b in first:
        with torch.no_grad():
            soft = teacher(a).softmax(1)
        step(cross_entropy(net(a), soft))
    score(other)
"""
NOISE = """
for epoch in range(3):
    for a, b in first:
        with torch.no_grad():
            soft = teacher(torch.randn(32, 8)).softmax(1)
        step(cross_entropy(net(a + 0.1 * torch.randn(len(a), 8)), b) - soft.mean())
    score(other)
"""
BEFORE = """
print(score(first), score(other))
for epoch in range(3):
    for a, b in first:
        step(cross_entropy(net(a), b))
    print(score(first), score(other))
"""
BETWEEN = """
for epoch in range(3):
    for a, b in first:
        loss = cross_entropy(net(a), b)
        with torch.no_grad():
            net(next(iter(other))[0])
        step(loss)
"""
BOTH = """
train_eval_loader = DataLoader(seen, 256)
for epoch in range(3):
    for a, b in first:
        step(cross_entropy(net(a), b))
    score(train_eval_loader)
    score(other)
"""
PART_OF_BOTH = BOTH.replace("DataLoader(seen", "DataLoader(Subset(seen, range(200))")
PSEUDO = """
first = DataLoader(Subset(seen, range(100)), 16, shuffle=True)
unlabelled = DataLoader(seen, 64, shuffle=True)
for epoch in range(3):
    for (u, _), (a, b) in zip(unlabelled, itertools.cycle(first)):
        with torch.no_grad():
            guess = net(u).argmax(1)
        step(cross_entropy(net(a), b) + 0.1 * cross_entropy(net(u), guess))
    score(other)
"""
PSEUDO_FIRST = PSEUDO.replace(
    "(u, _), (a, b) in zip(unlabelled, itertools.cycle(first))", "u, _ in unlabelled"
).replace("        step(", "        a, b = next(iter(first))\n        step(")


@pytest.mark.parametrize(
    ("loop", "trained"),
    [
        pytest.param(TEACHER, 500, id="a teacher"),
        pytest.param(NOISE, 500, id="a generator, and noise on the batch"),
        pytest.param(BEFORE, 500, id="the accuracy before the training"),
        pytest.param(BETWEEN, 500, id="an evaluation between a batch and its backward"),
        pytest.param(BOTH, 500, id="a loader of the training for evaluation"),
        pytest.param(PART_OF_BOTH, 500, id="a loader of a part of the training"),
        pytest.param(PSEUDO, 100, id="labels that the model makes up"),
        pytest.param(PSEUDO_FIRST, 100, id="labels that are made up before others are drawn"),
    ],
)
def test_what_is_trained_on_is_kept_apart_from_what_is_evaluated_on(loop: str, trained: int) -> None:
    done = experiment_on(LOOP + loop, "data")
    assert done.data is not None, done.sentence
    found = [(one.role, one.name, one.read) for one in done.data.sets]
    assert found == [(Role.TRAINING, "first", trained), (Role.EVALUATION, "other", 100)]
    assert [one.id for one in findings_in(done)] == []


EMPTY = BEFORE.replace("print(score(first), score(other))", "", 1).replace(
    "for epoch", "other = DataLoader([])\nfor epoch"
)


def test_an_evaluation_that_cannot_be_compared_is_not_sound() -> None:
    done = experiment_on(LOOP + EMPTY.replace("other", "test_loader"), "data")
    assert done.verdict is ExperimentVerdict.UNDECIDED, done.sentence
    assert done.sentence.endswith("test_loader could not be compared with first.")
    assert "test_loader is empty." in done.caveats
