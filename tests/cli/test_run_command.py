from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unstuck import cli
from unstuck.cli.verbs.run import split_arguments
from unstuck.record.runs import new_run_folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py", ([], "train.py", [], False)),
        ("train.py --help --quiet -- x", ([], "train.py", ["--help", "--quiet", "--", "x"], False)),
        ("--quiet train.py --quiet", (["--quiet"], "train.py", ["--quiet"], False)),
        ("--format json train.py", (["--format", "json"], "train.py", [], False)),
        ("--format=json train.py", (["--format=json"], "train.py", [], False)),
        ("-m pkg.train --lr 1", ([], "pkg.train", ["--lr", "1"], True)),
        ("--quiet -m pkg -m x", (["--quiet"], "pkg", ["-m", "x"], True)),
        ("-- --odd.py a", ([], "--odd.py", ["a"], False)),
        ("--quiet", (["--quiet"], None, [], False)),
        ("--output", (["--output"], None, [], False)),
        ("-m", ([], None, [], True)),
        ("", ([], None, [], False)),
    ],
)
def test_everything_after_the_script_is_its_own(words: str, expected: tuple[object, ...]) -> None:
    assert tuple(split_arguments(words.split())) == expected


@pytest.mark.parametrize(
    ("line", "is_said"), [("print('done')", True), ("import argparse", False), ("print('--html')", True)]
)
def test_an_option_of_ours_behind_a_script_that_reads_none_is_pointed_out(
    unstuck: object, line: str, is_said: bool
) -> None:
    Path("alone.py").write_text(f"{line}\n")
    done = unstuck("run", "alone.py", "--html", "page.html", "--epochs")  # type: ignore[operator]
    assert ("--html comes after alone.py and is passed to it" in done.stderr) is is_said
    assert not Path("page.html").exists()


def test_a_folder_of_its_own_for_every_run(own_folder: Path) -> None:
    folders = [new_run_folder("some dir/my train!.py") for _ in range(3)]
    names = [folder.name for folder, _ in folders]
    assert len(set(names)) == 3
    assert re.fullmatch(r"\d{8}-\d{6}-my_train_", names[0])
    assert {folder.parent for folder, _ in folders} == {own_folder / ".unstuck" / "runs"}
    assert Path(".unstuck/.gitignore").read_text() == "*\n"
    assert {sentence for _, sentence in folders} == {""}


def test_where_nothing_can_be_written_the_record_goes_elsewhere_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(".unstuck").write_text("a file is in the way")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "elsewhere"))
    folder, sentence = new_run_folder("train.py")
    assert folder.is_relative_to(tmp_path / "elsewhere")
    assert str(folder) in sentence


def test_no_script_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run"])
    assert stopped.value.code == 2
    assert "name a script" in capsys.readouterr().err


def test_a_missing_script_leaves_no_record_behind(unstuck: object) -> None:
    done = unstuck("run", "nowhere.py")  # type: ignore[operator]
    assert done.returncode == 2
    assert done.stderr.startswith("unstuck: ")
    assert "nowhere.py" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path(".unstuck").exists()


def test_without_torch_it_says_what_to_install(
    broken: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["run", str(broken)]) == 3
    assert "pip install torch" in capsys.readouterr().err


def test_a_broken_script_is_diagnosed_on_stderr(broken: Path, unstuck: object) -> None:
    broken.write_text(broken.read_text() + "print('the end')\n")
    done = unstuck("run", "train.py")  # type: ignore[operator]
    assert done.returncode == 1
    assert done.stdout == "the end\n"
    assert "Likely cause: " in done.stderr
    assert "error O12 double-softmax: " in done.stderr
    assert " --> train.py:11:" in done.stderr
    (record,) = Path(".unstuck/runs").iterdir()
    assert f"Record       {record}" in done.stderr
    again = unstuck("report")  # type: ignore[operator]
    assert again.returncode == 1
    assert "error O12 double-softmax: " in again.stdout
    by_path = unstuck("report", str(record), "--format", "json")  # type: ignore[operator]
    assert json.loads(by_path.stdout)["diagnoses"][0]["code"] == "O12"


def test_a_healthy_script_is_clean_and_quiet_is_quiet(fixed: Path, unstuck: object) -> None:
    done = unstuck("run", "--quiet", "--fail-on", "advice", "good.py")  # type: ignore[operator]
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_script_sees_its_own_arguments_and_its_exit_code_wins(unstuck: object) -> None:
    Path("args.py").write_text("import sys\nprint(sys.argv)\nsys.exit(5)\n")
    done = unstuck("run", "--quiet", "args.py", "--help", "--", "-m")  # type: ignore[operator]
    assert (done.returncode, done.stdout) == (5, "['args.py', '--help', '--', '-m']\n")


def test_a_module(unstuck: object) -> None:
    Path("pkg").mkdir()
    Path("pkg/__init__.py").touch()
    Path("pkg/train.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = unstuck("run", "--quiet", "-m", "pkg.train", "--lr")  # type: ignore[operator]
    assert (done.returncode, done.stdout) == (0, "__main__ ['--lr']\n")


def test_a_crash_is_explained_after_the_traceback(unstuck: object) -> None:
    Path("crash.py").write_text("import torch\ntorch.ones(1).sum().backward()\n")
    done = unstuck("run", "crash.py")  # type: ignore[operator]
    assert done.returncode == 1
    traceback, report = done.stderr.split("─── unstuck")
    assert "RuntimeError" in traceback
    ours = str(Path(cli.__file__).parents[1])  # by the whole path: the clone itself may be in a folder of our name
    assert [file for file in re.findall('File "(.+)", line', traceback) if file.startswith((ours, "<"))] == []
    assert "crash.py crashed after 0 optimizer steps" in report


def test_a_script_with_a_syntax_error_fails_as_it_does_under_python(unstuck: object) -> None:
    Path("bad.py").write_text("def f(:\n")
    done = unstuck("run", "bad.py")  # type: ignore[operator]
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert "bad.py crashed after 0 optimizer steps" in done.stderr
    assert "no longer what ran" not in done.stderr
    assert "Not checked" not in done.stderr, "a wall of codes"


@pytest.mark.slow
def test_a_script_that_changed_since_is_not_quoted(broken: Path, unstuck: object) -> None:
    unstuck("run", "--quiet", "./train.py")  # type: ignore[operator]
    broken.write_text("# a new first line\n" + broken.read_text())
    done = unstuck("report")  # type: ignore[operator]
    assert "train.py is no longer what ran, so its lines are not shown." in done.stdout
    assert " | " not in done.stdout


@pytest.mark.slow
def test_a_script_that_moves_away_is_still_reported(broken: Path, unstuck: object) -> None:
    Path("elsewhere").mkdir()
    broken.write_text("import os, sys\n" + broken.read_text() + "os.chdir('elsewhere')\nsys.stderr = None\n")
    done = unstuck("run", "--format", "json", "--output", "report.json", "train.py")  # type: ignore[operator]
    assert done.returncode == 1
    assert json.loads(Path("report.json").read_text())["diagnoses"][0]["place"]["path"] == "train.py"
    assert not list(Path("elsewhere").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_still_gets_a_report(broken: Path) -> None:
    import signal

    broken.write_text(broken.read_text() + "print('ready', flush=True)\nimport time\ntime.sleep(60)\n")
    environment = {**os.environ, "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-m", "unstuck", "run", "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in shown
    assert "train.py was interrupted after 30 optimizer steps" in shown
    assert "double-softmax" in shown


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_that_the_caller_ignores_stays_ignored() -> None:
    """As in a background job: a Ctrl-C on its terminal is meant for the program in the foreground."""
    import signal

    from unstuck.capture.launch.interrupts import Interrupts

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            interrupts.program_ended()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_what_only_text_can_show_is_reported_with_the_run(unstuck: object, tmp_path: Path) -> None:
    """A run cannot contradict a rule that only reads text: its errors are findings, not a footnote."""
    shutil.copy(Path(__file__).parents[2] / "examples" / "lint" / "train.py", tmp_path / "train.py")
    done = unstuck("run", "train.py")  # type: ignore[operator]
    assert done.returncode == 1
    assert "error G03 clip-scaled-gradients" in done.stderr
    assert "error O05 wrong-mode" in done.stderr
