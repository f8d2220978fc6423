"""What `unstuck run` does while the script runs: announces errors, stops hopeless runs, survives impatience."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import make_finding

from unstuck import cli
from unstuck.events import Gauges, OptimizerStep, RunStarted
from unstuck.findings import Diagnosis, Severity, Witness, merge
from unstuck.findings.verdict import Verdict
from unstuck.record import Writer, read
from unstuck.record.runs import new_run_folder, run_folders
from unstuck.watch import monitor
from unstuck.watch.announce import retractions

SLOW = """\
import sys, time, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
try:
    for step in range(STEPS):
        x, y = torch.randn(16, 8), torch.randint(3, (16,))
        loss = nn.functional.cross_entropy(OUTPUT, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
except ValueError:
    pass
finally:
    print("cleaned up at step", step)
"""
LINE = "unstuck: error O12 double-softmax: cross_entropy is given the output of softmax"


def script(output: str = "model(x).softmax(1)", steps: int = 300) -> None:
    Path("train.py").write_text(SLOW.replace("OUTPUT", output).replace("STEPS", str(steps)))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def latest():
    (folder,) = run_folders()
    return read(folder)


def test_an_error_is_announced_while_the_script_runs(unstuck: object) -> None:
    script()
    done = unstuck("run", "train.py")  # type: ignore[operator]
    assert done.returncode == 1
    first, rest = done.stderr.split("\n", 1)
    assert first.startswith(LINE)
    assert first.endswith("(train.py:9)")
    assert "train.py finished after 300 optimizer steps" in rest
    assert rest.count("double-softmax: ") == 1


@pytest.mark.slow
def test_a_short_run_is_judged_at_its_end_only(unstuck: object) -> None:
    script(steps=9)
    done = unstuck("run", "train.py")  # type: ignore[operator]
    assert done.stderr.startswith("\n─── unstuck")
    assert "error O12" in done.stderr


@pytest.mark.slow
def test_a_report_for_programs_stays_alone(unstuck: object) -> None:
    script()
    done = unstuck("run", "--format", "json", "train.py")  # type: ignore[operator]
    assert json.loads(done.stderr)["diagnoses"][0]["code"] == "O12"


def test_a_hopeless_run_is_stopped(unstuck: object) -> None:
    script()
    done = unstuck("run", "--stop-on", "error", "train.py")  # type: ignore[operator]
    assert done.returncode == 4
    assert done.stderr.startswith(LINE)
    assert "train.py was stopped early, after" in done.stderr
    assert "because of O12 double-softmax at" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    record = latest()
    assert record.ended
    assert (record.ended.status, record.ended.exit_code) == ("stopped", 4)
    assert record.ended.steps < 250
    assert done.stdout == f"cleaned up at step {record.ended.steps - 1}\n"
    again = unstuck("report", "--format", "json")  # type: ignore[operator]
    run = json.loads(again.stdout)["run"]
    assert run["status"] == "stopped"
    assert run["reason"] == "O12 double-softmax at train.py:9 (stop on error)"


@pytest.mark.slow
def test_a_healthy_run_is_not_stopped(unstuck: object) -> None:
    script("model(x)", steps=60)
    done = unstuck("run", "--stop-on", "warning", "train.py")  # type: ignore[operator]
    assert (done.returncode, done.stdout) == (0, "cleaned up at step 59\n")


def test_a_value_that_is_not_finite_is_announced_at_once(unstuck: object) -> None:
    script("model(x) / (step < 3)", steps=40)
    done = unstuck("run", "--stop-on", "error", "train.py")  # type: ignore[operator]
    assert done.returncode == 4
    assert done.stderr.startswith("unstuck: error G10 non-finite: ")
    assert done.stdout in ("cleaned up at step 3\n", "cleaned up at step 4\n")


@pytest.mark.slow
def test_a_program_that_catches_the_stop_goes_on(unstuck: object) -> None:
    script()
    text = Path("train.py").read_text().replace("        optimizer.step()\n", "        one_step()\n")
    step = "def one_step():\n    try:\n        optimizer.step()\n    except BaseException as error:\n"
    Path("train.py").write_text(text.replace("try:\n", step + "        print(type(error).__name__)\ntry:\n", 1))
    done = unstuck("run", "--stop-on", "error", "train.py")  # type: ignore[operator]
    assert done.stdout == "RunStopped\ncleaned up at step 299\n"
    assert done.returncode == 1
    assert "train.py finished after 300 optimizer steps" in done.stderr


@pytest.mark.parametrize("word", ["0", "-1", "2.5", "x", "²"])
def test_every_takes_a_whole_number(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", f"--every={word}", "train.py"])
    assert stopped.value.code == 2
    assert "is not a positive integer" in capsys.readouterr().err


@pytest.mark.slow
def test_every_asks_for_fewer_steps(unstuck: object) -> None:
    script("model(x)", steps=12)
    done = unstuck("run", "--every", "5", "--quiet", "train.py")  # type: ignore[operator]
    assert done.returncode == 0
    assert [event.step for event in latest().of(OptimizerStep)] == [0, 5, 10]


def test_judging_an_ongoing_run_stays_within_its_share(tmp_path: Path) -> None:
    """The budget is kept by the clock, not by hope: without time there is no judgement."""
    watched = monitor.Monitor(tmp_path / "none.jsonl", lambda diagnosis: None)
    looked: list[int] = []
    watched._look = lambda: looked.append(watched._windows)  # type: ignore[method-assign]
    for _ in range(400):
        watched.heard(Gauges())
        watched.window_ended()
    assert looked == []
    watched._began -= 100
    watched.window_ended()
    assert looked == [401]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_impatient_ctrl_c_still_gets_a_report() -> None:
    script()
    text = Path("train.py").read_text().replace("for step", "print('ready', flush=True)\n    for step", 1)
    Path("train.py").write_text(text)
    with subprocess.Popen(
        [sys.executable, "-m", "unstuck", "run", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        for _ in range(6):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        _, shown = process.communicate(timeout=60)
    # Python itself no longer handles signals in the very last moments of a process.
    assert process.returncode in (130, -signal.SIGINT)
    assert "train.py was interrupted after" in shown
    assert "Record " in shown


def test_a_record_that_had_to_go_elsewhere_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from unstuck.capture import watching

    Path(".unstuck").write_text("a file is in the way")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "elsewhere"))
    folder, _ = new_run_folder("train.py")
    with watching(folder):
        pass
    assert cli.main(["report"]) == 0
    assert f"Record       {folder.relative_to(tmp_path)}" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert cli.main(["report"]) == 2


def test_an_error_that_the_whole_run_judges_otherwise_is_taken_back() -> None:
    def found(severity: Severity, code: str = "M14") -> Diagnosis:
        (diagnosis,) = merge([make_finding(code, witness=Witness.RUN, severity=severity)])
        return diagnosis

    loud, quiet = found(Severity.ERROR), found(Severity.WARNING)
    assert list(retractions([(loud, 30)], [loud])) == []
    assert list(retractions([(quiet, 30)], [])) == []  # only errors are announced
    (changed,) = retractions([(loud, 30)], [found(Severity.ERROR, "O12"), quiet])
    assert changed.startswith("M14 some-rule was announced as an error after 30 steps. Over the whole run it is a warn")
    (gone,) = retractions([(loud, 30)], [])
    assert "it is not found any more, because what came later counts too." in gone


def test_two_judgements_must_be_equally_loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that has just jumped is an error, and a moment later perhaps a warning."""
    said: list[Severity] = []
    watched = monitor.Monitor(tmp_path / "run.jsonl", lambda diagnosis: said.append(diagnosis.severity))
    Writer(tmp_path / "run.jsonl")(RunStarted(script="train.py"))
    severities = [Severity.ERROR, Severity.WARNING, Severity.ERROR, Severity.ERROR]

    def judged(**_: object) -> Verdict:
        return Verdict(diagnoses=tuple(merge([make_finding("M14", witness=Witness.RUN, severity=severities[0])])))

    monkeypatch.setattr("unstuck.judge.judge", judged)
    while severities:
        watched._look()
        assert len(said) == (len(severities) == 1)
        del severities[0]
    assert said == [Severity.ERROR]
    assert [steps for _, steps in watched.announced] == [0]
