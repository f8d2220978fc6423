"""A healthy training of each architecture: `run` and `lint` find nothing at all, not even advice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unstuck.cli import main
from unstuck.testing.runs import OUTPUT, RunServer

HEALTHY = Path(__file__).parents[2] / "examples" / "healthy"
SCRIPTS = sorted(HEALTHY.glob("*.py"))
ARCHITECTURES = """
    mlp cnn_batchnorm resnet lstm gpt vit vae gan dqn ppo autoencoder contrastive diffusion finetune_frozen_backbone
    lora mixed_precision_bf16 grad_scaler accumulation lbfgs several_optimizers
""".split()
BEGINS_AT_ITS_FLOOR = "noisy_labels_small_lr_finetune"
REPORT = "report.json"
_RESULT = re.compile(r"^(?P<what>[a-z ]+) (?P<first>-?\d+\.\d+) -> (?P<last>-?\d+\.\d+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def run_server() -> Iterator[RunServer]:
    """One thread each: on small tensors a second one only waits, and for long on a busy machine."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        process = RunServer()
    yield process
    process.close()


def report_of(script: Path, folder: Path, run_server: RunServer) -> dict[str, Any]:
    """What `unstuck run` reports of a script that runs in the folder."""
    arguments = ["run", "--format", "json", "--output", REPORT, "--fail-on", "never", str(script)]
    code = run_server.run(str(folder), arguments)
    assert code == 0, (folder / OUTPUT).read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    return report


def said(diagnoses: list[dict[str, Any]]) -> str:
    return "\n".join(f"{item['code']} {item['severity']}: {item['message']} ({item['place']})" for item in diagnoses)


def learned(output: str) -> bool:
    """Whether the last line of the script tells of a loss that fell, or of a reward that rose."""
    result = _RESULT.findall(output)[-1]
    what, first, last = result[0], float(result[1]), float(result[2])
    return last > first if what in ("return", "reward") else last < first


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_healthy_run_ends_with_nothing_found(script: Path, tmp_path: Path, run_server: RunServer) -> None:
    report = report_of(script, tmp_path, run_server)
    assert not report["diagnoses"], said(report["diagnoses"])
    assert not report["unconfirmed"], said(report["unconfirmed"])
    assert not report["errors"]
    assert not report["ignored"], "a healthy script needs no ignore comment"
    assert learned((tmp_path / OUTPUT).read_text(encoding="utf-8"))
    trend = report["trend"]
    # With several optimizers there is no one loss to follow.
    if trend is not None and script.stem != BEGINS_AT_ITS_FLOOR:
        assert trend["word"] == "falling", trend


def test_lint_finds_nothing_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["lint", "--format", "json", "--fail-on", "advice", str(HEALTHY)])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, said(report["diagnoses"])
    assert not report["diagnoses"]
    assert not report["unconfirmed"]
    assert not report["ignored"]
    assert report["files"] == len(SCRIPTS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_there(architecture: str) -> None:
    assert (HEALTHY / f"{architecture}.py").is_file()


def test_a_script_without_its_health_would_be_found(tmp_path: Path, run_server: RunServer) -> None:
    text = (HEALTHY / "mlp.py").read_text(encoding="utf-8")
    broken = tmp_path / "mlp.py"
    broken.write_text(text.replace("return self.layers(points)", "return self.layers(points).softmax(1)"))
    report = report_of(broken, tmp_path, run_server)
    assert [item["code"] for item in report["diagnoses"]] == ["O12"]
