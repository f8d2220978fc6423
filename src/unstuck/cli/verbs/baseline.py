"""`unstuck baseline SCRIPT [ARGS]`: one experiment on a script's own loop."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import trying

HELP = "does the model learn anything from its inputs?"
GROUP = "experiment"

DESCRIPTION = """Train on the real inputs, on zeros and on inputs exchanged between the examples,
with the same seeds and steps. If the loss falls just as far without the real inputs, nothing is
learned from them."""


def main(arguments: Sequence[str]) -> int:
    """Make the experiment, then report."""
    from unstuck.experiments.baseline import baseline

    return trying.experiment("baseline", DESCRIPTION, baseline, arguments)
