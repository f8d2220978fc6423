"""No run is too broken to be reported on, and whatever fails in a report, the exit code is the script's own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import in_a_child

from unstuck.cli import main
from unstuck.record import read

SCRIPT = """\
import torch
inf, nan = float("inf"), float("nan")
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.{optimizer}
{before}
for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2){factor}
    loss.backward()
    optimizer.step()
    {after}
print("trained")
{ending}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="promise-"))
    yield place
    shutil.rmtree(place)


def write(folder: Path, **parts: str) -> None:
    plain = {"optimizer": "SGD(model.parameters(), 0.1)", "before": "", "factor": "", "after": "", "ending": ""}
    (folder / "train.py").write_text(SCRIPT.format(**{**plain, **parts}))


def schedule(rate: str) -> dict[str, str]:
    before = f"scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: {rate})"
    return {"before": before, "after": "scheduler.step()"}


@pytest.mark.parametrize(
    ("parts", "setting"),
    [
        ({"optimizer": "SGD(model.parameters(), lr=inf)"}, "learning rate"),
        ({"optimizer": "Adam(model.parameters(), lr=torch.tensor(inf))"}, "learning rate"),
        (schedule("nan if step > 20 else 1.0"), "learning rate"),
        (schedule("torch.tensor(inf if step > 20 else 1.0)"), "learning rate"),
        ({"optimizer": "SGD(model.parameters(), 0.1, weight_decay=inf)"}, "weight decay"),
        ({"optimizer": "SGD(model.parameters(), 0.1, momentum=inf)"}, ""),
        ({"factor": " * inf"}, ""),
        ({"factor": " * nan"}, ""),
        ({"before": "torch.nn.init.constant_(model.weight, nan)"}, ""),
    ],
    ids=lambda given: " ".join(filter(None, given.values())) if isinstance(given, dict) else given,
)
def test_numbers_that_are_not_finite_are_reported(folder: Path, parts: dict[str, str], setting: str) -> None:
    write(folder, **parts)
    code, output, errors = in_a_child(folder, lambda: main(["run", "train.py"]))
    assert output == "trained\n"
    assert code == 1
    assert "error G10 non-finite:" in errors
    assert "train.py finished after 30 optimizer steps" in errors
    assert "(1 error)." in errors, errors  # and nothing that reads the odd number as a magnitude
    assert (f"Give the optimizer a finite {setting}." in errors) == bool(setting)
    (run,) = folder.glob(".unstuck/runs/*")
    assert read(run).damaged_lines == ()


DAMAGE = """
import glob, os
(file,) = glob.glob(".unstuck/runs/*/events.jsonl")
{what}
"""


@pytest.mark.parametrize(
    ("what", "code"),
    [
        pytest.param("os.remove(file)", 0, id="removed"),
        pytest.param("open(file, 'w').write('hello' * 10)", 0, id="overwritten"),
        pytest.param("os.remove(file); os.mkfifo(file)", 7, id="a pipe"),
        pytest.param("os.remove(file); os.symlink('/dev/zero', file)", 0, id="a device"),
        pytest.param("os.chdir('..'); os.rename('PLACE', 'PLACE-gone')", 0, id="all gone"),
        pytest.param("import unstuck.judge; unstuck.judge.merge = None", 0, id="our judge fails"),
        pytest.param("import unstuck.judge; unstuck.judge.merge = None", 7, id="ours and theirs fail"),
        pytest.param("import unstuck.cli.common as c; c.publish = lambda *_: [][0]", 0, id="our report fails"),
    ],
)
def test_a_failure_of_ours_leaves_the_exit_code(folder: Path, what: str, code: int) -> None:
    ending = DAMAGE.format(what=what.replace("PLACE", folder.name)) + f"raise SystemExit({code})"
    write(folder, ending=ending)
    elsewhere = folder.with_name(folder.name + "-gone")
    try:
        ended, output, errors = in_a_child(folder, lambda: main(["run", "train.py"]))
    finally:
        if elsewhere.exists():
            elsewhere.rename(folder)
    assert (ended, output) == (code, "trained\n"), errors
    assert "Traceback" not in errors
    sentences = [line for line in errors.splitlines() if line.startswith("unstuck: ")]
    assert len(sentences) == 1, errors


def test_a_report_that_cannot_be_written_leaves_the_exit_code(folder: Path) -> None:
    write(folder, ending="import os; os.mkdir('report.json')")
    code, _, errors = in_a_child(
        folder, lambda: main(["run", "--format", "json", "--output", "report.json", "train.py"])
    )
    assert code == 0
    assert "unstuck: cannot write" in errors
