"""Ctrl-C at the very moment at which the process that forks trials has been started: nobody else would end it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from unstuck.trials.interrupts import Interrupts
from unstuck.trials.runner import Program, Runner


def test_an_interrupt_while_it_is_started_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, as under `nohup`
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    folder = tmp_path / ".unstuck/runs/20260101-000000-train"
    try:
        with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt), Runner(Program("train.py"), folder):
            pytest.fail("it goes on")
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupts.arrived == signal.SIGINT
    assert [process.returncode is not None for process in started] == [True]
    assert not list(folder.iterdir())
