"""`unstuck overfit SCRIPT [ARGS]`: one experiment on a script's own loop."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying

HELP = "can the loop overfit a single batch?"
GROUP = "experiment"

DESCRIPTION = """Feed the script's own loop one and the same batch, with dropout and weight decay
off. A loop that can learn drives that loss to its floor; if it does not, something between the data
and the weights is broken."""


def main(arguments: Sequence[str]) -> int:
    """Make the experiment, then report."""
    from unstuck.experiments.overfit import overfit

    return trying.experiment("overfit", DESCRIPTION, overfit, arguments)
