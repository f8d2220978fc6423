"""`unstuck prove SCRIPT [ARGS]`: try the remedy of everything that is found."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import diagnose

DESCRIPTION = """Watch a script for a while, and try the remedy of each thing that is found: same
script, same seeds, same steps, with only that change; then all that helped together. No other
experiment is made.

The script runs as it is, several times and for a few hundred steps each, in copies of the working
directory: it writes nothing of yours. Everything after SCRIPT belongs to the script."""


def main(arguments: Sequence[str]) -> int:
    """Try remedies, then report."""
    return diagnose.investigate("prove", DESCRIPTION, arguments, only_proofs=True)
