"""What the ways to isolate a trial share."""

from __future__ import annotations

FAILED = 70
"""Exit code of a trial that could not be made."""


class NotPossible(Exception):
    """This system cannot keep a trial apart in this way; its text says why."""
