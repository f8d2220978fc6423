"""Forwarding to trackers: what arrives there, and that the run notices nothing of it, whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.view.records import events_of_a_run, record_of, written
from unstuck.capture.trial.layout import TRIAL
from unstuck.events import TensorGauges, TensorsNamed
from unstuck.record import read
from unstuck.tfevents.reader import scalars
from unstuck.trackers import missing
from unstuck.trackers.tensorboard import begin
from unstuck.trials.runner import ENVIRONMENT
from unstuck.watch.forward import MOST_TENSORS, hand_over, run_of
from unstuck.watch.forwarding import Forwarding, checked

SCRIPT = """\
import torch
from torch import nn
{first}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{last}
"""
LOOK = """\
import threading
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("none")
print(threading.active_count())
"""
TRACKER = """\
import os, sys, time
NEEDS = {needs!r}

def current():
    return {{"seen": str(os.getpid())}}

def begin(run, place):
    return Own(run, place)

class Own:
    def __init__(self, run, place):
        {begin}
        self.where = "a file"
        self.say("begin", run.script, place["seen"] != str(os.getpid()), os.environ.get("SET_BY_SCRIPT"))
    def say(self, *words):
        print(*words, file=open("own.txt", "a"))
    def numbers(self, step, numbers):
        {numbers}
        self.say("numbers", step, *sorted(numbers))
    def histogram(self, step, name, edges, counts):
        self.say("histogram", step, name, len(edges) - len(counts))
    def finding(self, found):
        self.say("finding", found.code)
    def flush(self):
        pass
    def end(self, findings):
        self.say("end", *[found.code for found in findings])
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSTUCK_RAISE", raising=False)
    return tmp_path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a tracker of another package, called `own`."""

    def install(needs: str = "", begin: str = "pass", numbers: str = "pass") -> None:
        site = tmp_path / "site"
        (site / "own-1.dist-info").mkdir(parents=True)
        (site / "own-1.dist-info" / "METADATA").write_text("Name: own\nVersion: 1\n")
        (site / "own-1.dist-info" / "entry_points.txt").write_text("[unstuck.trackers]\nown = own_tracker\n")
        (site / "own_tracker.py").write_text(TRACKER.format(needs=needs, begin=begin, numbers=numbers))
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, "own_tracker", raising=False)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))

    return install


def run(*words: str, first: str = "", last: str = "") -> subprocess.CompletedProcess[str]:
    Path("train.py").write_text(SCRIPT.format(first=first, last=last))
    command = [sys.executable, "-m", "unstuck", "run", *words, "train.py"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def sentences_about_a_record(*trackers: str, patience: float = 30.0) -> list[str]:
    """What a program says that forwards a run which is over."""
    said: list[str] = []
    folder = written(Path("runs/20260101-120000-train"), *events_of_a_run(25, 2))
    forwarding = Forwarding(trackers, folder, said.append)
    forwarding.window_ended()
    forwarding.end(patience)
    return said


def of_unstuck(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("unstuck: ") and "error O12" not in line]


def event_file(folder: Path) -> Path:
    (file,) = folder.rglob("events.out.tfevents.*")
    return file


def test_tensorboard_gets_what_is_on_record() -> None:
    done = run("--to", "tensorboard")
    assert done.returncode == 1, done.stderr
    (folder,) = Path(".unstuck/runs").iterdir()
    where = f"runs/unstuck/{folder.name}"
    assert of_unstuck(done) == [f"unstuck: forwarding to tensorboard: {where} (tensorboard --logdir runs)"]
    file = event_file(Path(where))
    found = list(scalars(file))
    losses = [(one.step, one.value) for one in found if one.tag == "unstuck/loss"]
    assert losses == [(step, pytest.approx(loss)) for step, loss in read(folder).losses]
    assert len(losses) == 30
    tags = {one.tag for one in found}
    assert {"unstuck/lr", "unstuck/grad_norm", "unstuck_update_ratio/0.weight", "unstuck_dead/relu after 0"} <= tags
    assert b"error O12 double-softmax" in file.read_bytes()


def test_another_package_brings_a_tracker_and_is_run_elsewhere(package) -> None:
    package()
    done = run("--to", "own", first="import os; os.environ['SET_BY_SCRIPT'] = 'yes'", last=LOOK)
    assert done.returncode == 1
    assert done.stdout == "none\n1\n", "the program sees a child or a thread of ours"
    assert of_unstuck(done) == ["unstuck: forwarding to own: a file"]
    lines = Path("own.txt").read_text().splitlines()
    assert lines[0] == "begin train.py True yes"
    assert lines[-1] == "end O12"
    assert lines.count("finding O12") == 1
    assert [line for line in lines if line.startswith("numbers 29 ") and "unstuck/loss" in line]
    assert [line for line in lines if line.startswith("histogram ")]
    assert all(line.endswith(" 1") for line in lines if line.startswith("histogram "))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"needs": "no_such_package"},
            "nothing is forwarded to own, which is not installed here: pip install no_such_package",
        ),
        (
            {"begin": "raise ValueError('no key\\nsecond line')"},
            "nothing is forwarded to own: ValueError: no key",
        ),
        ({"begin": "sys.exit(3)"}, "nothing is forwarded to own: SystemExit: 3"),
        ({"begin": "import no_such_module"}, "nothing is forwarded to own: ModuleNotFoundError: No module named"),
    ],
)
def test_a_tracker_that_fails_costs_one_sentence(package, options: dict[str, str], sentence: str) -> None:
    package(**options)
    (line,) = sentences_about_a_record("own")
    assert line.startswith(sentence)


def test_a_tracker_that_fails_later_leaves_the_exit_code_and_the_others(package) -> None:
    package(numbers="raise OSError('the server is gone')")
    done = run("--to", "own,tensorboard", "--fail-on", "never")
    assert done.returncode == 0
    assert sorted(of_unstuck(done)) == [
        "unstuck: forwarding to own: a file",
        f"unstuck: forwarding to tensorboard: runs/unstuck/{next(Path('.unstuck/runs').iterdir()).name} "
        "(tensorboard --logdir runs)",
        "unstuck: nothing more is forwarded to own: OSError: the server is gone",
    ]


def test_a_tracker_that_hangs_is_not_waited_for(package, monkeypatch: pytest.MonkeyPatch) -> None:
    package(begin="open('pid', 'w').write(str(os.getpid())); time.sleep(60)")
    began = time.monotonic()
    assert sentences_about_a_record("own", patience=5.0) == [
        "own has not answered so far; it is tried again in the background."
    ]
    assert time.monotonic() - began < 20
    os.kill(int(Path("pid").read_text()), signal.SIGKILL)


def test_the_folder_of_a_tracker_is_not_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    Path("no_such_tracker").mkdir()
    monkeypatch.setattr("unstuck.trackers.wandb.NEEDS", "no_such_tracker")
    assert "wandb, which is not installed here" in missing("wandb")


def test_an_unknown_tracker_is_refused_before_the_script_begins() -> None:
    done = run("--to", "Tensorbord", first="print('began')")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "unstuck: there is no tracker 'Tensorbord'; did you mean 'tensorboard'?\n"


def test_numbers_arrive_while_the_run_goes_on(package) -> None:
    package()
    wait = """
import os, time
began = time.monotonic()
while time.monotonic() - began < 60 and not (os.path.exists("own.txt") and "numbers 9 " in open("own.txt").read()):
    time.sleep(0.1)
    optimizer.step()
print("live" if "numbers 9 " in open("own.txt").read() else "late")
"""
    assert run("--to", "own", last=wait).stdout == "live\n"


def test_a_run_that_is_killed_arrives_all_the_same(package) -> None:
    package()
    done = run("--to", "own", last="import os; os.kill(os.getpid(), 9)")
    assert done.returncode == -9
    deadline = time.monotonic() + 200  # it is nice, and other tests are busy
    while not Path("own.txt").exists() or "end O12" not in Path("own.txt").read_text():
        assert time.monotonic() < deadline, Path("own.txt").read_text() if Path("own.txt").exists() else "nothing"
        time.sleep(0.2)


def test_trials_forward_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRIAL in ENVIRONMENT
    monkeypatch.setenv(TRIAL, ENVIRONMENT[TRIAL])
    said: list[str] = []
    forwarding = Forwarding(("tensorboard", "wandb"), tmp_path / "run", said.append)
    forwarding.window_ended()
    forwarding.end()
    assert said == []


def test_only_the_first_rank_forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for rank, count in (("1", 0), ("0", 1)):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        folder = written(tmp_path / rank / "run", *events_of_a_run(5, 1))
        forwarding = Forwarding(("tensorboard",), folder, said.append)
        forwarding.window_ended()
        forwarding.end()
        assert len(said) == count


def test_names_are_checked() -> None:
    assert checked("wandb") == ("wandb",)
    assert checked(("mlflow", "wandb", "mlflow")) == ("mlflow", "wandb")
    with pytest.raises(ValueError, match="there is no tracker 3; the trackers are mlflow, tensorboard, trackio, wandb"):
        checked([3])  # type: ignore[list-item]


def handed_over(*events: object) -> list[tuple[str, int, float]]:
    record = record_of(*events)  # type: ignore[arg-type]
    folder = Path("run")
    hand_over(record, begin(run_of(record, folder), {"folder": "there"}), folder)
    return [(one.tag, one.step, one.value) for one in scalars(event_file(Path("there/unstuck")))]


def test_a_second_optimizer_is_named() -> None:
    first, second = (list(events_of_a_run(3, 1, optimizer=name)) for name in ("Adam", "Adam#2"))
    tags = {tag for tag, _, _ in handed_over(*first, *second)}
    assert {"unstuck/loss", "unstuck/loss (Adam#2)", "unstuck_grad_norm/blocks.0.weight (Adam#2)"} <= tags


def test_of_a_long_run_no_peak_is_lost() -> None:
    losses = [1.0 + 0.001 * (step % 7) for step in range(6000)]
    losses[4321], losses[4322] = 50.0, 0.25
    events = [
        event for event in events_of_a_run(6000, 1, every=50, losses=losses) if not isinstance(event, TensorGauges)
    ]
    found = [(step, value) for tag, step, value in handed_over(*events) if tag == "unstuck/loss"]
    assert [step for step, _ in found if step < 2000] == list(range(2000))
    assert {(4321, 50.0), (4322, 0.25)} <= set(found)
    assert len(found) < 2000 + 3 * 81
    assert found == sorted(found)


def test_of_a_huge_model_the_largest_tensors_are_forwarded() -> None:
    count = MOST_TENSORS + 50
    named = TensorsNamed(
        optimizer="Adam",
        names=tuple(f"p{index}" for index in range(count)),
        kinds=("",) * count,
        sizes=tuple(range(count)),
        dimensions=(2,) * count,
        groups=(0,) * count,
        depths=(0,) * count,
    )
    found = handed_over(named, TensorGauges(optimizer="Adam", step=0, weight_norm=(1.0,) * count))
    assert {tag for tag, _, _ in found} == {f"unstuck_weight_norm/p{index}" for index in range(50, count)}
