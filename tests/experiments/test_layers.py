"""`layers`: where the target stops being readable, in scripts and in live objects."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import unstuck
from unstuck.experiments import findings_in
from unstuck.experiments.layers import Reading, Spot, blocked_at, describe_loss, layers, lost, reading_of
from unstuck.findings.curve import Curve
from unstuck.findings.results import Experiment, Status
from unstuck.rules.relations import information_lost
from unstuck.trials.context import Context
from unstuck.trials.runner import Outcome, Program, Runner, Variant


def reading(*scores: float, control: float = 0.8, **more: bool) -> Reading:
    names = ["", *(f"layer{number}" for number in range(1, len(scores)))]
    spots = [
        Spot(name, "Linear", score=score, chance=0.02, alike=0.5) for name, score in zip(names, scores, strict=True)
    ]
    last = Spot("head", "Linear", score=scores[-1], chance=0.02, alike=0.5, control=control, **more)
    return Reading(sites=(*spots[:-1], last))


def test_the_place_is_the_first_after_the_last_that_shows_it() -> None:
    found = lost(reading(0.8, 0.7, 0.0))
    assert found is not None
    assert (found.before.name, found.at.name) == ("layer1", "head")


def test_a_branch_that_is_gone_around_loses_nothing() -> None:
    assert lost(reading(0.8, 0.0, 0.7)) is None


def test_a_narrow_layer_is_not_accused_of_being_narrow() -> None:
    assert lost(reading(0.8, 0.7, 0.0, control=0.03)) is None


def test_weights_that_begin_at_zero_lose_nothing() -> None:
    assert lost(reading(0.8, 0.7, 0.0, is_zero=True)) is None


def test_one_of_several_outputs_that_keeps_the_target_is_enough() -> None:
    names, scores = ("", "body", "Net", "Net"), (0.8, 0.7, 0.6, 0.0)
    spots = [
        Spot(name, score=score, chance=0.02, alike=0.5, control=0.8) for name, score in zip(names, scores, strict=True)
    ]
    assert lost(Reading(sites=tuple(spots))) is None


def test_what_was_never_there_is_not_lost() -> None:
    assert lost(reading(0.04, 0.03, 0.0)) is None


def said_of(before: Reading, after: Reading) -> Experiment:
    later = lost(after)
    assert later is not None
    return describe_loss(before, after, lost(before), later, [])


def test_it_was_there_before_training_only_if_it_could_be_read_there() -> None:
    after = reading(0.8, 0.7, 0.0)
    at_zero = said_of(reading(0.8, 0.7, 0.0, is_zero=True), after)
    assert "still there" not in at_zero.sentence
    assert at_zero.measures["since"] == "unknown"
    [finding] = findings_in(at_zero)
    assert finding.cause == information_lost.UNKNOWN
    trained = said_of(reading(0.8, 0.7, 0.6), after)
    assert "still there" in trained.sentence
    assert trained.measures["since"] == "training"
    assert said_of(reading(0.8, 0.7, 0.0), after).measures["since"] == "start"


def test_a_place_that_is_readable_after_training_is_not_where_it_is_lost() -> None:
    lost_sooner = reading(0.8, 0.0, 0.0)
    lost_sooner = msgspec.structs.replace(
        lost_sooner, sites=tuple(msgspec.structs.replace(spot, control=0.8) for spot in lost_sooner.sites)
    )
    found = lost(lost_sooner)
    assert found is not None
    assert found.at.name == "layer1"
    done = said_of(lost_sooner, reading(0.8, 0.7, 0.0))
    assert done.measures["lost_at"] == "head"
    assert "before training" not in done.sentence


def test_a_note_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    run = Outcome(
        variant=Variant("layers"),
        folder=tmp_path,
        status=Status.STOPPED,
        curve=Curve(),
        seconds=1.0,
        notes={"layers": {"items": "many"}},
    )
    assert reading_of(run) == Reading()


def spots(*gradients: float | None, learns: bool = False) -> Reading:
    found = [
        Spot(f"layer{number}", "Linear", wants_gradient=True, should_learn=True, learns=learns, gradient=gradient)
        for number, gradient in enumerate(gradients)
    ]
    return Reading(sites=tuple(found))


def test_a_gradient_that_ends_between_two_layers() -> None:
    found = blocked_at(spots(None, None, 0.1), spots(None, None, 0.2))
    assert found is not None
    assert (found[0].name, found[1].name) == ("layer2", "layer1")


def test_a_gradient_that_comes_later_or_by_another_way() -> None:
    assert blocked_at(spots(0.0, 0.1), spots(0.1, 0.1)) is None
    assert blocked_at(spots(None, 0.1, learns=True), spots(None, 0.1, learns=True)) is None


SEQUENCES = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(30, 24), nn.LSTM(24, 48, batch_first=True), nn.Linear(48, 2)

    def forward(self, ids):
        states, _ = self.lstm(self.words(ids))
        return self.head(states[:, {position}])


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
for _ in range(400):
    ids = torch.randint(1, 30, (64, 12))
    target = (ids[:, -4:] > 15).float().mean(1).gt(0.5).long()
    loss = nn.functional.cross_entropy(model(ids), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def asked(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    (folder / "train.py").write_text(text)
    monkeypatch.chdir(folder)
    with Runner(Program("train.py"), folder / ".unstuck" / "try") as runner:
        return layers(Context(runner, 120))


@pytest.mark.slow
def test_the_wrong_position_of_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asked(tmp_path, SEQUENCES.format(position="0"), monkeypatch)
    assert done.verdict == "lost", done.sentence
    assert done.measures["lost_at"] == "input of head"
    assert [found.code for found in findings_in(done)] == ["P19"]
    assert done.place is not None
    assert done.place.line == 15


@pytest.mark.slow
def test_the_right_position_of_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = asked(tmp_path, SEQUENCES.format(position="-1"), monkeypatch)
    assert done.verdict == "readable", done.sentence
    assert findings_in(done) == []


@pytest.mark.slow
def test_live_objects_are_read_and_left_as_they_were() -> None:
    torch.manual_seed(0)
    x = torch.randn(640, 6)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = list(zip(x.split(32), y.split(32), strict=True))
    answer = unstuck.layers(model, nn.CrossEntropyLoss(), optimizer, batches)
    assert answer.verdict == "readable", answer
    assert answer.experiment.table is not None
    assert len(answer.experiment.table.rows) == 5
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.state == {}
