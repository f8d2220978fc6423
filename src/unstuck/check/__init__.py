"""Live objects read once, before training: `unstuck.check(model, ...)`, and `unstuck check`."""

from __future__ import annotations

from unstuck.callable_package import make_callable

CALLS = "unstuck.check.objects:check"
make_callable(__name__)
