"""Workers of data loaders neither hang under watch nor appear in the record, however they are started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unstuck.events import ModelSeen, OptimizerStep
from unstuck.record import read

PATIENCE = 300
"""Seconds until a run is taken to hang: far more than it needs on a busy machine."""

SCRIPT = """\
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Augmenter(nn.Linear):
    '''A model that lives in the workers alone.'''

class Rows(Dataset):
    def __init__(self):
        self.augment = None

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if self.augment is None:
            torch.set_num_threads(1)
            self.augment = Augmenter(4, 4)
            self.optimizer = torch.optim.SGD(self.augment.parameters(), 0.1)
        row = torch.full((4,), index / 12)
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.augment(row), row).backward()
        nn.utils.clip_grad_norm_(self.augment.parameters(), 1.0)
        self.optimizer.step()
        return row, torch.tensor([float(index % 2)]), os.getpid()

def train(model, optimizer, context, persistent, workers):
    loader = DataLoader(Rows(), 4, shuffle=True, num_workers=workers, multiprocessing_context=context,
                        persistent_workers=persistent, generator=torch.Generator().manual_seed(0))
    processes = set()
    for epoch in range(2):
        for rows, targets, owners in loader:
            processes.update(owners.tolist())
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows), targets).backward()
            optimizer.step()
    assert os.getpid() not in processes
    return len(processes)

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counts = [train(model, optimizer, *way) for way in json.loads(sys.argv[1])]
    print(counts, [value.hex() for value in model.weight.flatten().tolist()])
"""

FAST = [("fork", False, 2), ("fork", True, 2), ("spawn", True, 1), ("forkserver", True, 1)]
ALL = [(context, persistent, 2) for context in ("fork", "spawn", "forkserver") for persistent in (False, True)]


def run(folder: Path, ways: list[tuple[str, bool, int]], *, watched: bool) -> tuple[int, str, str]:
    command = [sys.executable, *(["-m", "unstuck", "run", "--quiet"] if watched else []), "train.py", json.dumps(ways)]
    environment = {**os.environ, "UNSTUCK_RAISE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout, done.stderr


def check(folder: Path, ways: list[tuple[str, bool, int]]) -> None:
    code, output, errors = run(folder, ways, watched=True)
    assert (code, errors) == (0, "")
    (record_of_one_process,) = folder.glob(".unstuck/runs/*/*.jsonl")
    record = read(record_of_one_process)
    assert record.ended is not None
    assert record.ended.steps == 6 * len(ways)
    assert {model.kind for model in record.of(ModelSeen)} == {"Linear"}
    assert {step.parameters for step in record.of(OptimizerStep)} == {2}
    assert not record.notes
    counts = json.loads(output[: output.index("]") + 1])
    assert counts == [workers * (1 if persistent else 2) for _, persistent, workers in ways]


@pytest.mark.slow
def test_every_way_to_start_workers(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    check(tmp_path, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("way", ALL, ids=lambda way: f"{way[0]}-{'persistent' if way[1] else 'fresh'}")
def test_each_way_alone_and_with_the_same_result(tmp_path: Path, way: tuple[str, bool, int]):
    (tmp_path / "train.py").write_text(SCRIPT)
    check(tmp_path, [way])
    assert run(tmp_path, [way], watched=True) == run(tmp_path, [way], watched=False)
