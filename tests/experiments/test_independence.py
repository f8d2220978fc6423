"""Independence and causality: asked of unmodified scripts and of live objects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import unstuck
from unstuck.capture.live_objects.examples import filled_axis
from unstuck.experiments.causality import causality
from unstuck.experiments.independence import independence
from unstuck.findings.results import Experiment
from unstuck.rule import find_rule
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner

MIXING = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.norm, self.head = nn.LSTM(4, 8{first}), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(self.norm(states[:, -1]))


model = Net()
optimizer = torch.optim.Adam(model.parameters())
inputs, labels = torch.randn(32, 5, 4), torch.randint(2, (32,))
for _ in range(5):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LANGUAGE = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
LETTERS, LENGTH = 13, 12


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, 16), nn.Embedding(LENGTH + 1, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, LETTERS)

    def forward(self, ids):
        states = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        mask = {mask}
        return self.head(self.block(states, mask))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
text = torch.randint(LETTERS, (64, LENGTH + 1))
for _ in range(5):
    batch = text[torch.randint(64, (8,))]
    {compare}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CAUSAL = "nn.Transformer.generate_square_subsequent_mask(ids.shape[1])"
NEXT = "loss = F.cross_entropy(model(batch[:, :-1]).reshape(-1, LETTERS), batch[:, 1:].reshape(-1))"
SLICED = "loss = F.cross_entropy(model(batch)[:, :-1].reshape(-1, LETTERS), batch[:, 1:].reshape(-1))"
SAME = "loss = F.cross_entropy(model(batch).transpose(1, 2), batch)"


def asked(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Experiment, Experiment]:
    (folder / "train.py").write_text(text)
    monkeypatch.chdir(folder)
    with Runner(Program("train.py"), folder / ".unstuck" / "try") as runner:
        context = Context(runner, 60)
        return independence(context), causality(context)


def codes(experiment: Experiment) -> list[str]:
    rules = [rule for code in ("R04", "R05") if (rule := find_rule(code)) is not None and rule.experiment]
    return [found.code for rule in rules if rule.experiment for found in rule.experiment(experiment)]


@pytest.mark.slow
def test_a_script_whose_layer_runs_along_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, time = asked(tmp_path, MIXING.format(first=""), monkeypatch)
    assert examples.verdict == "mixing", examples.sentence
    assert "lstm (LSTM)" in examples.sentence
    assert codes(examples) == ["R04"]
    assert time.verdict == "undecided"
    assert codes(time) == []


@pytest.mark.slow
def test_batch_norm_alone_is_no_mixing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, _ = asked(tmp_path, MIXING.format(first=", batch_first=True"), monkeypatch)
    assert examples.verdict == "independent", examples.sentence
    assert examples.sentence.startswith("With half of the first batch exchanged, ")
    assert codes(examples) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mask", "compare", "verdict"),
    [
        ("None", NEXT, "leaking"),
        (CAUSAL, NEXT, "causal"),
        (CAUSAL, SLICED, "causal"),
        (CAUSAL, SAME, "copying"),
        ("None", SAME, "undecided"),
    ],
)
def test_scripts_that_predict_the_next(
    mask: str, compare: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, time = asked(tmp_path, LANGUAGE.format(mask=mask, compare=compare), monkeypatch)
    assert (examples.verdict, time.verdict) == ("independent", verdict), (examples.sentence, time.sentence)
    assert codes(time) == (["R05"] if verdict in ("leaking", "copying") else [])


@pytest.mark.slow
def test_a_script_that_sees_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, time = asked(tmp_path, LANGUAGE.format(mask="None", compare=SLICED), monkeypatch)
    assert (examples.verdict, time.verdict) == ("independent", "leaking"), time.sentence
    assert "block.self_attn" in time.sentence
    assert codes(time) == ["R05"]


@pytest.mark.slow
def test_a_script_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples, time = asked(tmp_path, "import torch\nprint(torch.ones(3))\n", monkeypatch)
    assert (examples.verdict, time.verdict) == ("undecided", "undecided")
    assert "nothing to ask" in examples.sentence


TAGGER = """
import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
texts = [[random.randrange(1, 20) for _ in range(random.randint(3, 12))] for _ in range(400)]


def batches():
    for start in range(0, 400, 16):
        chunk = texts[start : start + 16]
        x = torch.zeros(16, max(map(len, chunk)), dtype=torch.long)
        y = torch.full_like(x, -100)
        for row, text in enumerate(chunk):
            x[row, : len(text)] = torch.tensor(text)
            y[row, : len(text)] = torch.tensor(text) % 3
        yield x, y


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 8{first}), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.lstm(self.words(x))[0])


model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
for x, y in batches():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).view(-1, 3), y.view(-1)).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("first", "verdict"), [("", "mixing"), (", batch_first=True", "independent")])
def test_padding_shows_along_which_axis_time_runs(
    first: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, _ = asked(tmp_path, TAGGER.format(first=first), monkeypatch)
    assert examples.verdict == verdict, examples.sentence
    assert codes(examples) == (["R04"] if verdict == "mixing" else [])


def test_texts_are_filled_up_along_time() -> None:
    lengths = torch.tensor([3, 5, 2, 6, 4])
    ids = torch.randint(1, 9, (5, 6)) * (torch.arange(6) < lengths[:, None])
    assert filled_axis(ids) == 1
    assert filled_axis(ids.flip(1)) == 1
    assert filled_axis(ids.T) == 0
    assert filled_axis(ids.clamp(min=1)) is None
    assert filled_axis(nn.functional.one_hot(ids, 9)[..., 1:].float()) == 1


def test_objects_are_asked_the_same() -> None:
    torch.manual_seed(0)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.permute(2, 0, 1).reshape(len(x), -1))

    batches = [(torch.randn(8, 3, 2), torch.randint(2, (8,)))]
    for model, verdict in (
        (Mixed(), "mixing"),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "independent"),
    ):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        answer = unstuck.independence(model, nn.CrossEntropyLoss(), optimizer, batches)
        assert answer.verdict == verdict, answer
        assert [found.code for found in answer.findings] == (["R04"] if verdict == "mixing" else [])
        assert answer.experiment.sentence in str(answer)
        assert unstuck.causality(model, nn.CrossEntropyLoss(), optimizer, batches).verdict == "undecided"
        assert all(parameter.grad is None for parameter in model.parameters())
