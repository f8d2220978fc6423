"""`unstuck report` of runs that were not watched: what their logs show, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from unstuck import cli
from unstuck.logged import Log
from unstuck.logged.roles import Roles, roles_of
from unstuck.tfevents.reader import scalars
from unstuck.tfevents.writer import EventFile

FALLING = [2.5 * math.exp(-step / 60) + 0.02 * math.sin(17.0 * step) + 0.05 for step in range(200)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(capsys: pytest.CaptureFixture[str], path: str, *words: str) -> tuple[int, str]:
    """The exit code, and what is printed with its lines joined."""
    code = cli.main(["report", path, *words])
    shown = capsys.readouterr()
    return code, " ".join((shown.out + shown.err).split())


def board(folder: str, **series: Sequence[float]) -> Path:
    file = EventFile(folder)
    for name, values in series.items():
        for step, value in enumerate(values):
            file.scalars(step, {name.replace("__", "/"): value})
    file.close()
    return file.path


def trainer_state(entries: Sequence[Mapping[str, object]]) -> None:
    Path("trainer_state.json").write_text(json.dumps({"global_step": 1, "log_history": entries}))


def metrics(rows: Sequence[Mapping[str, object]], file: str = "metrics.csv") -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with Path(file).open("w", newline="") as stream:
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = csv.DictWriter(stream, names)
        table.writeheader()
        table.writerows(rows)


def test_a_board_of_torch_s_own_writer(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed here")
    import torch
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("runs/one")
    for step, loss in enumerate(FALLING):
        writer.add_scalar("Loss/train", loss, step)
        writer.add_scalar("lr", 1e-3, step)
    writer.add_text("notes", "some words")
    writer.add_histogram("weights", torch.ones(3), 0)
    writer.add_hparams({"lr": 1e-3}, {"hparam/best": 1.0}, run_name="best")
    writer.close()
    code, text = report(capsys, "runs/one")
    assert code == 0
    assert "Learns: 2.55 → " in text
    assert "in 199 steps" in text
    assert "runs/one holds 2 series of up to 200 values, to step 199; the run was not watched." in text
    assert "lr: 0.001 all along." in text
    assert "Not checked the gradient norm, the evaluation: not logged" in text


def test_scalars_of_tensorflow_are_tensors() -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed here")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter("keras")
    for step, number in enumerate((1.5, -0.25)):
        event = Event(step=step, wall_time=1.0)
        value = event.summary.value.add(tag="epoch_loss")
        value.metadata.plugin_data.plugin_name = "scalars"
        value.tensor.CopyFrom(make_tensor_proto(number))
        writer.add_event(event)
    writer.close()
    (file,) = Path("keras").iterdir()
    found = [(one.tag, one.step, one.value) for one in scalars(file)]
    assert found == [("epoch_loss", 0, 1.5), ("epoch_loss", 1, -0.25)]


def test_keras_writes_one_run_into_two_folders(capsys: pytest.CaptureFixture[str]) -> None:
    board("logs/train", epoch_loss=FALLING)
    board("logs/validation", epoch_loss=[1.0, 0.5, 0.8])
    code, text = report(capsys, "logs")
    assert code == 0
    assert "train/epoch_loss: 2.55 → " in text
    assert "validation/epoch_loss: lowest 0.5 at step 1, 0.8 at the end: it has become worse since." in text


def test_a_folder_of_several_runs_asks_which(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        board(f"runs/{name}", loss=FALLING)
    assert report(capsys, "runs") == (2, "unstuck: runs holds 2 runs; name one of them: a, b.")


def test_what_a_killed_run_leaves_is_read_to_its_last_whole_event(capsys: pytest.CaptureFixture[str]) -> None:
    file = board("runs", loss=FALLING)
    file.write_bytes(file.read_bytes()[:-7])
    code, text = report(capsys, "runs")
    assert code == 0
    assert "holds 1 series of up to 199 values, to step 198" in text


def test_a_run_that_was_resumed_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    board("runs", loss=FALLING[:150]).rename("runs/events.out.tfevents.1.first")
    later = EventFile("runs")
    for step in range(100, 200):
        later.scalars(step, {"loss": FALLING[step]})
    later.close()
    code, text = report(capsys, "runs")
    assert code == 0
    assert "1 series of up to 200 values, to step 199" in text


def test_a_trainer_s_state_shows_rates_norms_and_evaluations(capsys: pytest.CaptureFixture[str]) -> None:
    entries: list[dict[str, object]] = []
    for number in range(1, 201):
        loss = FALLING[min(number, 100)]
        rate, norm = 5e-5 * max(0.0, 1 - number / 100), 40.0 if number == 50 else 1.0
        entries.append(
            {"step": 10 * number, "epoch": number / 20, "loss": loss, "learning_rate": rate, "grad_norm": norm}
        )
        if number % 50 == 0:
            entries.append({"step": 10 * number, "eval_loss": 1 + number / 100, "eval_accuracy": number / 400})
    entries.append({"step": 2000, "train_runtime": 77.5, "train_loss": 9.0})
    trainer_state(entries)
    code, text = report(capsys, "trainer_state.json")
    assert code == 0
    assert "warning (likely) R07 early-lr-decay: After 1000 of 2000 steps the learning rate" in text
    assert "eval_loss: lowest 1.5 at step 500, 3 at the end: it has become worse since." in text
    assert "eval_accuracy: highest 50 % at step 2,000, 50 % at the end." in text
    assert "grad_norm: usually 1, largest 40 at step 500." in text
    assert "usually 10 steps apart" in text
    assert "train_loss" not in text
    Path("checkpoint-1").mkdir()
    Path("trainer_state.json").rename("checkpoint-1/trainer_state.json")
    assert report(capsys, "checkpoint-1")[1].replace("checkpoint-1", "trainer_state.json") == text


def test_the_metrics_of_a_csv_logger_show_where_the_loss_broke(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"step": 10 * at, "train_loss_step": 2.3 + 0.01 * (at % 2)} for at in range(100)]
    rows += [{"step": 1000 + 10 * at, "train_loss_step": math.nan} for at in range(20)]
    rows += [{"step": 99, "val_loss": 2.4, "epoch": 0}]
    metrics(sorted(rows, key=lambda row: int(str(row["step"]))), "version_0/metrics.csv")
    code, text = report(capsys, "version_0")
    assert code == 1
    assert "error G10 non-finite: The loss became NaN at step 1000." in text
    assert "should show no" not in text, "there is no command that would run it again"
    assert report(capsys, "version_0/metrics.csv")[0] == 1
    assert report(capsys, "version_0", "--fail-on", "never")[0] == 0


def test_several_versions_of_a_csv_logger(capsys: pytest.CaptureFixture[str]) -> None:
    metrics([{"step": at, "train_loss": 1.0} for at in range(9)], "logs/version_0/metrics.csv")
    assert "logs holds 1 series of up to 9 values" in report(capsys, "logs")[1]
    metrics([{"step": 1, "train_loss": 1.0}], "logs/version_1/metrics.csv")
    assert report(capsys, "logs") == (2, "unstuck: logs holds 2 runs; name one of them: version_0, version_1.")


def test_a_table_that_was_exported_from_wandb(capsys: pytest.CaptureFixture[str]) -> None:
    metrics([{"Step": at, "one - train/loss": loss} for at, loss in enumerate(FALLING)], "wandb_export.csv")
    assert "one - train/loss: 2.55 → " in report(capsys, "wandb_export.csv")[1]


def test_names_and_numbers_can_be_anything(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": at, "loss": (1.0, 1e308, -1e308, "x")[at % 4], "\x1b[31m<script>alert": 1} for at in range(100)]
    metrics(rows)
    code, text = report(capsys, "metrics.csv", "--html", "page.html")
    assert code in (0, 1)
    assert "\x1b" not in text
    assert "1e+308" not in text
    assert "<script>alert" not in Path("page.html").read_text()


def test_a_loss_scale_that_collapses(capsys: pytest.CaptureFixture[str]) -> None:
    scales = [2.0 ** max(0, 16 - step) for step in range(60)]
    board("amp", loss=FALLING[:60], amp__loss_scale=scales)
    code, text = report(capsys, "amp")
    assert code == 0
    assert "amp/loss_scale: 65,540 → 1, lowered 16 times" in text.replace("6.554e+04", "65,540")
    assert "O24 gradscaler-collapse: GradScaler skipped 16 of 75 steps" in text


def test_the_loss_s_jumps_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    losses = [1.0 + 0.01 * (step % 3) for step in range(200)]
    losses[120] = 9.0
    board("runs", loss=losses)
    assert "it jumps at step 120." in report(capsys, "runs")[1]


def test_the_page_and_json_work_too(capsys: pytest.CaptureFixture[str]) -> None:
    board("runs", loss=FALLING, lr=[1e-3] * 200)
    code, text = report(capsys, "runs", "--html", "page.html", "--format", "json")
    assert code == 0
    assert '"status":"logged"' in text.replace(" ", "")
    page = Path("page.html").read_text()
    assert "Learning rate in use" in page
    assert "was not watched" in page


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("trainer_state.json", b"{", "trainer_state.json is not JSON; give the trainer_state.json of a Trainer."),
        ("trainer_state.json", b"[" * 100_000, "trainer_state.json is not JSON"),
        ("other.json", b'{"a": 1}', "other.json has no `log_history`; give the trainer_state.json of a Trainer."),
        ("x.json", b'{"log_history": [{"loss": 1}]}', "x.json has an entry without a step in its `log_history`."),
        ("x.json", b'{"log_history": []}', "x.json holds no loss, learning rate, gradient norm or loss scale"),
        ("x.csv", b"", "x.csv has no column `step` and rows below it; give the metrics.csv of a CSVLogger."),
        ("x.csv", b"a,b\n1,2\n", "x.csv has no column `step` and rows below it"),
        ("x.csv", b"step,loss\nnan,2\n", "x.csv has no step in line 2: 'nan'."),
        ("x.csv", b"step,loss\ninf,2\n", "x.csv has no step in line 2: 'inf'."),
        ("x.csv", b"step,loss\n1,1\n-1,2\n", "x.csv has no step in line 3: '-1'."),
        ("x.csv", b"step,foo\n1,2\n", "by a name that is known; its series are: foo."),
        ("x.csv", b"\xff\xfe\x00", "x.csv is not a CSV file"),
        ("x.csv", b'step,loss\n1,"2\n', "x.csv is not a CSV file"),
        (
            "events.out.tfevents.1",
            b"hello",
            "tfevents.1 is damaged, or not an event file: at byte 0, it is too short",
        ),
        (
            "events.out.tfevents.1",
            b"x" * 100,
            "tfevents.1 is damaged, or not an event file: at byte 0, no event begins",
        ),
        ("events.out.tfevents.1", b"", "events.out.tfevents.1 holds no loss"),
        ("train.py", b"print()\n" * 9, "train.py is not a record of unstuck"),
    ],
)
def test_foreign_files_are_refused_in_a_sentence(
    file: str, content: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_bytes(content)
    code, text = report(capsys, file)
    assert code == 2
    assert text.startswith("unstuck: ")
    assert sentence in text
    assert text.count("unstuck: ") == 1


def test_an_event_file_with_a_changed_byte_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    file = board("runs", loss=FALLING)
    whole = file.read_bytes()
    refused = 0
    for at in range(40, 140):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        code, text = report(capsys, "runs")
        assert code == 2
        refused += "is damaged, or not an event file: at byte " in text
    assert refused == 100


def test_a_folder_without_a_log_is_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    code, text = report(capsys, "empty")
    assert code == 2
    assert "There is no record at empty/events.jsonl" in text


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["loss/policy", "loss/value", "loss/entropy"], Roles()),
        (["d_loss", "g_loss", "loss"], Roles(loss="loss")),
        (["loss", "loss_scale", "eval_loss"], Roles(loss="loss", scale="loss_scale", evaluation="eval_loss")),
        (["train/loss_epoch", "train/loss_step", "val/loss"], Roles(loss="train/loss_step", evaluation="val/loss")),
        (["train_loss", "train_ctc_loss", "best_loss"], Roles(loss="train_loss")),
        (["lr-AdamW/pg1", "lr-AdamW/pg2"], Roles(rates=("lr-AdamW/pg1", "lr-AdamW/pg2"))),
        (["grad_2.0_norm_total", "grad_2.0_norm/fc.weight"], Roles(gradient="grad_2.0_norm_total")),
        (
            ["gradNorm", "Loss/train", "acc/val"],
            Roles(gradient="gradNorm", loss="Loss/train", accuracy="acc/val"),
        ),
        (["reward", "perplexity", "throughput"], Roles()),
    ],
)
def test_names_say_what_a_series_is(names: list[str], expected: Roles) -> None:
    assert roles_of(Log(path=Path("x"), series={name: [(0, 1.0)] for name in names})) == expected
