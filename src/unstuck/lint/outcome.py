"""Reading and judging one file: the unit of work of a worker and of the cache."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from unstuck.findings.result import Problem
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.rule import Rule
from unstuck.source import Project, SourceError, read_script
from unstuck.source.documents.files import UNREADABLE, decode, digest_of, read_raw
from unstuck.source.reader.project import Modules

NOTEBOOK = ".ipynb"
HEADROOM = 950
"""Calls that may be nested below ours: the same everywhere, so that the result is the same."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of one file: a verdict, or the problem that prevented one."""

    verdict: Verdict | None
    problem: Problem | None
    seen: dict[str, bytes]
    """Every file the result depends on, with the digest of its content."""

    @property
    def is_lasting(self) -> bool:
        """Can the result be cached?"""
        return UNREADABLE not in self.seen.values() and not (self.verdict and self.verdict.failures)


def outcome_of(path: Path, rules: Sequence[Rule], modules: Modules, text: str | None = None) -> Outcome:
    """Read and judge one file; `text` replaces its content on disk."""
    real = Path(os.path.realpath(path))
    project = Project(modules, real)
    own = os.path.abspath(path)
    project.seen[own] = UNREADABLE
    try:
        module = modules.read(real) if text is None and path.suffix != NOTEBOOK else None
        if module is not None and module.tree is not None:
            project.seen[own] = module.digest
            verdict = verdict_of(path, "\n".join(module.lines), rules, project, module.tree)
        else:
            raw = read_raw(path) if text is None else text.encode(errors="replace")
            project.seen[own] = digest_of(raw) if text is None else UNREADABLE
            verdict = _verdict_of_raw(path, raw, text, rules, project)
    except SourceError as error:
        return Outcome(None, Problem(str(error), error.place), project.seen)
    except RecursionError:
        return Outcome(None, Problem(f"{path} was skipped: its code is nested too deeply."), project.seen)
    return Outcome(verdict, None, project.seen)


def _verdict_of_raw(path: Path, raw: bytes, text: str | None, rules: Sequence[Rule], project: Project) -> Verdict:
    if path.suffix != NOTEBOOK:
        return verdict_of(path, decode(raw, str(path)) if text is None else text, rules, project)
    from unstuck.source.documents.notebook import Notebook

    notebook = Notebook(raw, str(path))
    try:
        verdict = verdict_of(path, notebook.text, rules, project)
        diagnoses, ignored = (tuple(map(notebook.diagnosis_of, part)) for part in (verdict.diagnoses, verdict.ignored))
        return msgspec.structs.replace(verdict, diagnoses=diagnoses, ignored=ignored)
    except SourceError as error:
        raise notebook.error_of(error) from None


def verdict_of(
    path: Path, text: str, rules: Sequence[Rule], project: Project, tree: ast.Module | None = None
) -> Verdict:
    """The verdict on a Python text as the file at `path`; SourceError if it does not parse."""
    with steady_recursion():
        return judge(scripts=(read_script(path, project, text, tree),), rules=rules)


@contextmanager
def steady_recursion() -> Iterator[None]:
    """The same limit for nested calls, independent of the depth of our caller."""
    before = sys.getrecursionlimit()
    frame, depth = sys._getframe(), 1
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + HEADROOM)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
