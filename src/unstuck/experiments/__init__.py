"""Experiments: runs of the user's own loop under interventions, compared. One file each."""
