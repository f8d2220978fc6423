"""Linting many files: settings, file search, workers and cache. Start reading at `engine.py`."""
