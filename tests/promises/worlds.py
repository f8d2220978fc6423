"""What the tests of isolation share: a world with a project in it, its picture, users, and kernels that offer less."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

LARGE = bytes(range(256)) * 4200
"""More than is copied where a trial runs on a copy."""
USER = 12345
"""Nobody has this number."""
DAEMON = "987.654"
"""What operations that leave a process behind let it sleep."""

OVERLAY, LANDLOCK, COPIES = "overlay", "landlock", "copies"

ENTER = """
import json, os, sys
refused = json.loads(os.environ.pop("UNSTUCK_TEST_REFUSED"))
from unstuck.capture.trial.isolation import filters, kernel, overlay
if refused:
    # As in a container: nobody in here can make a user namespace, since a switch of this one says so.
    overlay._leave_user_namespace(overlay._mapped_ids())
    with open("/proc/sys/user/max_user_namespaces", "w") as switch:
        switch.write("0")
    kernel.keep_capabilities(overlay.FILE_CAPABILITIES if os.geteuid() == 0 else ())
if "landlock" in refused:
    import platform
    kernel.filter_calls(filters._KNOWN[platform.machine()].architecture, dict.fromkeys((444, 445, 446), 38))
"""
"""Run before anything else: have the kernel refuse what is to be done without."""

TRY = """
from pathlib import Path
from unstuck.trials.runner import Program, Runner, Variant
from unstuck.interventions import StopAfter
target, *arguments = sys.argv[2:]
with Runner(Program(target, tuple(arguments)), Path(".unstuck/runs/20260101-000000-test").absolute(), jobs=1) as runner:
    outcomes = runner.run([Variant("whole")], 120.0)
    said = {"isolation": runner.isolation, "reason": runner.isolation_reason, "output": outcomes[0].output}
    said |= {"status": outcomes[0].status, "notes": outcomes[0].notes, "exit_code": outcomes[0].exit_code}
Path(sys.argv[1]).write_text(json.dumps(said))
"""
COMMAND = "from unstuck.__main__ import main; sys.argv[0] = 'unstuck'; sys.exit(main())"


def can_have(isolation: str) -> bool:
    """Does the kernel of this machine offer it?"""
    code = "from unstuck.capture.trial.isolation import isolate\nimport sys\nprint(isolate(*sys.argv[1:4], []).kind)"
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/run/layer")
        command = [sys.executable, "-c", code, folder, f"{folder}/run", f"{folder}/none.py"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    offered = done.stdout.strip()
    return {OVERLAY: offered == OVERLAY, LANDLOCK: offered in (OVERLAY, LANDLOCK)}.get(isolation, True)


def readable_python() -> list[str]:
    """A python that any user can start, with what it needs to find our modules; skips where there is none."""
    names = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    for name in names:
        with suppress(OSError):
            test = [name, "-c", "import encodings, sqlite3"]
            if (
                subprocess.run(test, user=USER, group=USER, extra_groups=[], cwd="/", capture_output=True).returncode
                == 0
            ):
                return [name]
    pytest.skip("no python here can be started by another user")


@contextmanager
def a_world(operations: Mapping[str, str], user: int | None, within: str | None = None) -> Iterator[Path]:
    """A project among other things of the user's: for each operation a folder in it and one outside of it."""
    world = Path(tempfile.mkdtemp(prefix="world-", dir=within))
    try:
        world.chmod(0o755)
        for base in ("project/ops", "outside"):
            for number in range(len(operations)):
                _fill(world / base / str(number))
        for name in ("home/.config/tool.ini", "home/keep/this", "tmp/mine.pt", "cache/x.txt"):
            (world / name).parent.mkdir(parents=True, exist_ok=True)
            (world / name).write_text(name)
        (world / "project" / ".unstuck").mkdir(parents=True)
        if user is not None:
            for folder, _, files in os.walk(world):
                for name in [".", *files]:
                    os.chown(os.path.join(folder, name), user, user, follow_symlinks=False)
        yield world
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", world], check=False)
        shutil.rmtree(world, ignore_errors=True)


def _fill(folder: Path) -> None:
    for name in ("dir", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "small.txt").write_text("small")
    (folder / "dir" / "inner.txt").write_text("inner")
    (folder / "marked").write_text("marked")
    with suppress(OSError):
        os.setxattr(folder / "marked", "user.mark", b"here")
    (folder / "large.bin").write_bytes(LARGE)
    (folder / "dir" / "large.bin").write_bytes(LARGE)
    (folder / "link").symlink_to("large.bin")
    (folder / "far").symlink_to("dir")
    database = sqlite3.connect(folder / "old.db")
    database.execute("create table a (b)")
    database.execute("insert into a values (1)")
    database.commit()
    database.close()


def picture_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a folder: names, permissions, owners, sizes, times, attributes, versions and contents. Not
    `.unstuck`."""
    seen: dict[str, tuple[object, ...]] = {}
    for here, folders, files in os.walk(folder):
        if ".unstuck" in folders:
            folders.remove(".unstuck")
        for name in [".", *folders, *files]:
            path = os.path.join(here, name)
            status = os.lstat(path)
            held: object = None
            marks: list[object] = []
            if stat.S_ISLNK(status.st_mode):
                held = os.readlink(path)
            elif stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
                held = hashlib.md5(Path(path).read_bytes()).hexdigest()
                marks = [(mark, os.getxattr(path, mark)) for mark in os.listxattr(path)]
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                marks += _numbers_of(path)
            size = None if stat.S_ISDIR(status.st_mode) else status.st_size
            owner = (status.st_uid, status.st_gid)
            # Python itself tries the temporary folder out by making and removing a file in it.
            time = None if path.removesuffix("/.").endswith("/tmp") else status.st_mtime_ns
            seen[path] = (status.st_mode, owner, size, time, status.st_nlink, held, marks)
    return seen


def _numbers_of(path: str) -> list[object]:
    """The version and the flags that some file systems keep of a file."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return [fcntl.ioctl(opened, request, bytes(8)) for request in (0x80087601, 0x80086601)]
        except OSError:
            pass
        finally:
            os.close(opened)
    return []


def environment_of(world: Path, refused: Sequence[str]) -> dict[str, str]:
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path and os.path.isdir(path)),
        "PYTHONDONTWRITEBYTECODE": "1",  # of our own modules, which may belong to another user
        "HOME": str(world / "home"),
        "TMPDIR": str(world / "tmp"),
        "HF_HOME": str(world),  # what once made the whole project writable
        "XDG_CACHE_HOME": str(world / "cache"),
        "OMP_NUM_THREADS": "1",
        "UNSTUCK_RAISE": "1",
        "UNSTUCK_TEST_TMP": str(world / "tmp"),
        "UNSTUCK_TEST_REFUSED": json.dumps(list(refused)),
    }


def refused_for(isolation: str) -> list[str]:
    return {OVERLAY: [], LANDLOCK: ["namespaces"], COPIES: ["namespaces", "landlock"]}[isolation]


def _as_user(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def run_python(
    world: Path,
    code: str,
    *arguments: str,
    isolation: str,
    user: int | None,
    stdin: int = subprocess.DEVNULL,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start a python in the project, as a user and on a kernel that offers no more than this isolation."""
    python = [sys.executable] if user is None else readable_python()
    who: dict[str, Any] = _as_user(user)
    return subprocess.Popen(
        [*python, "-c", ENTER + code, *arguments],
        cwd=world / "project",
        env={**environment_of(world, refused_for(isolation)), **variables},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **who,
    )


def try_script(world: Path, isolation: str, user: int | None, *arguments: str) -> dict[str, Any]:
    """One trial of `train.py` in the project, and what it said."""
    said = world / "project" / ".unstuck" / "said.json"
    bystander = subprocess.Popen(["sleep", "600"], **_as_user(user))
    favoured = _favours_of(bystander.pid)
    try:
        process = run_python(
            world,
            TRY,
            str(said),
            "train.py",
            *arguments,
            isolation=isolation,
            user=user,
            UNSTUCK_TEST_PID=str(bystander.pid),
        )
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        assert bystander.poll() is None, "another process of the user's was ended"
        assert _favours_of(bystander.pid) == favoured, "another process of the user's was slowed down"
    finally:
        bystander.kill()
        bystander.wait()
    result: dict[str, Any] = json.loads(said.read_text())
    said.unlink()
    assert result["isolation"] == isolation, result
    return result


def _favours_of(pid: int) -> object:
    """Its priority, scheduler and processors."""
    return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), os.sched_getaffinity(pid)


def survivors(mark: str = DAEMON) -> list[str]:
    """Processes that have this word in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
