"""It runs, but does not learn."""
