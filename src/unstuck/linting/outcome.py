"""Reading and judging one file: the unit that is kept in the cache and done by workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unstuck.judge import Verdict, judge
from unstuck.report.result import Problem
from unstuck.rule import Rule
from unstuck.source import Project, SourceError, read_script
from unstuck.source.files import UNREADABLE, decode, digest_of, read_raw
from unstuck.source.project import Modules, rare_collection

if TYPE_CHECKING:
    from unstuck.source.notebook import Notebook

HEADROOM = 950
"""Calls that may be nested below ours: the same wherever a file is judged, so that the answer is the same."""


class Outcome(msgspec.Struct, frozen=True):
    """What one file gave: a verdict, or the problem that kept us from one."""

    verdict: Verdict | None
    problem: Problem | None
    seen: dict[str, bytes]
    """Every file the answer depends on, with the digest of what it held."""

    @property
    def is_lasting(self) -> bool:
        """Would the same files give the same answer tomorrow?"""
        return UNREADABLE not in self.seen.values() and not (self.verdict and self.verdict.failures)


def outcomes_of(paths: Iterable[Path], rules: Sequence[Rule], modules: Modules) -> Iterator[Outcome]:
    """One file at a time, so that a large folder does not have to fit in memory."""
    with rare_collection():
        for path in paths:
            yield outcome_of(path, rules, modules)


def outcome_of(path: Path, rules: Sequence[Rule], modules: Modules, text: str | None = None) -> Outcome:
    """Read and judge one file; `text` stands for what lies on disk."""
    project = Project(modules)
    own = os.path.abspath(path)
    project.seen[own] = UNREADABLE
    notebook: Notebook | None = None
    try:
        raw = read_raw(path) if text is None else text.encode(errors="replace")
        if text is None:
            project.seen[own] = digest_of(raw)
        if path.suffix == ".ipynb":
            notebook = _notebook(path, raw)
            text = notebook.text
        elif text is None:
            text = decode(raw, str(path))
        verdict = verdict_of(path, text, rules, project)
    except SourceError as error:
        error = notebook.error_of(error) if notebook else error
        return Outcome(None, Problem(str(error), error.place), project.seen)
    return Outcome(notebook.verdict_of(verdict) if notebook else verdict, None, project.seen)


def _notebook(path: Path, raw: bytes) -> Notebook:
    from unstuck.source.notebook import Notebook

    return Notebook(raw, str(path))


def verdict_of(path: Path, text: str, rules: Sequence[Rule], project: Project) -> Verdict:
    """What the rules say of a Python text that lies, or would lie, at `path`; SourceError if it is none."""
    with steady_recursion():
        return judge(scripts=(read_script(path, project, text=text),), rules=rules)


@contextmanager
def steady_recursion() -> Iterator[None]:
    """The same room for nested calls, however deep we ourselves were called."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_depth() + HEADROOM)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth
