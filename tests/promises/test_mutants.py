"""Whatever became of a record, `unstuck report` ends with a report or a sentence, and no rule fails on it."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from children import in_a_child

from unstuck import cli

SCRIPTS = {
    "pictures": """
import torch
from torch import nn
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(0, 3, (96,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(144, 16), nn.Tanh(),
    nn.Linear(16, 3),
)
optimizer = torch.optim.AdamW([
    {"params": model[:5].parameters(), "lr": 1e-3}, {"params": model[5:].parameters(), "lr": 1e-2}
])
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
for epoch in range(4):
    model.train()
    for index, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        if index % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y)
""",
    "words": """
import torch
from torch import nn
torch.manual_seed(0)
words = nn.Embedding(20, 8, padding_idx=0)
head = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 20), nn.Softmax(dim=-1))
model = nn.Sequential(words, head)
optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"), momentum=0.9)
for step in range(15):
    x = torch.randint(0, 20, (4, 6))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    loss = loss + torch.log(model(x).sum() - 24)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "crash": """
import torch
from torch import nn
torch.manual_seed(0)
model, critic = nn.Linear(4, 2), nn.Linear(2, 1)
optimizers = [torch.optim.Adam(module.parameters(), 1e-2) for module in (model, critic)]
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    for optimizer, sign in zip(optimizers, (1, -1)):
        optimizer.zero_grad()
        loss = sign * nn.functional.binary_cross_entropy_with_logits(critic(model(torch.randn(8, 4))), torch.ones(8, 1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
model(torch.randn(8, 5))
""",
}
ODD = [
    None, True, False, 0, 1, -1, 0.5, -0.5, 2**31, -(2**31), 2**63, 2**200, 10**400, 1e308, -1e308, 5e-324, "NaN",
    "Infinity", "-Infinity", "", "x", "x" * 5000, "\ud800", "\0", "12", "../..", "/dev/zero", "/dev/stdin", "-rf",
    [], {}, [[]], [None], [1], ["a", "b"], {"a": 1}, {"event": "note"},
]  # fmt: skip
HUGE = [-1, -(2**40), 2**40, 2**62, 2**100]
Events = list[Any]


@pytest.fixture(scope="module")
def records() -> Iterator[list[Events]]:
    """What real runs wrote."""
    folder = Path(tempfile.mkdtemp(prefix="promise-"))
    for name, text in SCRIPTS.items():
        (folder / f"{name}.py").write_text(text)
        in_a_child(folder, lambda name=name: cli.main(["run", "--quiet", f"{name}.py"]))
    files = sorted(folder.glob(".unstuck/runs/*/events.jsonl"))
    assert len(files) == len(SCRIPTS)
    yield [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    shutil.rmtree(folder)


def spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside an event whose value can be changed: its holder, and the key or index."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield value, key
        yield from spots(item)


def drop(events: Events, chance: random.Random) -> None:
    start = chance.randrange(len(events))
    del events[start : start + chance.choice([1, 1, 2, 10, len(events) // 2])]


def repeat(events: Events, chance: random.Random) -> None:
    start = chance.randrange(len(events))
    events[start:start] = copy.deepcopy(events[start : start + chance.choice([1, 3, 30])]) * chance.choice([1, 2, 5])


def reorder(events: Events, chance: random.Random) -> None:
    start = chance.randrange(len(events))
    part = events[start : start + chance.choice([2, 10, len(events)])]
    chance.shuffle(part)
    events[start : start + len(part)] = part


def change(events: Events, chance: random.Random) -> None:
    holder, key = chance.choice(list(spots(chance.choice(events))) or [([0], 0)])
    holder[key] = copy.deepcopy(chance.choice(ODD))


def change_alike(events: Events, chance: random.Random) -> None:
    """One field of all events of a kind."""
    event = chance.choice(events)
    fields = [key for key in event if key != "event"] or ["step"]
    field, value = chance.choice(fields), chance.choice(ODD)
    for other in events:
        if other.get("event") == event.get("event"):
            other[field] = copy.deepcopy(value)


def forget(events: Events, chance: random.Random) -> None:
    holder, key = chance.choice(list(spots(chance.choice(events))) or [([0], 0)])
    del holder[key]


def shorten(events: Events, chance: random.Random) -> None:
    """Columns that no longer match."""
    rows = [(holder, key) for event in events for holder, key in spots(event) if isinstance(holder[key], list)]
    for holder, key in chance.sample(rows, min(len(rows), 3)):
        holder[key] = holder[key][: chance.randrange(len(holder[key]) + 1)]


def swap(events: Events, chance: random.Random) -> None:
    """Fields of one event in another."""
    one, other = chance.choice(events), chance.choice(events)
    for key in chance.sample(sorted(one), min(len(one), 3)):
        if key != "event":
            other[key] = copy.deepcopy(one[key])


def retell(events: Events, chance: random.Random) -> None:
    """As another kind of event."""
    chance.choice(events)["event"] = chance.choice(events).get("event")


def misnumber(events: Events, chance: random.Random) -> None:
    for event in chance.sample(events, chance.choice([1, 5, len(events)])):
        event["step"] = chance.choice(HUGE)


def renumber(events: Events, chance: random.Random) -> None:
    step = chance.choice([0, 1, 10**6])
    for event in events:
        event["step"] = step


def contradict(events: Events, chance: random.Random) -> None:
    """Two ends, two beginnings, a crash in a run that finished."""
    again = [{"event": "run-ended", "status": "finished", "steps": -5, "exit_code": 3}, {"event": "crash"}]
    again += [{"event": "run-started", "script": "other.py"}, {"event": "non-finite", "step": 0}]
    for event in chance.sample(again, 2):
        events.insert(chance.randrange(len(events) + 1), event)


def nest(events: Events, chance: random.Random) -> None:
    deep: Any = 1
    for _ in range(chance.choice([10, 60])):
        deep = [deep] if chance.random() < 0.5 else {"a": deep}
    event = chance.choice(events)
    event[chance.choice([*event, "unknown"])] = deep


CHANGES: list[Callable[[Events, random.Random], None]] = [
    drop, repeat, reorder, change, change, change, change_alike, change_alike, forget, shorten, shorten, swap, retell,
    misnumber, renumber, contradict, nest,
]  # fmt: skip


def mutant(record: Events, chance: random.Random) -> bytes:
    events = copy.deepcopy(record)
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        if events:
            chance.choice(CHANGES)(events, chance)
        events = [event for event in events if isinstance(event, dict)]
    content = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    if chance.random() < 0.2:
        content = content[: chance.randrange(len(content) + 1)]
    if chance.random() < 0.2 and content:
        spot = chance.randrange(len(content))
        content = content[:spot] + chance.randbytes(chance.choice([1, 20])) + content[spot + 1 :]
    return content


def check(records: list[Events], seed: int, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(seed)
    file.write_bytes(mutant(chance.choice(records), chance))
    form = chance.choice([[], [], [], ["--format", "json"], ["--format", "sarif"]])
    began = time.monotonic()
    code = cli.main(["report", str(file), *form])
    assert time.monotonic() - began < 60
    shown = capsys.readouterr()
    assert code in (0, 1, 2)
    assert shown.out if code < 2 else (shown.err.startswith("unstuck: ") and shown.err.count("\n") == 1)
    assert len(shown.out) < 500_000


def check_many(records: list[Events], seeds: range, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """UNSTUCK_RAISE is set: a rule that fails is not passed over."""
    failures = []
    for seed in seeds:
        try:
            check(records, seed, folder / "events.jsonl", capsys)
        except Exception as error:  # all of them, to be looked at together
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            failures.append(f"seed {seed}: {type(error).__name__}: {str(error)[:200]} at {where}")
    assert not failures, "\n".join(failures)


def test_some_mutants(records: list[Events], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_many(records, range(200), tmp_path, capsys)


@pytest.mark.slow
def test_many_mutants(records: list[Events], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_many(records, range(200, 5000), tmp_path, capsys)
