"""A run judged while it goes on: findings announced at once, a hopeless run ended early, and `unstuck.watch`."""

from __future__ import annotations

from unstuck.callable_package import make_callable

CALLS = "unstuck.watch.program:watch"
make_callable(__name__)
