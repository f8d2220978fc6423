"""`unstuck prove SCRIPT [ARGS]`: try the remedy of everything that is found."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying
from unstuck.cli.verbs import diagnose

HELP = "test the fix of every finding: same script, same seeds, with and without"
GROUP = "experiment"

DESCRIPTION = f"""Watch a script for a while, then test the fix of each finding: same script, same seeds,
same steps, with only that change; then all that helped together. No other experiments are run.

{trying.IN_TRIALS}"""


def main(arguments: Sequence[str]) -> int:
    """Try remedies, then report."""
    return diagnose.investigate("prove", DESCRIPTION, arguments, only_proofs=True)
