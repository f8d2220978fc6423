"""Reads a script without running it: one file per kind of syntax."""
