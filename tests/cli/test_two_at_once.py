"""Several commands at work on one project at the same time: each has its own records, and each is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """\
import sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(256, 8)
targets = inputs.sum(1, keepdim=True)
for step in range(150):
    loss = nn.functional.mse_loss(model(inputs), targets)
    if sys.argv[1] == "right":
        optimizer.zero_grad()
    loss.backward()
    if sys.argv[1] == "wiped":
        optimizer.zero_grad()
    optimizer.step()
with open("result.txt", "a") as result:
    result.write(sys.argv[1])
"""


def started(*words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
    command = [sys.executable, "-m", "unstuck", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def arguments_on_record(folder: Path) -> set[str]:
    """What the script was given in the runs whose records lie below this folder."""
    firsts = [file.read_text().splitlines()[0] for file in folder.rglob("events.jsonl")]
    return {word for first in firsts for word in json.loads(first)["arguments"]}


@pytest.mark.slow
def test_two_diagnoses_started_together_do_not_mix() -> None:
    Path("train.py").write_text(SCRIPT)
    words = ("diagnose", "--json", "--quiet", "--budget", "100s", "train.py")
    processes = {kind: started(*words, kind) for kind in ("wiped", "right")}
    reports: dict[str, dict[str, Any]] = {}
    for kind, process in processes.items():
        told, complained = process.communicate(timeout=240)
        assert process.returncode == (1 if kind == "wiped" else 0), complained
        reports[kind] = json.loads(told)
    assert (reports["wiped"]["principal"], reports["right"]["principal"]) == ("O04", None)
    folders = {kind: Path(report["records"]) for kind, report in reports.items()}
    assert {kind: arguments_on_record(folder) for kind, folder in folders.items()} == {
        "wiped": {"wiped"},
        "right": {"right"},
    }
    assert sorted(path.name for path in Path().iterdir()) == [".unstuck", "train.py"]
    assert not list(Path(".unstuck").rglob("layer"))


@pytest.mark.slow
def test_a_diagnosis_beside_a_run_beside_an_experiment() -> None:
    Path("train.py").write_text(SCRIPT)
    diagnosis = started("diagnose", "--json", "--quiet", "train.py", "wiped")
    run = started("run", "--format", "json", "--output", "run.json", "train.py", "wiped")
    experiment = started("overfit", "--json", "--quiet", "train.py", "right")
    told = {}
    for name, process in (("diagnosis", diagnosis), ("run", run), ("experiment", experiment)):
        out, complained = process.communicate(timeout=240)
        assert process.returncode in (0, 1), complained
        told[name] = json.loads(Path("run.json").read_text() if name == "run" else out)
    assert told["diagnosis"]["principal"] == "O04"
    assert "O04" in {diagnosis["code"] for diagnosis in told["run"]["diagnoses"]}
    assert told["experiment"]["experiment"]["verdict"] == "passed"
    folders = list(Path(".unstuck/runs").iterdir())
    assert len(folders) == 3
    assert sorted(sorted(arguments_on_record(folder)) for folder in folders) == [["right"], ["wiped"], ["wiped"]]
    assert Path("result.txt").read_text() == "wiped"  # of the run, and of no trial
