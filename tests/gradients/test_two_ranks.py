"""Under DDP and FSDP2, on two real processes, a window is one large batch, and DDP exchanges gradients once for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("two_ranks.py")
WINDOWS = 3


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("loss", ["mean", "sum", "tokens", "token sums"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_equals_one_large_batch(results: dict[str, Any], kind: str, loss: str) -> None:
    result = results[f"{kind} {loss}"]
    assert result["distance"] < 2e-6
    assert result["norm_distance"] < 1e-4  # the norm of the whole gradient, not of a shard
    assert result["same_on_all_ranks"]


def test_with_a_scaler(results: dict[str, Any]) -> None:
    assert results["ddp scaler"]["distance"] < 2e-6
    assert results["fsdp scaler"]["distance"] < 2e-6


def test_an_overflow_in_one_shard_is_everybodys(results: dict[str, Any]) -> None:
    assert results["overflow"] == {"scales": [4.0, 4.0], "steps": 1, "skipped": 1}


def test_one_exchange_per_window(results: dict[str, Any]) -> None:
    assert [result["exchanges"] for name, result in results.items() if name.startswith("ddp")] == [WINDOWS] * 6


def test_items_are_counted_over_all_ranks(results: dict[str, Any]) -> None:
    assert results["ddp tokens"]["items"] == results["fsdp tokens"]["items"] == [15, 13, 3]


def test_noise_is_the_same_on_replicas(results: dict[str, Any]) -> None:
    for kind in ("ddp", "fsdp"):
        assert results[f"{kind} noise"]["same_on_all_ranks"]
        assert results[f"{kind} noise"]["distance"] > 1e-4


def test_an_epoch_left_early_cannot_be_stepped(results: dict[str, Any]) -> None:
    assert "call discard()" in results["left early"]
