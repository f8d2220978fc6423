"""The devices that training scripts use. All others are hidden, among them disks and the switches of the machine."""

from __future__ import annotations

PLAIN = ("null", "zero", "full", "random", "urandom", "tty")
ACCELERATORS = ("kfd", "dri", "infiniband", "accel", "dxg", "nvidia")
"""How the names of graphics cards and their networks begin."""


def is_used(name: str) -> bool:
    """Is this a name in /dev that a trial may open?"""
    return name in PLAIN or name.startswith(ACCELERATORS)
