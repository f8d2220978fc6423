"""`unstuck doctor` tells the truth: it passes here, and fails where a promise is broken."""

from __future__ import annotations

import json

import pytest
import torch

from unstuck import cli
from unstuck.capture.guard import Guard
from unstuck.capture.torch_hooks import weaving
from unstuck.doctor import checks, overhead
from unstuck.record.runs import run_folders


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "STEPS", 15)
    monkeypatch.setattr(overhead, "ROUNDS", 1)
    monkeypatch.setattr(checks, "MOST_OVERHEAD", 50.0)


def failed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = cli.main(["doctor", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    names = [check["name"] for check in document["checks"] if not check["ok"]]
    assert (code, document["ok"]) == (int(bool(names)), not names)
    return names


def test_every_promise_holds_here(capsys: pytest.CaptureFixture[str]) -> None:
    random_numbers, threads = torch.get_rng_state(), torch.get_num_threads()
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "All 8 checks passed on this machine." in shown
    assert f"torch {torch.__version__}" in shown
    assert shown.count("\nok    ") == 8
    assert max(map(len, shown.splitlines())) <= 80
    assert torch.equal(torch.get_rng_state(), random_numbers)
    assert torch.get_num_threads() == threads
    assert run_folders() == []


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert {"python", "torch", "cuda", "system"} == document["machine"].keys()
    assert all(check["ok"] and check["detail"] for check in document["checks"])


def test_a_watch_that_draws_random_numbers_is_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = checks.Forwards.before

    def drawing(self, *arguments):
        torch.rand(1)
        healthy(self, *arguments)

    monkeypatch.setattr(checks.Forwards, "before", drawing)
    broken = failed(capsys)
    assert {"same results: MLP", "same results: conv and dropout", "same results: transformer"} <= set(broken)


@pytest.mark.slow
def test_a_guard_that_lets_errors_through_is_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def let_through(self, part, error):
        raise error

    monkeypatch.setattr(Guard, "failed", let_through)
    assert failed(capsys) == ["a fault of ours stays ours"]


@pytest.mark.slow
def test_patches_that_stay_are_caught(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stay(self, observer):
        self._function.__code__ = self._woven.replace()

    monkeypatch.setattr(weaving.Weave, "remove", stay)
    try:
        assert "nothing stays in torch" in failed(capsys)
    finally:
        monkeypatch.undo()
        for woven in weaving._weaves.values():
            woven._function.__code__ = woven._original
        weaving._weaves.clear()


@pytest.mark.slow
def test_an_overhead_beyond_measure_is_caught(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "MOST_OVERHEAD", 0.01)
    assert failed(capsys) == ["overhead on a small MLP"]


def test_a_record_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checks, "new_run_folder", full)
    assert failed(capsys) == ["the record can be written", "trials cannot touch your files"]


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["doctor"]) == 3
    assert "pip install torch" in capsys.readouterr().err
