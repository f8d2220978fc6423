"""`unstuck run --quiet train.py` is `python train.py` to the program and to whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

TRAINING = """\
import atexit, faulthandler, gc, json, locale, logging, os, random, signal, sys, threading, warnings, zlib

def signals():
    return {name: str(signal.getsignal(number)) for name, number in vars(signal).items()
            if name.startswith("SIG") and not name.startswith("SIG_") and isinstance(number, signal.Signals)}

def surroundings():
    return {
        "signals": signals(), "wakeup": signal.set_wakeup_fd(-1), "timer": signal.getitimer(signal.ITIMER_REAL),
        "excepthook": sys.excepthook is sys.__excepthook__, "unraisable": sys.unraisablehook is sys.__unraisablehook__,
        "thread excepthook": threading.excepthook is threading.__excepthook__,
        "displayhook": sys.displayhook is sys.__displayhook__,
        "breakpoint": sys.breakpointhook is sys.__breakpointhook__,
        "streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "cwd": os.getcwd(), "path": sys.path, "argv": sys.argv,
        "environment": {name: zlib.crc32(value.encode()) for name, value in os.environ.items()},
        "umask": os.umask(0o22),
        "main": [__name__, __file__, __doc__, __package__, sorted(globals())],
        "is main": sys.modules["__main__"].__dict__ is globals(),
        "threads": [threading.active_count(), threading.current_thread() is threading.main_thread()],
        "traces": [str(sys.gettrace()), str(sys.getprofile()), str(threading.gettrace()), str(threading.getprofile())],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags()],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), len(gc.callbacks)],
        "logging": [logging.root.level, str(logging.root.handlers), logging.raiseExceptions],
        "warnings": [str(entry) for entry in warnings.filters if "torch" not in str(entry)],
        "showwarning": warnings.showwarning.__module__,
        "faulthandler": faulthandler.is_enabled(), "locale": locale.setlocale(locale.LC_ALL), "flags": str(sys.flags),
        "random": zlib.crc32(repr(random.getstate()).encode()),
        "import": [type(finder).__name__ for finder in sys.path_hooks],
        "interactive": hasattr(sys, "ps1"), "hash": sys.flags.isolated or hash("unstuck"),
    }

random.seed(0)
before = surroundings()
for name, value in before.items():
    print("before:", name, json.dumps(value))
atexit.register(print, "the first to be registered is the last to be called")
import numpy, torch
torch.set_num_threads(1)
atexit.register(print, "the second is called before it")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
for step in range(60):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4)
    loss = torch.nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0:
        print(step, loss.item().hex(), file=sys.stderr if step else sys.stdout)
during = surroundings()
for name in before:
    if name != "main" and during[name] != before[name]:
        print("changed meanwhile:", name, during[name])
print("torch", torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed(),
      torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision())
print("random", torch.rand(1).item().hex(), numpy.random.get_state()[2])
print(isinstance(loss, torch.Tensor), type(model(torch.ones(1, 4))), torch.nn.functional.cross_entropy.__name__)
"""

ENDINGS = {
    "nothing more": "",
    "an exit code": "sys.exit(7)",
    "an exit with words": "sys.exit('no more data')",
    "an error": "torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([0, 9]))",
    "an error in a thread": """
        thread = threading.Thread(target=lambda: 1 / 0, name="loader"); thread.start(); thread.join()
    """,
    "hooks of one's own": """
        sys.excepthook = lambda kind, error, trace: print("my hook", kind.__name__)
        threading.excepthook = lambda arguments: print("my thread hook", arguments.exc_type.__name__)
        thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
        raise KeyError("mine")
    """,
    "a signal handled": """
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
        os.kill(os.getpid(), signal.SIGTERM)
        import time; time.sleep(60)
    """,
    "a signal": "import time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "an abrupt end": "sys.stdout.flush(); sys.stderr.flush(); os._exit(5)",
    "a warning": "warnings.warn('one of mine'); torch.nn.functional.softmax(torch.ones(2, 2)); scheduler.step(3)",
    "errors at the end": "atexit.register(int, 'no number')",
}


def outcome(folder: Path, script: str, *, watched: bool, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
    environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "UNSTUCK_RAISE": "1"}
    command = [sys.executable, *flags, *(["-m", "unstuck", "run", "--quiet"] if watched else []), script]
    done = subprocess.run(
        [*command, "--lr", "0.1"], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def same_with_and_without(folder: Path, ending: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    (folder / "train.py").write_text(TRAINING + textwrap.dedent(ending).strip() + "\n")
    bare = outcome(folder, "train.py", watched=False, flags=flags)
    watched = outcome(folder, "train.py", watched=True, flags=flags)
    assert "before: signals" in bare[1], bare[2]
    assert watched[1].splitlines() == bare[1].splitlines()
    assert watched[2].splitlines() == bare[2].splitlines()
    assert watched[0] == bare[0]
    assert list(folder.glob(".unstuck/runs/*/events.jsonl"))
    return bare


FAST = ("a warning",)


@pytest.mark.parametrize("ending", FAST)
def test_the_program_and_the_shell_see_no_difference(tmp_path: Path, ending: str):
    same_with_and_without(tmp_path, ENDINGS[ending])


@pytest.mark.slow
@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending not in FAST])
def test_every_ending(tmp_path: Path, ending: str):
    same_with_and_without(tmp_path, ENDINGS[ending])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-W", "error")], ids=" ".join)
def test_warnings_that_are_errors(tmp_path: Path, flags: tuple[str, ...]):
    """Anything we warned of, or made torch warn of, would end the program."""
    code, _, errors = same_with_and_without(tmp_path, ENDINGS["nothing more"], flags)
    assert (code, errors.count("Warning")) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-W", "default"), ("-X", "dev"), ("-I",), ("-O",), ("-u",), ("-B",)], ids=" ".join)
def test_flags_of_python(tmp_path: Path, flags: tuple[str, ...]):
    same_with_and_without(tmp_path, ENDINGS["a warning"], flags)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1], ids=lambda n: n.name)
def test_signals_from_outside(tmp_path: Path, number: signal.Signals):
    script = "import time, torch\nprint('ready', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "wait.py").write_text(script)
    codes = []
    for command in (["wait.py"], ["-m", "unstuck", "run", "--quiet", "wait.py"]):
        process = subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(number)
        process.communicate(timeout=60)
        codes.append(process.returncode)
    if number is signal.SIGINT:
        assert codes == [-signal.SIGINT, 130]  # which a shell reports alike
    else:
        assert codes[0] == codes[1] == -number
