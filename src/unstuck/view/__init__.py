"""The page of a run: live from its record with `unstuck view`, or as one file with `--html`. Imports no torch."""
