"""Reads a script without running it: `reader.py` holds the state, and each other file handles one kind of syntax."""
