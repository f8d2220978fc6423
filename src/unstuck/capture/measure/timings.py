"""Where the time of a sampled window goes, and how much memory is in use."""

from __future__ import annotations

import os
import sys
from time import perf_counter

import torch

from unstuck.capture.torch_hooks.internals import has_cuda

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


class Timings:
    """Seconds of one window, by part. What our own reading takes is part of them."""

    def __init__(self) -> None:
        self.data = self.forward = self.backward = self.step = 0.0
        self._began = perf_counter()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return perf_counter() - self._began


def memory_used() -> int | None:
    """Bytes allocated on the device if there is one in use, else the resident memory of the process."""
    if has_cuda():
        return torch.cuda.memory_allocated()
    if sys.platform != "linux":
        return None
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return None
