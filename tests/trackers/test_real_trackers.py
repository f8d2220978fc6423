"""The libraries themselves, offline: a run that the script logs and one that it does not, read back."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import torch
from torch import nn
{begin}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {log}
{end}
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSTUCK_RAISE", raising=False)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    return tmp_path


def run(tracker: str, begin: str = "", log: str = "", end: str = "") -> str:
    """The sentences of unstuck."""
    Path("train.py").write_text(SCRIPT.format(begin=begin, log=log or "pass", end=end))
    # A tracker may take its time where the machine is busy.
    program = f"from unstuck.watch import forwarding; forwarding.Forwarding.end.__defaults__ = (90.0,)\n{UNSTUCK}"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--to", tracker, "train.py"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("unstuck: forward")]
    return sentence


UNSTUCK = "import sys; from unstuck.cli import main; sys.exit(main(sys.argv[1:]))"


def test_tensorboard_itself_reads_what_is_written_next_to_the_script_s_own() -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed here")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    begin = "from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('logs/theirs')"
    run("tensorboard", begin, "writer.add_scalar('loss', loss.item(), step)", "writer.close()")
    ours = EventAccumulator("logs/theirs/unstuck", size_guidance={"scalars": 0, "tensors": 0})
    ours.Reload()
    theirs = EventAccumulator("logs/theirs", size_guidance={"scalars": 0})
    theirs.Reload()
    assert [(e.step, e.value) for e in ours.Scalars("unstuck/loss")] == [
        (e.step, pytest.approx(e.value)) for e in theirs.Scalars("loss")
    ]
    histogram = ours.Histograms("unstuck_weights_log2/0.weight")[0].histogram_value
    assert histogram.num == 8 * 16
    assert len(histogram.bucket) == len(histogram.bucket_limit)
    text = ours.Tensors("unstuck/findings")[-1].tensor_proto.string_val[0].decode()
    assert "**error O12 double-softmax" in text


@pytest.mark.slow
def test_mlflow_gets_it_in_the_script_s_own_run() -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed here")
    pytest.importorskip("sqlalchemy", reason="MLflow's database is not installed here")
    begin = "import mlflow; mlflow.set_experiment('theirs'); mlflow.start_run(run_name='one')"
    run("mlflow", begin, "mlflow.log_metric('loss', loss.item(), step=step)")
    with sqlite3.connect("mlflow.db") as database:
        ((number, status),) = database.execute("select run_uuid, status from runs").fetchall()
        metrics = database.execute("select key, count(*) from metrics group by key").fetchall()
        tags = dict(database.execute("select key, value from tags").fetchall())
    assert status == "FINISHED"
    assert dict(metrics)["loss"] == dict(metrics)["unstuck/loss"] == 30
    assert "unstuck_update_ratio/0.weight" in dict(metrics)
    assert tags["unstuck/O12 double-softmax"].startswith("error O12 double-softmax at ")
    (histograms,) = Path().rglob(f"{number}/artifacts/unstuck/histograms.jsonl")
    line = json.loads(histograms.read_text().splitlines()[0])
    assert len(line["edges"]) == len(line["counts"]) + 1


@pytest.mark.slow
def test_mlflow_gets_a_run_of_its_own_where_the_script_has_none() -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed here")
    pytest.importorskip("sqlalchemy", reason="MLflow's database is not installed here")
    assert "a run of its own" in run("mlflow")
    with sqlite3.connect("mlflow.db") as database:
        ((name, status),) = database.execute("select name, status from runs").fetchall()
        ((losses,),) = database.execute("select count(*) from metrics where key = 'unstuck/loss'").fetchall()
    assert name.endswith("-train")
    assert status == "FINISHED"
    assert losses == 30


@pytest.mark.slow
def test_wandb_gets_a_run_in_the_group_of_the_script_s_own() -> None:
    pytest.importorskip("wandb", reason="W&B is not installed here")
    begin = "import wandb; run = wandb.init(project='mine', name='theirs')"
    run("wandb", begin, "wandb.log({'loss': loss.item()})", "wandb.finish()")
    runs = {str(kind["name"]): kind for kind in map(offline_run, Path("wandb").glob("offline-run-*/run-*.wandb"))}
    theirs, ours = runs["theirs"], runs["theirs-unstuck"]
    assert ours["project"] == "mine"
    assert ours["group"] == theirs["id"]
    losses = [row for row in ours["rows"] if "unstuck/loss" in row]
    assert sorted({row["unstuck/step"] for row in losses}) == list(range(30))
    assert any("unstuck_weights/0.weight.bins" in row for row in ours["rows"])
    assert any("unstuck/findings.path" in row for row in ours["rows"])
    assert len(theirs["rows"]) == 30, "the steps of the script's own run have moved"


def offline_run(file: Path) -> dict[str, object]:
    """What a file of W&B's offline mode holds: records in blocks, as LevelDB writes logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, pending = file.read_bytes(), 7, b""
    found: dict[str, object] = {"rows": []}
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        _, length, kind = struct.unpack_from("<IHB", content, at)
        pending += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind not in (1, 4):  # a part that others follow
            continue
        record, pending = Record.FromString(pending), b""
        if record.WhichOneof("record_type") == "run":
            one = record.run
            found |= {"id": one.run_id, "name": one.display_name, "project": one.project, "group": one.run_group}
        elif record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found["rows"].append(items)  # type: ignore[attr-defined]
    return found


@pytest.mark.slow
def test_trackio_gets_a_run_in_the_project_of_the_script_s_own() -> None:
    pytest.importorskip("trackio", reason="Trackio is not installed here")
    begin = "import trackio; trackio.init(project='mine', name='theirs')"
    run("trackio", begin, "trackio.log({'loss': loss.item()})", "trackio.finish()")
    with sqlite3.connect(os.path.join("trackio", "mine.db")) as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
        alerts = database.execute("select run_name, title, level from alerts").fetchall()
    ours = [(step, json.loads(metrics)) for name, step, metrics in rows if name == "theirs-unstuck"]
    assert sorted({step for step, row in ours if "unstuck/loss" in row}) == list(range(30))
    assert any("unstuck_weights/0.weight" in row for _, row in ours)
    ((name, title, level),) = alerts
    assert (name, level) == ("theirs-unstuck", "error")
    assert title.startswith("error O12 double-softmax")
    assert sum(name == "theirs" for name, _, _ in rows) == 30
