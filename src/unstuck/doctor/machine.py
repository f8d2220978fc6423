"""What the checks ran on."""

from __future__ import annotations

import platform

import torch


def machine() -> dict[str, str]:
    """Versions, system and device."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": platform.platform(),
        "cuda": f"CUDA on {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "no CUDA",
    }
