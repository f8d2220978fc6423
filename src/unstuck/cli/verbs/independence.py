"""`unstuck independence SCRIPT [ARGS]`: one experiment on a script's own loop."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying

HELP = "does the output for one example depend on the others in its batch?"
GROUP = "experiment"

DESCRIPTION = """Look, inside the script's own loop, whether the output for one example depends on
the other examples of its batch."""


def main(arguments: Sequence[str]) -> int:
    """Make the experiment, then report."""
    from unstuck.experiments.independence import independence

    return trying.experiment("independence", DESCRIPTION, independence, arguments)
