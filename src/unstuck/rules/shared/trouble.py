"""What a part of a rule has found, before the rule that owns it makes a finding of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unstuck.events import Place
from unstuck.findings import Evidence, Severity


class Trouble(NamedTuple):
    """What a finding needs; the rule that owns it makes it one."""

    message: str
    cause: str
    fix: str
    place: Place | None
    related: Sequence[Place | None] = ()
    evidence: Sequence[Evidence] = ()
    severity: Severity | None = None
    """Where it differs from what the rule says otherwise."""
