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
        pytest.param(OVERLAY, USER, marks=AS_ROOT),
        (LANDLOCK, None),
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
            ([], "None of the 9 files in the working directory changed."),
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
