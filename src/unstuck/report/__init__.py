"""Results in, text out: one file per format, all reading the same `Result`."""

from unstuck.report.result import Problem, Result, run_summary

__all__ = ["Problem", "Result", "run_summary"]
