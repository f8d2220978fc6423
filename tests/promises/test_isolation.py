"""A trial cannot change what is the user's, whatever the script does and however: not in Python, not in C, not in what
it starts. Every operation is carried out on folders of the project and outside; then the world is as it was."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest
from file_operations import NEEDED, ODD, SPOIL
from worlds import (
    COMMAND,
    COPIES,
    LANDLOCK,
    OVERLAY,
    USER,
    a_world,
    can_have,
    picture_of,
    run_python,
    survivors,
    try_script,
)

ALL = {**NEEDED, **ODD}
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")

SCRIPT = """
import json, os, shutil, stat, subprocess, sys, tempfile, traceback
from pathlib import Path
import numpy, torch
from torch import nn

{spoil}
OPERATIONS = json.loads(Path(__file__).with_name("operations.json").read_text())

def carry_out():
    home, failed = os.getcwd(), {{}}
    for number, (name, code) in enumerate(OPERATIONS.items()):
        for where, base in (("here", "ops"), ("elsewhere", os.path.dirname(home) + "/outside")):
            try:
                exec(code, {{**globals(), "b": f"{{base}}/{{number}}"}})
            except BaseException as error:
                failed[f"{{name}} ({{where}})"] = f"{{type(error).__name__}}: {{error}}"[:300]
            os.chdir(home)
    return failed

if __name__ == "__main__":
    print("FAILED", json.dumps(carry_out()), flush=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).pow(2).mean().backward()
        optimizer.step()
"""


def write_script(world: Path, operations: dict[str, str]) -> None:
    project = world / "project"
    (project / "train.py").write_text(SCRIPT.format(spoil=textwrap.dedent(SPOIL)))
    (project / "spoiling.py").write_text(SPOIL)
    (project / "operations.json").write_text(json.dumps(operations))


def failures(output: str) -> dict[str, str]:
    line = next(line for line in output.splitlines() if line.startswith("FAILED "))
    return dict(json.loads(line.removeprefix("FAILED ")))


@pytest.mark.parametrize(
    ("isolation", "user"),
    [
        (OVERLAY, None),
        pytest.param(OVERLAY, USER, marks=[AS_ROOT, pytest.mark.slow]),
        pytest.param(LANDLOCK, None, marks=pytest.mark.slow),
        pytest.param(LANDLOCK, USER, marks=[AS_ROOT, pytest.mark.slow]),
    ],
)
def test_no_operation_reaches_what_is_the_users(isolation: str, user: int | None) -> None:
    assert len(ALL) * 2 >= 240
    if not can_have(isolation):
        pytest.skip(f"this kernel has no {isolation}")
    with a_world(ALL, user) as world:
        write_script(world, ALL)
        before = picture_of(world)
        said = try_script(world, isolation, user)
        assert picture_of(world) == before
        assert not survivors()
        assert said["status"] == "finished", said["output"]
        assert not list((world / "project").glob(".unstuck/runs/*/layer"))
        failed = failures(said["output"])
        if isolation == OVERLAY:
            assert not {name: why for name, why in failed.items() if name.rpartition(" (")[0] in NEEDED}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", [OVERLAY, LANDLOCK])
def test_nor_does_a_whole_diagnosis(isolation: str) -> None:
    if not can_have(isolation):
        pytest.skip(f"this kernel has no {isolation}")
    with a_world(ALL, None) as world:
        write_script(world, ALL)
        before = picture_of(world)
        process = run_python(world, COMMAND, "diagnose", "--budget", "90s", "train.py", isolation=isolation, user=None)
        output, _ = process.communicate(timeout=300)
        assert picture_of(world) == before, output
        assert process.returncode in (0, 1), output
        assert "Your files were not touched" in output
        assert not survivors()


TRAINING = """
import os, sys, torch
for command in sys.argv[1:]:
    os.system(command)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_where_the_kernel_cannot_help_the_report_says_what_changed() -> None:
    with a_world({"one": ""}, None) as world:
        (world / "project" / "train.py").write_text(TRAINING)
        for command, sentence in (
            ([], "None of the 9 files compared in the working directory changed."),
            ([f"touch {world}/project/made"], "These files in the working directory changed meanwhile: made."),
        ):
            arguments = ("diagnose", "--budget", "30s", "train.py", *command)
            process = run_python(world, COMMAND, *arguments, isolation=COPIES, user=None)
            output, _ = process.communicate(timeout=200)
            said = " ".join(output.split())
            assert "This system cannot stop C libraries" in said, output
            assert "were not touched" not in said
            assert sentence in said


def test_a_refused_write_is_told_with_its_path() -> None:
    if not can_have(LANDLOCK):
        pytest.skip("this kernel has no Landlock")
    with a_world({"one": ""}, None) as world:
        script = f"import h5py; h5py.File('{world}/outside/0/large.bin', 'w')"  # C, past the functions of Python
        (world / "project" / "train.py").write_text(script)
        said = try_script(world, LANDLOCK, None)
        assert said["status"] == "crashed"
        assert "outside/0/large.bin" in said["notes"]["refused"]


MACHINE = """
import ctypes, json, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
attempts = {
    "hostname": lambda: socket.sethostname(socket.gethostname()),
    "a namespace with capabilities": lambda: call(libc.unshare(0x10000000)),
    "a mount": lambda: call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
    "keys of the session": lambda: call(libc.syscall(248, b"user", b"unstuck", b"x", 1, -3)),
    "limits of others": lambda: resource.prlimit(int(os.environ["UNSTUCK_TEST_PID"]), resource.RLIMIT_CPU, (99, 99)),
    "priority of others": lambda: os.setpriority(os.PRIO_PROCESS, int(os.environ["UNSTUCK_TEST_PID"]), 15),
    "processors of others": lambda: os.sched_setaffinity(int(os.environ["UNSTUCK_TEST_PID"]), {0}),
    "message queues": lambda: call(libc.syscall(240, b"unstuck-test", 0o102, 0o600, None)),
    "a disk": lambda: [open(f"/dev/{name}", "r+b") for name in ("vda", "sda", "nvme0n1", "mem")],
    "the console": lambda: open("/dev/console", "wb"),
    "terminals of others": lambda: [open(f"/dev/pts/{n}", "wb") for n in range(50)],
}
done = []
for name, attempt in attempts.items():
    try:
        attempt()
        done.append(name)
    except OSError:
        pass
print("DONE", json.dumps(done))
"""


@pytest.mark.parametrize("isolation", [OVERLAY, LANDLOCK])
def test_the_machine_is_out_of_reach(isolation: str) -> None:
    """What a script of root's could do to more than files."""
    if not can_have(isolation):
        pytest.skip(f"this kernel has no {isolation}")
    with a_world({"one": ""}, None) as world:
        (world / "project" / "train.py").write_text(MACHINE)
        said = try_script(world, isolation, None)
        # In a trial with Landlock calls that change priorities succeed and do nothing, which `try_script` checks.
        pretended = ["a namespace with capabilities", "priority of others", "processors of others"]
        allowed = ["message queues"] if isolation == OVERLAY else pretended
        done = json.loads(said["output"].partition("DONE ")[2].splitlines()[0])
        assert [name for name in done if name not in allowed] == []


def test_a_project_in_shared_memory_is_not_touched() -> None:
    if not can_have(OVERLAY) or not os.access("/dev/shm", os.W_OK):
        pytest.skip("no overlays, or no shared memory here")
    with a_world({"one": ""}, None, within="/dev/shm") as world:
        (world / "project" / "train.py").write_text("import os; os.system('rm -rf ops; echo x > new; ls')")
        before = picture_of(world)
        said = try_script(world, OVERLAY, None)
        assert picture_of(world) == before
        assert "new" in said["output"]
        assert "ops" not in said["output"]
