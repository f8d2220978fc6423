"""The whole triage: watch a training, try the fixes of what is found, run experiments, and answer."""

from __future__ import annotations

from unstuck.callable_package import make_callable

CALLS = "unstuck.diagnose.objects:diagnose"
make_callable(__name__)
