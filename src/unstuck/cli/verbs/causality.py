"""`unstuck causality SCRIPT [ARGS]`: one experiment on a script's own loop."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying

HELP = "does a prediction depend on positions that come after it?"
GROUP = "experiment"

DESCRIPTION = (
    """Look, inside the script's own loop, whether a prediction at one position depends on inputs that come after it."""
)


def main(arguments: Sequence[str]) -> int:
    """Make the experiment, then report."""
    from unstuck.experiments.causality import causality

    return trying.experiment("causality", DESCRIPTION, causality, arguments)
