"""Runs a training under watch, in this process, and hands back its record or what the rules say of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.rules.in_run.pace_runs import CODES, Codes, Recorded
from unstuck.capture import watching
from unstuck.capture.detect import graph
from unstuck.judge import judge
from unstuck.record import Record, read
from unstuck.rule import find_rule


@pytest.fixture(autouse=True)
def seeded():
    """Small tensors are fastest on one thread, and every test begins at the same numbers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old torch does not say which saved tensors have hooks: what any test hooked, no later one could look at."""
    monkeypatch.setattr(graph, "_hooks_were_used", False)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """`recorded(training)` runs the function under watch; `stopped` says that it ends with Ctrl-C."""

    def run(training: Callable[[], object], *, stopped: bool = False) -> Record:
        if stopped:
            with pytest.raises(KeyboardInterrupt), watching(tmp_path / "run"):
                training()
        else:
            with watching(tmp_path / "run"):
                training()
        return read(tmp_path / "run")

    return run


@pytest.fixture
def found(recorded: Recorded) -> Codes:
    """The codes of the rules about order and pace that a run of the function shows."""
    rules = [rule for code in CODES if (rule := find_rule(code)) is not None]
    assert len(rules) == len(CODES)

    def run(training: Callable[[], object], *, stopped: bool = False) -> set[str]:
        verdict = judge(record=recorded(training, stopped=stopped), rules=rules)
        assert not verdict.failures
        return {diagnosis.lead.code for diagnosis in verdict.diagnoses}

    return run
