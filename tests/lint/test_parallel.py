"""Several processes give the answers of one, in the same order, and end when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lint.conftest import PROJECT, write
from unstuck.lint import engine, workers
from unstuck.lint.settings import Settings
from unstuck.report.formats import json


def many_files(amount: int, statements: int = 0) -> None:
    """Scripts that share modules, some of which import each other in a circle, some of which cannot be read."""
    write({"a.py": "from b import B\nclass A(B): pass\n", "b.py": "from a import A\nclass B(A): pass\n"})
    for number in range(amount):
        text = PROJECT["train.py"].replace("from losses", f"from {'ab'[number % 2]} import *\nfrom losses")
        text += f"model = {'AB'[number % 2]}()\n" + "model.Net = 3\n" * (number % 3) + "# filler\n" * 400
        work = "".join(f"    h{n} = torch.relu(x + {n})\n" for n in range(statements))
        text = text.replace("    loss = ", f"{work}    loss = ")
        write({f"part{number % 7}/script{number}.py": text if number % 11 else "def f(:\n"})


@pytest.mark.parametrize("jobs", [2, 5])
def test_as_many_jobs_as_you_like(project: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    many_files(60)
    alone = json.render(engine.lint(["."], Settings()))
    started = []
    chunks = workers._chunks
    monkeypatch.setattr(workers, "_chunks", lambda *given: started.append(given[-1]) or chunks(*given))
    monkeypatch.setattr(workers, "WORTH_A_WORKER", 1000)
    assert json.render(engine.lint(["."], Settings(), jobs=jobs)) == alone
    assert started == [jobs * workers.CHUNKS_PER_WORKER]  # it was done in parallel
    assert "double-softmax" in alone
    assert "is not valid Python" in alone


def test_the_order_of_files_does_not_matter(project: Path) -> None:
    many_files(30)
    names = sorted(str(path) for path in Path().rglob("*.py"))

    def found(order: list[str]) -> list[str]:
        return sorted(
            f"{d.lead.code} {d.lead.place} {d.lead.message}" for d in engine.lint(order, Settings()).verdict.diagnoses
        )

    assert found(names) == found(names[::-1])
    one_by_one = {line for name in names for line in found([name])}
    assert set(found(names)) == one_by_one


def test_few_files_share_one_process(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = workers.Worker
    monkeypatch.setattr(workers.Worker, "__init__", counted(start.__init__, started))
    engine.lint(["."], Settings(), jobs=8)
    assert len(started) == 1


def counted(function: Callable[..., None], calls: list[object]) -> Callable[..., None]:
    def counting(*given: object) -> None:
        calls.append(given)
        function(*given)

    return counting


def lint_command(words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    program = "import sys; from unstuck.lint import workers; workers.WORTH_A_WORKER = 1000\n"
    program += "from unstuck.cli import main\nif __name__ == '__main__': sys.exit(main(['lint', '.', *sys.argv[1:]]))"
    Path("run_lint.py").write_text(program)
    return subprocess.Popen(
        [sys.executable, "run_lint.py", *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_ends_everything_with_one_line(project: Path, whole_group: bool) -> None:
    many_files(150, statements=800)
    process = lint_command(["--jobs", "2", "--no-cache"], {})
    time.sleep(1.5)
    assert process.poll() is None, "it was over before it could be interrupted"
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    shown, said = process.communicate(timeout=20)
    assert (process.returncode, shown, said) == (130, "", "unstuck: interrupted\n")
    deadline = time.monotonic() + 10
    while somebody_is_left(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not somebody_is_left(process.pid)


def somebody_is_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
