"""`unstuck lr SCRIPT [ARGS]`: one experiment on a script's own loop."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying

HELP = "which learning rates work?"
GROUP = "experiment"

DESCRIPTION = """Raise the learning rate of the script's own loop from step to step until the loss
diverges, and say which band of rates learns fastest and where the script's own rate lies."""


def main(arguments: Sequence[str]) -> int:
    """Make the experiment, then report."""
    from unstuck.experiments.lr import lr

    return trying.experiment("lr", DESCRIPTION, lr, arguments)
