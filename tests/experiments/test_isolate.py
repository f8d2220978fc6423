"""`isolate`: parts known to work, in place of a program's own, and what follows from which of them help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck.experiments.isolate import (
    OWN,
    Part,
    Parts,
    Row,
    corner,
    corner_pair,
    has_settled,
    isolate,
    progress,
    row_of,
)
from unstuck.findings import Severity
from unstuck.findings.curve import Curve
from unstuck.findings.results import Experiment, ExperimentVerdict, Status
from unstuck.rules.relations import part_at_fault
from unstuck.trials.context import Context
from unstuck.trials.runner import Outcome, Program, Runner, Variant

SCRIPT = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
y = torch.randint(5, (3000,))
x = torch.randn(5, 20)[y] + 0.7 * torch.randn(3000, 20)
{data}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(20, 64), nn.Linear(64, 5)

    def forward(self, inputs):
        return self.outer(torch.relu(self.inner(inputs){shift}))

model = Net()
optimizer = torch.optim.{optimizer}
for epoch in range(10):
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        scores = model(inputs)
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
USUAL = {
    "data": "",
    "shift": "",
    "optimizer": "Adam(model.parameters(), lr=3e-3)",
    "loss": "F.cross_entropy(scores, labels)",
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    home = tmp_path_factory.mktemp("isolate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with Runner(Program("train.py"), home / "trials") as made:
            yield made


def isolated(runner: Runner, script: str = SCRIPT, **parts: str) -> Experiment:
    (Path(runner.folder).parent / "train.py").write_text(script.format(**{**USUAL, **parts}))
    return isolate(Context(runner, 150.0))


def row(parts: Parts, gained: float | None, why_not: str = "") -> Row:
    return Row(parts, gained, gained is not None and gained < 0.02, "", why_not)


def table(**gained: float | str) -> dict[Parts, Row]:
    """A row for each part, by what the run gains with it or why it cannot be replaced."""
    found = {OWN: row(OWN, 0.0)}
    for part in Part:
        value = gained.get(part, 0.0)
        parts = frozenset({part})
        found[parts] = row(parts, None, value) if isinstance(value, str) else row(parts, value)
    return found


def cornered(**gained: float | str) -> set[Part] | None:
    found = corner(table(**gained))
    return set(found.parts) if found else None


def test_what_helps_is_at_fault() -> None:
    assert cornered(update=0.9) == {Part.UPDATE}
    assert cornered(model=0.9) == {Part.MODEL}
    assert cornered(loss=0.9) == {Part.LOSS}
    assert cornered(data=0.9) == {Part.DATA}
    assert cornered() is None
    assert cornered(model=0.1) is None, "that is too little to accuse anything"


def test_a_part_that_learns_the_users_own_data_acquits_them() -> None:
    assert cornered(data=0.9, model=0.5) == {Part.MODEL}
    assert cornered(data=0.9, update=0.5, model=0.5) == {Part.UPDATE}, "a model of ours brings its own update"


def test_what_could_be_either_is_said_to_be_so() -> None:
    both = corner(table(update=0.9, loss=0.9))
    assert both is not None
    assert not both.is_single
    untried = corner(table(data=0.9, model="it is a graph network"))
    assert untried is not None
    assert set(untried.parts) == {Part.DATA, Part.MODEL}
    assert not untried.is_single


def test_what_was_tried_is_told_as_it_came_out() -> None:
    def sentence(**gained: float | str) -> str:
        found = corner({**table(**gained), OWN: row(OWN, 0.08)})
        assert found is not None
        return found.sentence

    assert "could not be tried" not in sentence(model=0.2, data=0.9)
    assert "could not be tried" in sentence(model="it is a graph network", data=0.9)
    assert "only a little with our update" in sentence(update=0.2, model=0.9)
    assert "with your update or ours" in sentence(model=0.9)
    assert "our update" not in sentence(update="no step was seen", model=0.9)


def test_a_run_that_was_ended_has_not_failed_to_learn(tmp_path: Path) -> None:
    swapped = {"swapped": 50, "missed": 0}
    for status in (Status.KILLED, Status.FAILED):
        ended = Outcome(
            variant=Variant("update-replaced"),
            folder=tmp_path,
            status=status,
            curve=Curve(),
            seconds=9.0,
            notes={"update": swapped},
        )
        assert row_of(frozenset({Part.UPDATE}), ended).why_not


def test_pairs_and_elimination() -> None:
    pair = frozenset({Part.DATA, Part.UPDATE})
    found = corner_pair(table() | {pair: row(pair, 0.8)})
    assert found is not None
    assert found.parts == pair
    rest = frozenset({Part.DATA, Part.MODEL})
    by_elimination = corner_pair(table(loss="its target was not found") | {rest: row(rest, 0.0)})
    assert by_elimination is not None
    assert by_elimination.parts == {Part.LOSS}
    assert corner_pair(table() | {rest: row(rest, 0.0)}) is None
    rest = frozenset({Part.MODEL, Part.LOSS})
    by_elimination = corner_pair(table(data="its loss is a formula") | {rest: row(rest, 0.0)})
    assert by_elimination is not None
    assert by_elimination.parts == {Part.DATA}


def test_progress_counts_what_is_beyond_chance() -> None:
    answers = {"calls": 100, "answers": 1000, "cost": 1.6, "guess": 1.6, "right": 0.21, "guess_right": 0.2}
    assert progress(answers) == 0.0
    assert progress({**answers, "right": 0.6}) == pytest.approx(0.5)
    assert progress({**answers, "cost": 0.4}) == pytest.approx(0.75)
    assert progress({**answers, "answers": 10}) is None
    assert progress({}) is None


def test_a_run_that_came_down_to_a_guess_has_settled() -> None:
    def curve(losses: list[float]) -> Curve:
        return Curve(tuple(range(len(losses))), tuple(losses))

    assert has_settled(curve([2.0 - step / 100 for step in range(90)] + [1.1] * 110))
    assert not has_settled(curve([2.0 - step / 400 for step in range(200)])), "it is on its way"
    assert not has_settled(curve([1.1] * 20)), "that is too short to say"


def test_a_finding_is_as_loud_as_its_evidence() -> None:
    def found(part: str, certain: bool = True, **more: bool) -> tuple[str, Severity]:
        done = Experiment(
            name="isolate",
            verdict=ExperimentVerdict.CORNERED,
            sentence="With our model it learns.",
            method="300 steps each",
            measures={"as_it_is": "20% right", "our_model": "99% right", "part": part, "certain": certain, **more},
        )
        [finding] = part_at_fault.in_experiment(done)
        assert (finding.cause == part_at_fault.MODEL_AND_NOT_UPDATE) is bool(more.get("update_fails"))
        return finding.variant, finding.severity

    assert found("model", update_fails=True) == ("model", Severity.ERROR)
    assert found("model") == ("model", Severity.ERROR)
    assert found("model", certain=False) == ("model", Severity.WARNING)
    assert found("data") == ("data", Severity.WARNING), "a task that takes longer looks the same"
    assert found("data", scale=True) == ("input-scale", Severity.ERROR)
    assert found("loss+update", certain=False) == ("several", Severity.WARNING)


def test_a_run_that_learns_is_left_alone(runner: Runner) -> None:
    done = isolated(runner)
    assert done.verdict == "learns", done.sentence
    assert not list(part_at_fault.in_experiment(done))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("model", {"shift": " - 50"}),
        ("data", {"data": "y = y[torch.randperm(3000)]", "optimizer": "Adam(model.parameters(), lr=5e-4)"}),
        ("loss", {"loss": "-F.cross_entropy(scores, labels)"}),
        ("loss", {"loss": "(scores.softmax(1)[torch.arange(len(labels)), labels] ** 2).mean()"}),
        ("update", {"optimizer": "SGD(model.parameters(), lr=1e-6)"}),
    ],
)
def test_the_part_is_named(runner: Runner, part: str, changed: dict[str, str]) -> None:
    done = isolated(runner, **changed)
    assert done.verdict == "cornered", done
    assert done.measures["part"] == part, done
    assert [finding.variant for finding in part_at_fault.in_experiment(done)] == [part]


def test_losses_between_outputs_leave_data_and_loss_alone(runner: Runner) -> None:
    loss = "F.cross_entropy(scores @ scores.detach().T * 0 + scores.sum() * 0, torch.arange(len(labels)))"
    done = isolated(runner, loss=loss)
    assert done.verdict == "undecided", done
    said = " ".join(done.caveats)
    assert "The data cannot be replaced" in said
    assert "The loss cannot be replaced" in said
