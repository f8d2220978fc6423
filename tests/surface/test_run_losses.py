"""`unstuck run --loss`, then `unstuck surface --around`: a loss of one's own, where training was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unstuck.cli import main
from unstuck.events import LossInputs
from unstuck.record import Record, read

LOSSES = """
import torch
from torch import nn
import torch.nn.functional as F

def pair(pos, neg, temperature=0.5, *, reduction="none"):
    loss = F.softplus((neg - pos) / temperature)
    return loss.mean() if reduction == "mean" else loss

def cut(error):
    return F.relu(error - 4).mean()

def fails(x):
    raise KeyError("theirs")

class Focal(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, scores, labels):
        logp = F.log_softmax(scores, 1).gather(1, labels[:, None])[:, 0]
        return (-((1 - logp.exp()) ** self.gamma) * logp).mean()

NUMBER = 3
"""
TRAIN = '''"""The docstring."""
from __future__ import annotations

import atexit
import hashlib
import torch
from torch import nn
import losses
from losses import Focal, pair

def own(prediction: "nothing", target):
    """Squares."""
    return ((prediction - target) ** 2).mean()
"""A text that is no docstring."""

def wrapped():
    return [hasattr(f, "__wrapped__") for f in (losses.pair, Focal.forward, own)]

torch.manual_seed(0)
torch.set_num_threads(1)
net, head = nn.Linear(4, 8), nn.Linear(4, 3)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1)
focal = Focal()
for step in range(60):
    x = torch.randn(32, 4)
    labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    z = nn.functional.normalize(net(x), dim=1)
    pos = (z * nn.functional.normalize(net(x + 0.1 * torch.randn_like(x)), dim=1)).sum(1)
    neg = (z * z.roll(1, 0)).sum(1)
    loss = pair(pos, neg, reduction="mean") + focal(head(x), labels) + 0.1 * own(head(x)[:, 0], target=x[:, 0])
    loss = loss + losses.cut(head(x).abs())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    pair(torch.full((3,), 1e6), torch.zeros(3))
try:
    losses.fails(1)
except KeyError as error:
    print(repr(error))
print(__doc__, own.__doc__, own.__name__, own.__annotations__)
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest(), loss.item())
atexit.register(lambda: print("left", wrapped()))
'''
NAMED = ("losses:pair", "losses.py:Focal", "own", "losses:cut", "losses:fails")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UNSTUCK_RAISE": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "losses.py").write_text(LOSSES)
    (folder / "train.py").write_text(TRAIN)
    return folder


@pytest.fixture(scope="module")
def watched(folder: Path) -> subprocess.CompletedProcess[str]:
    return command(folder, "-m", "unstuck", "run", *(word for name in NAMED for word in ("--loss", name)), "train.py")


@pytest.fixture(scope="module")
def record(folder: Path, watched: subprocess.CompletedProcess[str]) -> Record:
    (run,) = (folder / ".unstuck" / "runs").iterdir()
    return read(run)


def test_the_program_does_what_it_does_without_us(folder: Path, watched: subprocess.CompletedProcess[str]) -> None:
    alone = command(folder, "train.py")
    assert alone.returncode == 0, alone.stderr
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout == alone.stdout
    assert "left [False, False, False]" in watched.stdout


def test_each_argument_is_told_by_its_name(record: Record) -> None:
    calls = [call for call in record.of(LossInputs) if call.loss == "pair"]
    assert 45 <= len(calls) <= 60, "the dense steps, and then a sample"
    first = {fact.name: fact for fact in calls[0].inputs}
    assert list(first) == ["pos", "neg", "reduction"]
    assert (first["pos"].shape, first["pos"].requires_grad, first["reduction"].value) == ((32,), True, "mean")
    assert first["pos"].low is not None
    assert first["pos"].high is not None
    assert first["pos"].low <= first["pos"].quantiles[0] <= first["pos"].quantiles[4] <= first["pos"].high <= 1.0001
    assert calls[0].value is not None
    assert calls[0].place
    assert calls[0].place.path == "train.py"
    assert {call.loss for call in record.of(LossInputs)} == {"pair", "Focal", "own", "cut"}


def test_scores_are_told_by_class(record: Record) -> None:
    call = next(call for call in record.of(LossInputs) if call.loss == "Focal")
    facts = {fact.name: fact for fact in call.inputs}
    assert list(facts) == ["scores", "labels", "scores[right]", "scores[other]"]
    highest = max(facts["scores[right]"].high or 0, facts["scores[other]"].high or 0)
    assert highest == facts["scores"].high


def surface(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    return main(["surface", *words])


def test_the_surface_lies_where_training_was(
    folder: Path, record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("losses.py:pair", "--around", str(record.path), "--out", "pair.html", "--format", "json")
    assert surface(folder, monkeypatch, *words) == 0
    (seen,) = json.loads(capsys.readouterr().out)["surfaces"]
    assert [axis["name"] for axis in seen["axes"]] == ["pos", "neg"]
    assert all(-1.0001 <= axis["low"] < axis["high"] <= 1.0001 for axis in seen["axes"])
    early, late = seen["marks"]
    assert (early["name"], late["name"]) == ("early in the run", "late in the run")
    assert late["at"][1] < early["at"][1], "the run pushed neg down"
    assert seen["notes"][1].startswith("Late in the run, at pos ")
    page = (folder / "pair.html").read_text()
    assert "late in the run" in page


def test_a_named_axis_takes_its_range_from_the_run(
    folder: Path, record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert surface(folder, monkeypatch, "losses.py:pair", "--around", str(record.path), "--x", "neg") == 0
    out = capsys.readouterr().out
    assert out.startswith("pair over neg from -")
    assert "note  Late in the run, at neg " in out


def test_a_class_is_shown_by_the_score_of_the_right_class(
    folder: Path, record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert surface(folder, monkeypatch, "losses.py:Focal", "--around", str(record.path), "--out", "focal.svg") == 0
    out = capsys.readouterr().out
    assert out.startswith("Focal over scores[0, 0] from ")
    assert "scores[0, 0] is the score of the right class, scores[0, 1] the highest of the others." in out
    assert "Focal was built without arguments here" in out
    assert (folder / "focal.svg").stat().st_size > 10_000


def test_a_loss_whose_run_stood_in_a_dead_zone_is_told_so(
    folder: Path, record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    surface(folder, monkeypatch, "losses.py:cut", "--around", str(record.path))
    out = capsys.readouterr().out
    assert "its gradient 0: " in out


@pytest.mark.parametrize(
    ("target", "run", "sentence"),
    [
        ("losses.py:fails", "", "the run of train.py did not train on fails (it used Focal, cut, own, pair)"),
        ("losses.py:nope", "", "losses.py has no 'nope'"),
        ("losses.py:pair", "nowhere", "there is no run 'nowhere' here"),
    ],
)
def test_what_is_missing_is_one_sentence(
    folder: Path,
    record: Record,
    target: str,
    run: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert surface(folder, monkeypatch, target, "--around", run or str(record.path)) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nope", "train.py defines no function or class 'nope' at its top level"),
        ("train.py:nope", "train.py defines no function or class 'nope' at its top level"),
        ("gone.py:pair", "there is no file gone.py"),
        ("torch.nn.functional:mse_loss", "is a loss of torch; those are recorded without being named"),
        ("losses:", "names no loss; write --loss losses:my_loss"),
    ],
)
def test_a_loss_that_cannot_be_is_refused_before_anything_runs(folder: Path, target: str, sentence: str) -> None:
    runs = set((folder / ".unstuck" / "runs").glob("*"))
    done = command(folder, "-m", "unstuck", "run", "--loss", target, "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert set((folder / ".unstuck" / "runs").glob("*")) == runs


def test_what_the_run_never_defined_is_told_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "short.py").write_text("import torch, losses\nprint(losses.pair.__name__)\n")
    named = ("--loss", "losses:NUMBER", "--loss", "losses:absent", "--loss", "gone:x", "--loss", "losses:pair")
    done = command(tmp_path, "-m", "unstuck", "run", *named, "short.py")
    assert done.stdout == "pair\n"
    told = " ".join(done.stderr.split())
    assert "losses:NUMBER is int, no function and no class with a forward" in told
    assert "losses:absent is not there" in told
    assert "gone:x was never imported" in told


@pytest.mark.slow
def test_an_error_of_the_script_looks_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import torch\ndef loss(x):\n    return x.nothing\n\n\nloss(torch.ones(3))\n")
    alone = command(tmp_path, "bad.py")
    watched = command(tmp_path, "-m", "unstuck", "run", "--loss", "loss", "--quiet", "bad.py")
    assert watched.returncode == alone.returncode == 1
    assert watched.stderr == alone.stderr


@pytest.mark.slow
def test_a_failure_of_ours_does_not_reach_the_program(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import torch\nfrom unstuck.capture.observers import loss_inputs\nloss_inputs._quantiles = None\n"
        "def loss(x):\n    return (x * x).mean()\n\n"
        "loss(torch.ones(3, requires_grad=True)).backward()\nprint('done')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "UNSTUCK_RAISE"}
    words = [sys.executable, "-m", "unstuck", "run", "--loss", "loss", "odd.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "unstuck failed while watching __main__.loss" in " ".join(done.stderr.split())
