"""Which torch is installed, and whether it is one that unstuck was tried with. Does not import it."""

from __future__ import annotations

OLDEST = (2, 4)
NEWEST = (2, 15)
"""The newest that `make compat` was run with."""


def installed() -> str:
    """The version of torch, or nothing if that is not written down anywhere."""
    import importlib.metadata

    try:
        return importlib.metadata.version("torch") or ""  # None where an uninstallation left half of it
    except Exception:  # whatever is wrong with what is installed, the script is to run
        return ""


def untried() -> str:
    """A sentence if nobody has tried unstuck with this torch."""
    version = installed()
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return ""
    release = (int(numbers[0]), int(numbers[1]))
    if OLDEST <= release <= NEWEST:
        return ""
    tried = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    return (
        f"torch {version} is not one that unstuck was tested with ({tried}); your script runs as it would without "
        "unstuck, but the report may be missing parts."
    )
