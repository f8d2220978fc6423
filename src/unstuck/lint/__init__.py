"""Linting many files: settings, what to search, workers and cache; `engine` is the way in."""
