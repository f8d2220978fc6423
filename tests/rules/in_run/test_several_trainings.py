"""Several trainings in one program: each is judged by itself, one after the other or taking turns."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer

from unstuck.capture import watching
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.record import Record, read
from unstuck.record.trainings import players, trainings_of

Judged = Callable[[Callable[[], object]], Verdict]
Recorded = Callable[[Callable[[], object]], Record]


class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


TEACHER = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))


def batch(classes: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 8)
    return x, (x @ TEACHER[:, :classes]).argmax(1)


def train(model: nn.Module, optimizer: Optimizer, steps: int, classes: int = 3) -> None:
    for _ in range(steps):
        x, y = batch(classes)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        F.cross_entropy(model(batch()[0]), batch()[1])


@pytest.fixture
def judged(recorded: Recorded) -> Judged:
    """What all rules say of a run of the function."""

    def run(training: Callable[[], object]) -> Verdict:
        verdict = judge(record=recorded(training))
        assert not verdict.failures
        return verdict

    return run


def codes(verdict: Verdict) -> set[str]:
    return {diagnosis.lead.code for diagnosis in verdict.diagnoses} - {"R07"}  # nothing here is seeded


def fine_tune_nothing() -> None:
    """The second optimizer holds the weights of a copy."""
    model = Net()
    train(model, Adam(model.parameters(), 1e-3), 150)
    evaluate(model)
    tuned = copy.deepcopy(model)
    optimizer = SGD(tuned.parameters(), 0.01)
    model.train()
    train(model, optimizer, 80)


def fine_tune_frozen() -> None:
    """The second optimizer holds what was frozen, and not the new head."""
    model = Net()
    train(model, Adam(model.parameters(), 1e-3), 150)
    model.head = nn.Linear(16, 5)
    model.backbone.requires_grad_(False)
    optimizer = SGD(model.backbone.parameters(), 0.01)
    train(model, optimizer, 80, classes=5)


@pytest.mark.parametrize("script", [fine_tune_nothing, fine_tune_frozen])
def test_fine_tuning_that_changes_no_weight_is_found(judged: Judged, script: Callable[[], None]) -> None:
    verdict = judged(script)
    found = {diagnosis.lead.code: diagnosis for diagnosis in verdict.diagnoses}
    assert "O02" in found
    evidence = {item.name: item.value for item in found["O02"].evidence}
    assert str(evidence["training"]).startswith("training 2 of 2: SGD")


def test_of_two_rates_the_one_far_too_high_is_named(judged: Judged) -> None:
    def compare() -> None:
        for rate in (0.05, 300.0):
            torch.manual_seed(0)
            model = Net()
            train(model, SGD(model.parameters(), rate), 120)

    verdict = judged(compare)
    assert codes(verdict) & {"M14", "G08"}
    (found, *_) = [diagnosis for diagnosis in verdict.diagnoses if diagnosis.lead.code in ("M14", "G08")]
    assert "training 2 of 2: SGD on Net" in [item.value for item in found.evidence]
    assert [outcome.training for outcome in verdict.outcomes] == [
        "training 1 of 2: SGD on Net",
        "training 2 of 2: SGD on Net",
    ]


def test_what_every_fold_shows_is_said_once(judged: Judged) -> None:
    def folds() -> None:
        for _ in range(4):
            model = Net()
            optimizer = SGD(model.parameters(), 0.05)
            for _ in range(60):
                x, y = batch()
                loss = F.cross_entropy(model(x).softmax(1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    verdict = judged(folds)
    (found,) = [diagnosis for diagnosis in verdict.diagnoses if diagnosis.lead.code == "O12"]
    assert {item.name: item.value for item in found.evidence}["trainings that show it"] == "4 of 4"
    assert len(verdict.outcomes) == 4


def folds() -> None:
    for _ in range(5):
        model = Net()
        train(model, Adam(model.parameters(), 3e-3), 80)
        evaluate(model)


def compare() -> None:
    for kind, rate in ((SGD, 0.1), (Adam, 3e-3), (torch.optim.RMSprop, 1e-3)):
        model = Net()
        train(model, kind(model.parameters(), rate), 100)  # type: ignore[operator]
        evaluate(model)


def fine_tune() -> None:
    model = Net()
    train(model, Adam(model.parameters(), 3e-3), 150)
    evaluate(model)
    model.head = nn.Linear(16, 5)
    model.train()
    train(model, Adam(model.parameters(), 1e-3), 100, classes=5)


def probe() -> None:
    model = Net()
    train(model, Adam(model.parameters(), 3e-3), 150)
    model.eval()
    head = nn.Linear(16, 5)
    optimizer = Adam(head.parameters(), 1e-2)
    for _ in range(120):
        x, y = batch(5)
        with torch.no_grad():
            features = model.backbone(x)
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gan() -> None:
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_generator, of_critic = Adam(generator.parameters(), 1e-3), Adam(critic.parameters(), 1e-3)
    for _ in range(150):
        real, fake = torch.randn(32, 8) + 1, generator(torch.randn(32, 4))
        of_critic.zero_grad()
        yes, no = torch.ones(32, 1), torch.zeros(32, 1)
        judge_real = F.binary_cross_entropy_with_logits(critic(real), yes)
        judge_fake = F.binary_cross_entropy_with_logits(critic(fake.detach()), no)
        (judge_real + judge_fake).backward()
        of_critic.step()
        of_generator.zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), yes).backward()
        of_generator.step()


def two_optimizers_one_loss() -> None:
    model = Net()
    optimizers = [Adam(model.backbone.parameters(), 1e-3), Adam(model.head.parameters(), 3e-3)]
    for _ in range(150):
        x, y = batch()
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()


def rebuilt() -> None:
    model = Net()
    for epoch in range(8):
        train(model, SGD(model.parameters(), 0.1 * 0.9**epoch), 30)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The record of one of the programs above, each of which runs once."""

    @functools.cache
    def run(script: Callable[[], None]) -> Record:
        folder = tmp_path_factory.mktemp("healthy") / "run"
        with watching(folder):
            script()
        return read(folder)

    return run


@pytest.mark.parametrize("script", [folds, compare, fine_tune, probe, gan, two_optimizers_one_loss, rebuilt])
def test_healthy_programs_stay_clean(healthy: Recorded, script: Callable[[], None]) -> None:
    verdict = judge(record=healthy(script))
    assert not verdict.failures
    assert codes(verdict) == set()


@pytest.mark.parametrize(
    ("script", "names", "continues"),
    [
        (folds, [f"training {number} of 5: Adam on Net" for number in range(1, 6)], [0] * 5),
        (fine_tune, ["training 1 of 2: Adam on Net", "training 2 of 2: Adam on the same Net"], [0, 1]),
        (probe, ["training 1 of 2: Adam on Net", "training 2 of 2: Adam on Linear"], [0, 1]),
        (gan, [""], [0]),
        (two_optimizers_one_loss, [""], [0]),
        (rebuilt, [""], [0]),
    ],
)
def test_trainings_are_told_apart(
    healthy: Recorded,
    script: Callable[[], None],
    names: list[str],
    continues: list[int],
) -> None:
    found = trainings_of(healthy(script))
    assert [training.name for training in found] == names
    assert [training.continues for training in found] == continues


def test_every_step_of_every_training_has_its_loss(healthy: Recorded) -> None:
    record = healthy(compare)
    assert [len(training.record.losses) for training in trainings_of(record)] == [100, 100, 100]
    assert [training.record.losses[0][0] for training in trainings_of(record)] == [0, 0, 0]


def test_players_have_a_loss_each(healthy: Recorded) -> None:
    assert {name: len(pairs) for name, pairs in players(healthy(gan)).items()} == {"Adam": 150, "Adam#2": 150}


def test_two_optimizers_that_use_one_backward_have_one_loss(
    healthy: Recorded,
) -> None:
    (losses,) = players(healthy(two_optimizers_one_loss)).values()
    assert len(losses) == 150


def test_rules_that_say_nothing_of_a_game_are_not_called_checked(healthy: Recorded) -> None:
    verdict = judge(record=healthy(gan))
    assert "M14" not in verdict.checked
    assert any("take turns" in sentence and "M14" in sentence for sentence in verdict.not_checked)
