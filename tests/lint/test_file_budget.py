"""A file that takes too long or too much is one line in the report, and the others are judged as ever."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unstuck import cli
from unstuck.findings import Finding, Severity
from unstuck.lint import budget, engine, worker, workers
from unstuck.lint.outcome import Outcome
from unstuck.lint.settings import Settings
from unstuck.lint.workers import Reader
from unstuck.rule import Rule
from unstuck.source import Script

HEAD = """import torch
import torch.optim as optim
from torch import nn
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
a = [1, 2]
d = {'k': a}
s = 'text'
t = (1, 2)
"""
TAIL = "loss = model(x)\nloss.backward()\noptimizer.step()\n"
GROWING = [
    "a += a", "a = a + a", "a.extend(a)", "a = [*a, *a]", "a *= 10**9", "a = a * 10**9", "a.append(a)", "a[0] = a",
    "a.insert(0, a)", "a = list(a) + list(a)", "a = sum([a, a], [])", "f(*a, *a)", "a = [a, a]", "a = (a, a)",
    "a = {'x': a, 'y': a}", "a = [b for b in a for c in a]", "a = [a for _ in range(10**12)]", "d['k'] = d",
    "d.update(d)", "d = {**d, **d}", "d = {'a': d, 'b': d}", "s = s + s", "s += s", "s *= 10**9", "s = f'{s}{s}'",
    "s = s.join([s, s])", "t = t + t", "t += t", "t = (t, t)", "t = t if a else (t, t)", "x = range(10**12)",
    "for i in range(10**12): a += a", "while True: a += a",
    "if s: a = [a]\nelse: a = (a, 1)", "model = model or [model]",
    "loss = loss + loss", "loss += loss", "loss = torch.stack([loss, loss])", "net = nn.Sequential(net, net)",
    "net = nn.Sequential(model, model)", "loss = net(loss)", "model.next = model", "net = net.sub", "optim = optim.x",
    "def f(x): return f(x) + f(x)", "f(f(x))", "g = lambda v: g(v) + g(v)", "g(a)", "x = 'z' * 10**9", "x = 1 << 10**9",
    "for layer in net: loss = layer(loss)", "a, b = b, a", "a = [*a, *t, *d]", "a = a[0]", "a = a.b", "a = a()",
    "try: a += a\nexcept E: a = [a]", "with a as a: a += a", "x = a and a or a", "net.extend(net)", "net.append(net)",
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems_of(text: str) -> list[str]:
    Path("odd.py").write_text(text)
    result = engine.lint(["odd.py"], Settings())
    assert result.verdict.failures == ()
    return [problem.message for problem in result.problems]


def test_what_the_issue_saw_ends() -> None:
    assert problems_of("import torch.optim as optim\n\na = [1, 2]\na += a\n") == []


@pytest.mark.parametrize("start", range(0, len(GROWING), 15))
def test_values_that_grow_with_each_line_stay_small(start: int) -> None:
    for line in GROWING[start : start + 15]:
        assert problems_of(HEAD + f"{line}\n" * 60 + TAIL) == [], line


LARGE = {
    "loops inside each other": HEAD
    + "".join(" " * n + f"for i{n} in a:\n" for n in range(90)) + " " * 90 + "loss.backward()",
    "networks inside each other": HEAD + "net = nn.Sequential(model, model)\n" + "net = nn.Sequential(net, net)\n" * 60
    + "loss = net(x)\n" + TAIL,
    "loops over layers inside each other": HEAD
    + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    + f"        self.layers = nn.ModuleList([{'nn.Linear(2, 2), ' * 24}])\n    def forward(self, x):\n"
    + "".join("    " * (n + 2) + f"for layer{n} in self.layers:\n" for n in range(8))
    + "    " * 10 + "x = layer7(x)\n        return x\nloss = Net()(x)\n" + TAIL,
    "classes with many bases": HEAD
    + "".join(
        f"class C{n}_{m}({', '.join(f'C{n - 1}_{k}' for k in range(12)) if n else ''}): pass\n"
        for n in range(9) for m in range(12)
    ) + "C8_0().train()\n" + TAIL,
    "a name that grows": HEAD + "import z\n" + "z = z.y\n" * 5_000 + TAIL,
    "a large literal": HEAD + f"a = {list(range(50_000))}\na = a + a + a\n" + TAIL,
    "a huge number": HEAD + f"a = 0x{'f' * 100_000}\nb = -a\n" + TAIL,
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_a_small_file_that_means_much_is_read(name: str) -> None:
    assert problems_of(LARGE[name]) == []


def composed(seed: int) -> str:
    """A valid script made of the lines above, in loops, branches and functions."""
    chance = random.Random(seed)
    lines: list[str] = []
    depth = 0
    for _ in range(chance.randint(20, 120)):
        kind = chance.random()
        if kind < 0.12 and depth < 12:
            opening = ["for x in a:", "while a:", "if a:", "def f(*a):", "with torch.no_grad():", "class C(nn.Module):"]
            lines.append("    " * depth + chance.choice(opening))
            depth += 1
        statement = chance.choice(GROWING)
        lines += ["    " * depth + line for line in statement.split("\n")]
        if kind > 0.85 and depth:
            depth -= 1
    return HEAD + "\n".join(lines) + "\n" + TAIL


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_composed_of_them_ends_within_the_budget(seed: int, tmp_path: Path) -> None:
    for number in range(20):
        Path(f"script{number}.py").write_text(composed(seed * 1000 + number))
        compile(Path(f"script{number}.py").read_text(), "composed", "exec", dont_inherit=True)
    result = engine.lint(["."], Settings())
    assert [problem.message for problem in result.problems] == []
    assert result.verdict.failures == ()
    assert result.files == 20


def misread(path: Path, *given: object) -> Outcome:
    """A reader that a file can make do anything."""
    if path.stem == "slow":
        while True:
            pass
    if path.stem == "asleep":
        time.sleep(1000)
    if path.stem == "large":
        with contextlib.suppress(ValueError):
            _ = [bytearray(2**24) for _ in range(1000)]
    if path.stem == "crash":
        os._exit(3)
    if path.stem == "bug":
        raise ZeroDivisionError("planted")
    return Outcome(None, None, {})


SENTENCES = {
    "slow": "slow.py was skipped: it takes more than 1 seconds to read.",
    "asleep": "asleep.py was skipped: it takes more than 1 seconds to read.",
    "large": "large.py was skipped: it takes more than 0.5 GB of memory to read.",
    "crash": "crash.py was skipped: it crashed the process that read it, which is a bug in unstuck.",
}


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    read = worker.outcome_of

    def outcome_of(path: Path, *given: object) -> Outcome:
        return misread(path, *given) if path.stem in (*SENTENCES, "bug") else read(path, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "outcome_of", outcome_of)
    monkeypatch.setattr(budget, "SECONDS", 1)
    monkeypatch.setattr(worker, "PATIENCE", 4)
    monkeypatch.setattr(budget, "GIGABYTES", 0.5)
    monkeypatch.delenv("UNSTUCK_RAISE", raising=False)
    for name in SENTENCES:
        Path(f"{name}.py").write_text("import torch\n")
    for name in ("a", "m", "z"):
        Path(f"{name}.py").write_text("import torch\nx = torch.zeros(3)\n")


def test_a_file_beyond_its_budget_costs_only_itself(small_budget: None) -> None:
    result = engine.lint(["."], Settings())
    assert sorted(problem.message for problem in result.problems) == sorted(SENTENCES.values())
    assert result.files == 3


@pytest.mark.parametrize("name", ["slow", "asleep", "large"])
def test_a_single_file_beyond_its_budget_is_given_up_too(small_budget: None, name: str) -> None:
    """It is tried in this process first."""
    before = signal.getsignal(signal.SIGALRM), resource.getrlimit(resource.RLIMIT_AS)
    result = engine.lint([f"{name}.py"], Settings())
    assert [problem.message for problem in result.problems] == [SENTENCES[name]]
    assert (signal.getsignal(signal.SIGALRM), resource.getrlimit(resource.RLIMIT_AS)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_small_file_starts_no_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.py").write_text("import torch\n")
    refuse_processes(monkeypatch, 0)
    engine.lint(["good.py"], Settings())
    assert capsys.readouterr().err == ""


def test_what_rules_of_others_print_is_not_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are asked in a worker, whose output goes nowhere."""
    noisy = Rule("X01", "noisy", "prints", Severity.ADVICE)

    @noisy.in_source
    def in_source(script: Script) -> list[Finding]:
        print("noise")
        return []

    monkeypatch.setattr(worker, "rules_of_other_packages", lambda: (noisy,))
    monkeypatch.setattr(worker, "source_rules", lambda: (noisy,))
    Path("good.py").write_text("import torch\n")
    (outcome,) = workers.judge_files([Path("good.py")], [noisy], 1)
    assert outcome.verdict is not None
    assert not outcome.verdict.failures
    assert "noise" not in capsys.readouterr().out


def test_a_bug_of_ours_costs_only_the_file_it_showed_up_in(small_budget: None) -> None:
    Path("bug.py").write_text("import torch\n")
    result = engine.lint(["a.py", "bug.py", "z.py"], Settings())
    assert result.verdict.failures == ("bug.py could not be judged: ZeroDivisionError: planted",)
    assert result.files == 3


@pytest.mark.parametrize("wanted", ["text", "concise", "json", "json-lines", "sarif", "github", "junit"])
def test_every_format_says_which_file_was_given_up(
    small_budget: None, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SENTENCES:
        if name != "crash":
            Path(f"{name}.py").unlink()
    Path("good.py").write_text("import torch\n")
    assert cli.main(["lint", ".", "--format", wanted, "--select", "O12", "--no-cache"]) == 2
    shown = capsys.readouterr()
    assert SENTENCES["crash"] in (shown.out if wanted == "text" else shown.err)
    if wanted not in ("concise", "json-lines"):
        assert "crash.py" in shown.out
    if wanted in ("json", "sarif"):
        json.loads(shown.out)


SMALL_BUDGET = "import unstuck.lint.budget as budget\nbudget.SECONDS = 1\nbudget.SECONDS_PER_MB = 0\n"
SLOW = (
    HEAD + "".join(f"n{n} = 1\n" for n in range(15_000)) + "".join(f"if a{n}:\n    n{n} = 2\n" for n in range(15_000))
)


@pytest.fixture
def slow_file(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real file that is beyond a budget of one second."""
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(SMALL_BUDGET)
    monkeypatch.setenv("PYTHONPATH", str(own_folder / "site"))
    Path("slow.py").write_text(SLOW + TAIL)
    return Path("slow.py")


def test_the_command_gives_up_a_file_and_goes_on(slow_file: Path) -> None:
    Path("good.py").write_text("import torch\n")
    command = [sys.executable, "-m", "unstuck", "lint", "good.py", "slow.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "slow.py was skipped: it takes more than 1 seconds to read." in done.stdout
    assert "Nothing found in 1 file" in done.stdout


def test_a_text_from_stdin_is_given_up_too(slow_file: Path) -> None:
    command = [sys.executable, "-m", "unstuck", "lint", "-"]
    done = subprocess.run(command, input=slow_file.read_text(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "takes more than 1 seconds to read" in done.stdout


@pytest.mark.slow
def test_flake8_goes_on(slow_file: Path) -> None:
    Path("good.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "flake8", "--isolated", "--jobs", "1", "--select", "UN", "good.py", "slow.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def in_a_thread(work: Callable[[], object]) -> None:
    """As the editor server does it, where this process cannot fork."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(100)
    assert not thread.is_alive()
    assert failed == []


def test_an_editor_gets_an_answer_and_the_next_one_too(slow_file: Path) -> None:
    reader = Reader()
    settings = Settings()
    said: list[list[str]] = []

    def look() -> None:
        for text in ("import torch\n", slow_file.read_text(), "import torch\n", "def f(:\n"):
            result = engine.lint_text("slow.py", text, settings, reader)
            said.append([problem.message for problem in result.problems])
        reader.close()

    in_a_thread(look)
    assert said[0] == said[2] == []
    assert re.search(r"takes more than \d+ seconds to read", said[1][0])  # this process itself has another budget
    assert "is not valid Python" in said[3][0]


def children() -> set[str]:
    """Ours now, be they those of other tests."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_no_process_is_left(small_budget: None) -> None:
    before = children()
    engine.lint(["."], Settings(), jobs=2)
    assert children() <= before
    assert not worker.Worker._alive


MISTAKEN = "for x in a:\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"


def refuse_processes(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """As a system does whose number of processes is limited."""
    fork, started = os.fork, []

    def limited() -> int:
        if len(started) >= after:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    workers._mention_missing_limits.cache_clear()


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("after", [0, 1])
def test_where_no_process_can_be_started_the_answers_are_the_same(
    jobs: str, after: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(8):
        Path(f"script{number}.py").write_text(HEAD + f"n = {number}\n" * 200 + MISTAKEN)
    monkeypatch.setattr(workers, "WORTH_A_WORKER", 1)
    command = ["lint", ".", "--no-cache", "--format", "concise", "--jobs", jobs]
    code, usual = cli.main(command), capsys.readouterr()
    descriptors = len(os.listdir("/proc/self/fd"))
    refuse_processes(monkeypatch, after)
    assert cli.main(command) == code
    shown = capsys.readouterr()
    assert shown.out == usual.out != ""
    mention = "unstuck: the system refused to start another process, so files are judged in this one, without limits"
    assert shown.err.count(mention) == (after == 0)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_files_after_one_that_ended_the_only_process_are_judged(
    small_budget: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_processes(monkeypatch, 1)
    result = engine.lint(["a.py", "crash.py", "m.py", "z.py"], Settings())
    assert [problem.message for problem in result.problems] == [SENTENCES["crash"]]
    assert result.files == 3


def test_a_text_is_judged_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_processes(monkeypatch, 0)
    result = engine.lint_text("script.py", "def f(:\n", Settings())
    assert "is not valid Python" in result.problems[0].message
