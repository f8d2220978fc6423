"""`unstuck data` as a user types it: the report, the page, and JSON."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

Unstuck = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    classes = ["dark", "bright"]

    def __init__(self, count, augments):
        self.x, self.augments = torch.rand(count, 1, 8, 8), augments
        self.y = torch.arange(count) % 2

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        x = self.x[index] + self.y[index]
        return (x.roll(int(torch.randint(3, ())), 2) if self.augments else x), self.y[index]

torch.manual_seed(0)
train_set, val_set = Pictures(120, True), Pictures(60, False)
train = DataLoader(train_set, batch_size=20, shuffle=True)
val = DataLoader(val_set, batch_size=20)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
open("weights.txt", "w").write("trained")
"""


def test_the_report_and_the_page_show_each_data_set(unstuck: Unstuck) -> None:
    Path("train.py").write_text(SCRIPT)
    done = unstuck("data", "--quiet", "--html", "data.html", "train.py")
    assert done.returncode == 0, done.stderr
    assert "data: sound" in done.stdout
    assert "Read train (training, 120 examples), val (evaluation, 60 examples)." in done.stdout
    assert "classes    2: 0 (50.0%), 1 (50.0%)" in done.stdout
    assert "augmented  the same example comes out different each time" in done.stdout
    assert "1 x 8 x 8" in done.stdout
    assert not Path("weights.txt").exists()
    page = Path("data.html").read_text()
    held = re.search(r"<script[^>]*id=\"page-data\"[^>]*>(.*?)</script>", page, re.S)
    assert held is not None
    shown = json.loads(held[1])
    assert shown["answer"]["headline"] == "Nothing wrong was found in the data."
    training, validation = shown["data"]
    assert training["model"] == "train (training)"
    first, draws = training["inputs"]
    assert len(first["pictures"]) == 16
    assert first["pictures"][1]["caption"] == "2: bright"
    assert draws["name"] == "0: one example, read 8 times"
    assert len(draws["pictures"]) == 8
    assert len(validation["inputs"]) == 1
    assert [bar["count"] for bar in validation["target"]["bars"]] == [30, 30]


def test_a_leak_of_everything_is_an_error(unstuck: Unstuck) -> None:
    Path("train.py").write_text(SCRIPT.replace("val = DataLoader(val_set", "val = DataLoader(train_set"))
    done = unstuck("data", "--json", "--quiet", "train.py")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["experiment"]["verdict"] == "flawed"
    assert [one["code"] for one in document["diagnoses"]] == ["R12"]
    assert "all 120 examples are the same" in json.dumps(document["diagnoses"])
    assert "pixels" not in done.stdout
