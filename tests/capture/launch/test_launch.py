"""A program cannot tell `launch` from `python`: both print the same, fail the same and exit the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from unstuck.capture import LaunchError, launch
from unstuck.events import Crash
from unstuck.record import read

CONTEXT = """\
'''A docstring.'''
import os, sys, warnings
def shown(value):
    return type(value).__name__ if "Loader" in type(value).__name__ else repr(value)
for name, value in list(globals().items()):
    if name not in ("shown", "__loader__", "__spec__"):
        print(name, value)
print(shown(__loader__), __loader__.name, __spec__ and (__spec__.name, __spec__.origin, __spec__.parent))
print(sys.argv, sys.path, sys.flags, os.getcwd())
print(sys.modules["__main__"].__dict__ is globals(), sys.modules["__main__"])
print("torch" in sys.modules, warnings.filters[:3], sys.stdin.read(), sys.gettrace(), sys.excepthook)
warnings.warn("careful", DeprecationWarning)
import pickle, inspect
class Local: pass
print(pickle.loads(pickle.dumps(Local)) is Local, inspect.getsource(Local))
import helper
print(helper.__file__)
"""

RUNNER = (
    "import sys; from unstuck.capture import launch; "
    "sys.exit(launch({target!r}, sys.argv[1:], as_module={module}, record_path={record!r}))"
)


class Outcome:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


def both(folder: Path, target: str, *arguments: str, module: bool = False, env=None) -> tuple[Outcome, Outcome]:
    """The program under python and under us, in the same directory."""
    record = str(folder / "record")
    runner = RUNNER.format(target=target, module=module, record=record)
    plain = [sys.executable, *(["-m"] if module else []), target, *arguments]
    watched = [sys.executable, "-c", runner, *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "UNSTUCK_RAISE": "1", **(env or {})}
    outcomes = [
        Outcome(
            subprocess.run(
                command,
                cwd=folder,
                capture_output=True,
                text=True,
                input="typed",
                env=environment,
                check=False,
            )
        )
        for command in (plain, watched)
    ]
    return outcomes[0], outcomes[1]


def same(one: Outcome, other: Outcome) -> None:
    assert (one.out, one.err, one.code) == (other.out, other.err, other.code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "train.py").write_text(CONTEXT)
    return tmp_path


def write(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(textwrap.dedent(text))
    return "program.py"


def test_the_whole_context_of_a_script(folder):
    plain, watched = both(folder, "train.py", "--lr", "0.1", "-x")
    assert "careful" in plain.err
    same(plain, watched)


def test_the_whole_context_of_a_script_elsewhere(folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "helper.py").write_text("")
    (folder / "deep" / "train.py").write_text(CONTEXT)
    same(*both(folder, "deep/train.py"))


def test_the_whole_context_of_a_module(folder):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "train.py").write_text(CONTEXT)
    (folder / "package" / "__main__.py").write_text(CONTEXT)
    same(*both(folder, "package.train", "a", module=True))
    (folder / "record" / "events.jsonl").unlink()
    same(*both(folder, "package", module=True))


def test_a_directory_and_a_zip_file(folder):
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text(
        CONTEXT.replace("print(pickle", "#")
        .replace("import helper", "import sys as helper")
        .replace("helper.__file__", "1")
    )
    same(*both(folder, "app"))
    (folder / "record" / "events.jsonl").unlink()
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import sys; print(__file__, __spec__.name, sys.argv, sys.path[0])")
    same(*both(folder, "app.zip"))


ENDINGS = {
    "plain": "print('done')",
    "zero": "import sys; sys.exit()",
    "code": "import sys; sys.exit(3)",
    "large": "import sys; sys.exit(256 + 7)",
    "message": "import sys; print('out'); sys.exit('goodbye')",
    "raise": "raise SystemExit(True)",
    "tuple": "import sys; sys.exit((1, 'a'))",
    "error": "def f():\n    return 1 / 0\nf()",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "syntax": "x = 1\nx = = 2\n",
    "indent": "if 1:\nx",
    "import": "import not_there_at_all",
    "hook": "import sys\nsys.excepthook = lambda k, v, t: print('mine', k, v, t.tb_lineno, t.tb_next)\n1 / 0",
    "bad hook": "import sys\ndef hook(*a):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0",
    "exit hook": "import sys\ndef hook(*a):\n    sys.exit(9)\nsys.excepthook = hook\n1 / 0",
    "interrupt in a thread": (
        "import threading, sys\nt = threading.Thread(target=lambda: sys.exit(4))\nt.start(); t.join()"
    ),
    "late thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()\n"
        "print('early')"
    ),
    "atexit": ("import atexit\natexit.register(print, 'first')\natexit.register(print, 'second')\nprint('body')"),
    "generator exit": "raise GeneratorExit",
    "no line": "def f(): raise KeyError\nf.__code__ = f.__code__.replace(co_linetable=b'')\nf()",
    "unicode": "# -*- coding: latin-1 -*-\nprint('\u00e9'.encode())",
    "traceback": (
        "import traceback, sys\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc(file=sys.stdout)"
    ),
    "extract": (
        "import traceback\n"
        "def f(): raise RuntimeError\n"
        "try: f()\n"
        "except RuntimeError as e: print(traceback.extract_tb(e.__traceback__))"
    ),
    "last": "import sys, atexit\natexit.register(lambda: print(sys.last_type, sys.last_value))\n1 / 0",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_ending(folder, name):
    (folder / "program.py").write_text(ENDINGS[name], encoding="latin-1" if name == "unicode" else "utf-8")
    plain, watched = both(folder, "program.py")
    same(plain, watched)


def test_a_traceback_through_torch_shows_none_of_our_frames(folder):
    program = write(
        folder,
        """
        import torch
        x = torch.zeros(2)
        def train():
            x.sum().backward()
        train()
        """,
    )
    plain, watched = both(folder, program)
    assert "does not require grad" in plain.err
    same(plain, watched)
    record = read(folder / "record")
    crash = next(record.of(Crash))
    assert [(frame.path, frame.function) for frame in crash.frames] == [
        ("program.py", ""),
        ("program.py", "train"),
    ]
    assert record.ended
    assert (record.ended.status, record.ended.exit_code) == ("crashed", 1)


@pytest.mark.slow
def test_warnings_below_our_wrappers_point_at_the_same_line(folder):
    program = write(
        folder,
        """
        import torch, warnings
        from torch import nn
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scheduler.step()
        torch.nn.functional.mse_loss(torch.zeros(3), torch.zeros(3, 1))
        torch.nn.functional.mse_loss(torch.zeros(3), torch.zeros(3, 1))
        nn.MSELoss()(torch.zeros(3), torch.zeros(3, 1))
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)
        """,
    )
    plain, watched = both(folder, program)
    assert plain.err.count("program.py") >= 4
    same(plain, watched)


def test_spawned_and_forked_children_work_and_stay_out_of_the_record(folder):
    program = write(
        folder,
        """
        import multiprocessing, torch
        from torch.utils.data import DataLoader
        def work(number):
            weight = torch.ones(1, requires_grad=True)
            (weight * number).sum().backward()
            return weight.grad.item()
        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(work, [2, 3]))
            print(sum(len(batch) for batch in DataLoader(list(range(8)), 2, num_workers=1)))
        """,
    )
    same(*both(folder, program, env={"OMP_NUM_THREADS": "1"}))
    record = read(folder / "record")
    own = {"RunStarted", "Note", "RunEnded", "LoaderSeen", "BatchSeen", "Seeded"}
    assert {type(event).__name__ for event in record.events} <= own  # no Backward of a child
    assert [note.text for note in record.notes] == [
        "what 3 processes did that the program started: only the first is watched"
    ]


def test_ctrl_c_prints_a_traceback_and_ends_as_a_shell_reports_it(folder):
    program = write(folder, "import os, signal\nprint('before')\nos.kill(os.getpid(), signal.SIGINT)\n")
    plain, watched = both(folder, program)
    assert (plain.out, plain.err) == (watched.out, watched.err)
    assert (plain.code, watched.code) == (-signal.SIGINT, 130)
    ended = read(folder / "record").ended
    assert ended
    assert ended.status == "interrupted"


def test_a_killed_run_leaves_a_readable_record(folder):
    program = write(
        folder,
        """
        import os, signal, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    _, watched = both(folder, program)
    assert watched.code == -signal.SIGKILL
    record = read(folder / "record")
    assert record.incomplete
    assert len(record.losses) == 3


def test_what_cannot_be_started_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "__init__.py").write_text("")
    for target, as_module in (
        ("no.py", False),
        ("empty", False),
        ("no_such", True),
        ("no.such", True),
        ("bare", True),
    ):
        with pytest.raises(LaunchError) as caught:
            launch(target, as_module=as_module, record_path=tmp_path / "record")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "record").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_returns_from_the_program_ends_like_pythons(folder):
    program = write(
        folder,
        """
        import os, sys, torch
        child = os.fork() == 0
        torch.zeros(1, requires_grad=True).sum().backward()
        if child:
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """,
    )
    plain, watched = both(folder, program)
    same(plain, watched)
    assert plain.out == "5\n"
    assert [type(event).__name__ for event in read(folder / "record").events].count("RunEnded") == 1


def test_a_program_that_closed_its_output_says_its_last_words(folder):
    program = write(folder, "import sys\nsys.stdout.close()\nsys.exit('bye')\n")
    plain, watched = both(folder, program)
    assert (plain.err, plain.code) == ("bye\n", 1)
    same(plain, watched)


def test_one_process_is_counted_without_a_plural(folder):
    program = write(
        folder,
        """
        import multiprocessing
        if __name__ == "__main__":
            process = multiprocessing.Process(target=print)
            process.start()
            process.join()
        """,
    )
    same(*both(folder, program))
    (note,) = read(folder / "record").notes
    assert note.text == "what 1 process did that the program started: only the first is watched"


def test_a_notebook_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text('{"cells": []}')
    with pytest.raises(LaunchError, match=r"a\.ipynb is a notebook: lint it with"):
        launch(str(tmp_path / "a.ipynb"), record_path=tmp_path / "record")
