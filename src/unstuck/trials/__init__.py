"""Runs trials of one program, a few at a time, and reads what they recorded."""
