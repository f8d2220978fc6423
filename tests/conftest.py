"""For every test: an internal error is re-raised, never swallowed, and nothing depends on the terminal."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSTUCK_RAISE", "1")
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def signals_as_in_a_terminal() -> Iterator[None]:
    """Started by `nohup` or as a background job, we ignore signals, and all that we start would inherit that.

    A signal with a handler becomes the default again in a program that is started; ours does nothing, as before.
    """
    names = ("SIGINT", "SIGHUP", "SIGQUIT")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    with contextlib.ExitStack() as undo:
        for number in ignored:
            signal.signal(number, lambda *_: None)
            undo.callback(signal.signal, number, signal.SIG_IGN)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models on a busy machine wait for their threads and for nothing else."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
