"""`unstuck seeds SCRIPT [ARGS]`: one experiment on a script's own loop."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying

HELP = "is the run reproducible, and how much does it vary with the seed?"
GROUP = "experiment"

DESCRIPTION = """Run the script with the same seed twice and with others: is it reproducible, and
how much of a difference in the loss is mere chance?"""


def main(arguments: Sequence[str]) -> int:
    """Make the experiment, then report."""
    from unstuck.experiments.seeds import seeds

    return trying.experiment("seeds", DESCRIPTION, seeds, arguments)
