"""A run is in use for as long as a process holds it, however that process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from unstuck.record.in_use import is_locked

HOLDING = """
import sys, time
from pathlib import Path
from unstuck.record.in_use import hold
hold(Path(sys.argv[1]))
print(1, flush=True)
time.sleep(100)
"""


def test_a_lock_goes_with_the_process_that_is_killed(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert is_locked(tmp_path)
        process.send_signal(signal.SIGKILL)
    assert not is_locked(tmp_path)
