"""Starts a program as python would: same `__main__`, arguments, tracebacks and exit code."""
