"""The catalogue: one pitfall, one pair of files."""
