"""A run that is killed dies as it would without us, and gets its report all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not tell of ended processes")

WAIT = "print('ready', flush=True)\nimport time\ntime.sleep(60)\n"


def ended_by(number: int, *options: str, text: str = WAIT) -> tuple[int, str, str]:
    """Exit code and output of `unstuck run train.py` that is sent a signal when it says that it is ready."""
    with Path("train.py").open("a") as script:
        script.write(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "unstuck", "run", *options, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_what_a_scheduler_kills_is_reported_on(broken: Path, number: signal.Signals) -> None:
    code, _, shown = ended_by(number)
    assert code == -number
    assert "train.py was killed, left by os._exit() or ran out of disk, after at least 30 optimizer steps." in shown
    assert "Likely cause: " in shown
    assert "\nerror O12 double-softmax:" in shown
    assert "Record " in shown


@pytest.mark.slow
def test_a_job_whose_processes_all_get_the_signal(broken: Path) -> None:
    text = "import signal, os\nprint('ready', flush=True)\nos.kill(0, signal.SIGTERM)\n"
    with broken.open("a") as script:
        script.write(text)
    done = subprocess.run(
        [sys.executable, "-m", "unstuck", "run", "train.py"], capture_output=True, text=True, start_new_session=True
    )
    assert done.returncode == -signal.SIGTERM
    assert "O12 double-softmax:" in done.stderr


@pytest.mark.slow
def test_the_report_goes_where_it_was_asked_for(broken: Path) -> None:
    code, _, shown = ended_by(signal.SIGTERM, "--format", "json", "--output", "report.json")
    assert code == -signal.SIGTERM
    assert "the report is in" in shown
    assert '"unfinished"' in Path("report.json").read_text()


def test_a_handler_of_the_program_decides(broken: Path) -> None:
    handler = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
    code, _, shown = ended_by(signal.SIGTERM, text=handler + WAIT)
    assert code == 9
    assert "train.py exited after 30 optimizer steps" in shown
    assert shown.count("─── unstuck") == 1


@pytest.mark.slow
def test_silence_stays_silence(broken: Path) -> None:
    assert ended_by(signal.SIGTERM, "--quiet") == (-signal.SIGTERM, "", "")


def test_what_trained_nothing_has_nothing_to_tell(tmp_path: Path) -> None:
    assert ended_by(signal.SIGTERM) == (-signal.SIGTERM, "", "")


def test_the_program_finds_no_child_and_nobody_stays(broken: Path) -> None:
    text = """
import os
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
"""
    with broken.open("a") as script:
        script.write(text)
    done = subprocess.run([sys.executable, "-m", "unstuck", "run", "train.py"], capture_output=True, text=True)
    assert done.stdout == "no child\n"
    assert done.stderr.count("─── unstuck") == 1
    listed = subprocess.run(["pgrep", "-f", str(Path.cwd())], capture_output=True, text=True).stdout
    assert not listed
