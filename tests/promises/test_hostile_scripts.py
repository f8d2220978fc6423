"""Scripts that work against the trial they run in: through the one real folder they can write, its locks, paths in
their text, and names that a terminal would obey."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from worlds import (
    DAEMON,
    LANDLOCK,
    OVERLAY,
    USER,
    a_world,
    can_have,
    environment_of,
    run_python,
    survivors,
    try_script,
)

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
TRAINING = """
import os, sys, torch
from torch import nn
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).mean().backward()
    optimizer.step()
"""
RECORD = """
def is_record(number):
    return os.path.exists(f"/proc/self/fd/{number}/events.jsonl")
record = next((f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd") if is_record(number)), None)
if record is None:  # without namespaces the folder has its own name
    record = os.path.dirname(next(
        path for number in os.listdir("/proc/self/fd")
        if (path := os.path.realpath(f"/proc/self/fd/{number}")).endswith("/events.jsonl")
    ))
"""
TRY = """
from pathlib import Path
from unstuck.record.in_use import is_locked
from unstuck.trials.runner import Program, Runner, Variant
folder = Path(".unstuck/runs/20260101-000000-test").absolute()
seen = []
with Runner(Program("train.py"), folder, jobs=1) as runner:
    for number in range(int(sys.argv[1])):
        Path("number.txt").write_text(str(number))
        outcome = runner.run([Variant("whole")], 60.0)[0]
        said = {"isolation": runner.isolation, "status": outcome.status, "notes": outcome.notes}
        said |= {"output": outcome.output, "seconds": outcome.seconds}
        said |= {"mode": folder.stat().st_mode & 0o7777, "locked": is_locked(folder)}
        said |= {"names": sorted(os.listdir(outcome.folder))}
        said |= {"modes": [(outcome.folder / name).lstat().st_mode & 0o7777 for name in said["names"]]}
        seen.append(said)
print("SAID", json.dumps(seen))
"""


def tried(*endings: str, isolation: str = OVERLAY, user: int | None = None) -> list[dict[str, Any]]:
    """What a trial of a training with each of these endings shows, and what it leaves of its folder."""
    if not can_have(isolation):
        pytest.skip(f"this kernel has no {isolation}")
    with a_world({"one": ""}, user) as world:
        (world / "project" / "endings.json").write_text(json.dumps(endings))
        choose = "import json\nexec(json.load(open('endings.json'))[int(open('number.txt').read())])\n"
        (world / "project" / "train.py").write_text(TRAINING + RECORD + choose)
        process = run_python(world, TRY, str(len(endings)), isolation=isolation, user=user)
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        said: list[dict[str, Any]] = json.loads(output.partition("SAID ")[2].splitlines()[0])
    assert {one["isolation"] for one in said} == {isolation}
    return said


LEAVE = """
for name in ("evil", "output.txt", "events.jsonl"):
    open(f"{record}/{name}", "a").close()
    os.chmod(f"{record}/{name}", 0o6777)
os.close(os.open(f"{record}/made", os.O_CREAT | os.O_WRONLY, 0o6755))
os.makedirs(f"{record}/folder/inner")
os.close(os.open(f"{record}/folder/inner/evil", os.O_CREAT | os.O_WRONLY, 0o6755))
os.symlink("/etc/passwd", f"{record}/link")
os.mkfifo(f"{record}/pipe")
"""


@pytest.mark.parametrize(
    ("isolation", "user"),
    [
        (OVERLAY, None),
        pytest.param(OVERLAY, USER, marks=[AS_ROOT, pytest.mark.slow]),
        pytest.param(LANDLOCK, None, marks=pytest.mark.slow),
    ],
)
def test_nothing_that_a_script_leaves_in_the_folder_of_its_record_stays(isolation: str, user: int | None) -> None:
    (said,) = tried(LEAVE, isolation=isolation, user=user)
    assert said["names"] == ["events.jsonl", "notes.json", "output.txt"]
    assert not [mode for mode in said["modes"] if mode & 0o7133], said["modes"]
    assert said["mode"] == 0o700  # so that nobody else reaches a setuid file while there is one
    assert said["status"] == "finished"


ODD_FILES = {
    "pipes": "os.mkfifo(path)",
    "devices": "os.symlink('/dev/zero', path)",
    "folders": "os.makedirs(path + '/inner')",
    "links to what is ours no longer": "os.symlink(record, path)",
    "nothing": "pass",
}
ODD_NOTES = {
    "of other types": '{"losses": "abc", "modules": 3, "frozen": "x", "refused": {"a": 1}, "layers": 5}',
    "with the token of another": '{"token": "0123456789abcdef", "losses": [1.0]}',
    "nested": '{"layers": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "not an object": "[1, 2]",
    "not JSON": "\udcff{",
}


REPLACE = """
for name in ("events.jsonl", "notes.json", "output.txt"):
    path = record + "/" + name
    if os.path.exists(path):
        os.unlink(path)
    {make}
os._exit(0)
"""


def test_odd_files_in_place_of_ours_are_not_waited_for() -> None:
    outcomes = tried(*(REPLACE.format(make=make) for make in ODD_FILES.values()))
    for name, said in zip(ODD_FILES, outcomes, strict=True):
        assert (name, said["notes"], said["output"], said["names"]) == (name, {}, "", [])
        assert (name, said["status"]) == (name, "failed")
        assert said["seconds"] < 30, name


def test_notes_that_the_script_wrote_do_not_count() -> None:
    write = "open(record + '/notes.json', 'w', errors='surrogateescape').write({notes!r}); os._exit(0)"
    outcomes = tried(*(write.format(notes=notes) for notes in ODD_NOTES.values()))
    for name, said in zip(ODD_NOTES, outcomes, strict=True):
        assert (name, said["notes"], said["status"]) == (name, {}, "exited")


@pytest.mark.parametrize("isolation", [OVERLAY, pytest.param(LANDLOCK, marks=pytest.mark.slow)])
def test_a_script_cannot_unlock_its_run(isolation: str) -> None:
    """Else the next start would take the run for one that was killed, and sweep its layers."""
    unlock = """
import fcntl
for number in range(3, 1024):
    try:
        fcntl.flock(number, fcntl.LOCK_UN)
    except OSError:
        pass
"""
    (said,) = tried(unlock, isolation=isolation)
    assert said["locked"]


LIBRARY = f"""
import subprocess
subprocess.Popen(["sleep", "{DAEMON}"], start_new_session=True, stdout=-3, stderr=-3)
"""
PREPARE = """
import time
from pathlib import Path
from unstuck.trials.runner import Program, Runner
sys.path.insert(0, os.getcwd())
with Runner(Program("train.py"), Path(".unstuck/runs/20260101-000000-test").absolute(), jobs=1) as runner:
    runner.prepare(sys.argv[1:], time.monotonic() + (60.0 if len(sys.argv) == 2 else 15.0))
"""


KILL = f"""{PREPARE}
    import signal
    keeper = runner._process.pid
    (forks,) = map(int, Path(f"/proc/{{keeper}}/task/{{keeper}}/children").read_text().split())
    match os.environ["WHICH"]:
        case "keeper":
            os.kill(keeper, signal.SIGKILL)
        case "forks":
            os.kill(forks, signal.SIGKILL)
        case "their group":
            os.killpg(keeper, signal.SIGKILL)
        case "the one that ends both":  # half-way
            os.kill(keeper, signal.SIGSTOP)
            os.kill(forks, signal.SIGKILL)
            os._exit(0)
    while os.path.exists(f"/proc/{{forks}}"):
        time.sleep(0.01)
"""


def prepare(program: str, *modules: str, isolation: str, user: int | None = None, which: str = "") -> None:
    """Have libraries imported by the process that forks trials. One of them starts a daemon."""
    if not can_have(isolation):
        pytest.skip(f"no {isolation} here")
    with a_world({"one": ""}, user) as world:
        library = world / "project" / "site-packages"
        library.mkdir()
        (library / "daemonic.py").write_text(LIBRARY)
        (library / "endless.py").write_text("import time; time.sleep(600)")
        (world / "project" / "train.py").write_text(TRAINING)
        path = os.pathsep.join([str(library), environment_of(world, ())["PYTHONPATH"]])
        process = run_python(world, program, *modules, isolation=isolation, user=user, PYTHONPATH=path, WHICH=which)
        output, _ = process.communicate(timeout=150)
        assert process.returncode == 0, output


@pytest.mark.parametrize("after", [(), pytest.param(("endless",), marks=pytest.mark.slow)], ids=["idle", "busy"])
def test_a_daemon_that_a_library_starts_when_imported_ends_too(after: tuple[str, ...]) -> None:
    """Libraries are imported once, by the process that forks trials, which is killed if it is busy at the end."""
    prepare(PREPARE, "daemonic", *after, isolation=OVERLAY)
    assert not survivors()


@pytest.mark.parametrize("which", ["forks", "keeper", "their group", "the one that ends both"])
@pytest.mark.parametrize(
    ("isolation", "user"),
    [
        (OVERLAY, None),
        pytest.param(OVERLAY, USER, marks=[AS_ROOT, pytest.mark.slow]),
        pytest.param(LANDLOCK, None, marks=pytest.mark.slow),
    ],
)
def test_such_a_daemon_ends_where_others_kill_what_started_it(isolation: str, user: int | None, which: str) -> None:
    """One of two processes that look after each other, the one that forks or the one that waits for it; their group; or
    the command, while it ends them."""
    prepare(KILL, "daemonic", isolation=isolation, user=user, which=which)
    deadline = time.monotonic() + 10
    while survivors() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not survivors()


PATHS = [
    "/",
    "/proc/1/root/etc",
    "/proc/self/fd/0",
    "/sys/kernel",
    "/dev/shm/x",
    "/dev/null",
    "/nonexistent/of/mine",
    "/root/../../etc/./passwd",
    "/tmp/\\x00/zero",
    "/etc/passwd/below/a/file",
    "/" + "a" * 300,
    "/" + "deep/" * 1200 + "x",
    "WORLD/loop",
    "WORLD/project/.unstuck/runs",
    "WORLD/locked/inner",
    "/tmp/colon:comma,back\\\\slash",
]


@pytest.mark.parametrize("user", [None, pytest.param(USER, marks=[AS_ROOT, pytest.mark.slow])])
def test_no_path_in_a_script_or_its_arguments_weakens_the_isolation(user: int | None) -> None:
    if not can_have(OVERLAY):
        pytest.skip("no overlays here")
    with a_world({"one": ""}, user) as world:
        (world / "loop").symlink_to("loop")
        (world / "locked").mkdir(mode=0)
        paths = [path.replace("WORLD", str(world)) for path in PATHS]
        text = "".join(f'here = "{path}"\n' for path in paths)
        raw = b'here = "/tmp/\xff\xfe"\nhere = "/tmp/a\x01b"\n'
        (world / "project" / "train.py").write_bytes(b"# coding: latin-1\n" + raw + text.encode() + TRAINING.encode())
        said = try_script(world, OVERLAY, user, *(path.replace("\\x00", "") for path in paths))
        assert said["reason"] == ""
        assert said["status"] == "finished", said["output"]


ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\x08\u202e"
NAMED = f"""
import sys, torch
from torch import nn
BAD = {ESCAPES!r}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "layer" + BAD, nn.Linear(4, 3))
    def forward(self, x):
        return getattr(self, "layer" + BAD)(x).softmax(1)
Model.__name__ = Model.__qualname__ = "Model" + BAD
class Steps(torch.optim.SGD): pass
Steps.__name__ = "Steps" + BAD
model = Model()
optimizer = Steps(model.parameters(), 0.01)
torch.manual_seed(0)
for step in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(3, (16,))).backward()
    optimizer.step()
    if "nan" in sys.argv and step == 60:
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
    if "raise" in sys.argv and step == 60:
        raise RuntimeError("failed " + BAD)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("run", "SCRIPT", "nan"),
        pytest.param(("diagnose", "--budget", "20s", "SCRIPT", "raise"), marks=pytest.mark.slow),
        pytest.param(("diagnose", "--budget", "60s", "SCRIPT", "nan"), marks=pytest.mark.slow),
        pytest.param(("layers", "--budget", "40s", "SCRIPT"), marks=pytest.mark.slow),
        pytest.param(("relations", "--budget", "40s", "SCRIPT"), marks=pytest.mark.slow),
        pytest.param(("isolate", "--budget", "60s", "SCRIPT"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_no_name_of_a_script_commands_the_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    name = f"train{ESCAPES.replace('/', '')}.py"
    for folder in ("project", "home", "tmp", "cache"):
        (tmp_path / folder).mkdir()
    (tmp_path / "project" / name).write_text(NAMED)
    command = [sys.executable, "-m", "unstuck", *(name if word == "SCRIPT" else word for word in words)]
    variables = {**environment_of(tmp_path, ()), "PYTHONUTF8": "1"}
    done = subprocess.run(command, cwd=tmp_path / "project", env=variables, capture_output=True, timeout=150)
    shown = (done.stdout + done.stderr).decode()
    assert done.returncode in (0, 1), shown
    assert "unstuck" in shown
    assert not [letter for letter in shown if letter in ESCAPES and not letter.isprintable()], ascii(shown)
