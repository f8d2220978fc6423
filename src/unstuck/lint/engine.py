"""The entry point of linting, for the command, the editor server and the flake8 plugin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from unstuck.events import Place
from unstuck.findings import Diagnosis, rank
from unstuck.findings.result import Problem, Result
from unstuck.findings.verdict import Verdict
from unstuck.judge import beginnings, spelled, unite
from unstuck.lint.outcome import Outcome
from unstuck.lint.patterns import GitIgnored, Patterns, relative
from unstuck.lint.settings import Settings
from unstuck.lint.workers import Reader, judge_files, size_of
from unstuck.source import SourceError, find_files

OF_COMMENT = "comment"
"""The kind of subject of a rule about ignore comments."""
WORTH_A_CACHE = 20_000
"""Bytes of source: less is judged faster than looked up."""


def lint(
    paths: Sequence[str], settings: Settings, *, jobs: int = 1, cache: bool = False, gitignore: bool = True
) -> Result:
    """Lint files and folders. A path that does not exist, or without a file to lint, is a SourceError."""
    troubles: list[SourceError] = []
    files = find_files(paths, _skips(paths, settings, gitignore), troubles)
    problems = [Problem(str(trouble)) for trouble in troubles]
    return _result(_outcomes(files, settings, jobs, cache), settings, problems)


def lint_text(path: str, text: str, settings: Settings, reader: Reader | None = None) -> Result:
    """Lint a text as if it were the file at `path`; imports are resolved relative to that.

    To lint many texts, pass a reader: its process is started once.
    """
    own = reader or Reader()
    try:
        outcome = own.judge(Path(path), text, settings.rules)
    finally:
        if reader is None:
            own.close()
    return msgspec.structs.replace(_result([outcome], settings, []), texts={spelled(path): text})


def _skips(paths: Sequence[str], settings: Settings, gitignore: bool) -> Callable[[str, bool], bool]:
    """A test for paths to skip in a search: those that git ignores or the settings exclude."""
    ignored = GitIgnored(path for path in paths if os.path.isdir(path)) if gitignore else None
    excluded = Patterns(settings.exclude)
    root = os.path.abspath(settings.root or ".")

    def skips(path: str, is_folder: bool) -> bool:
        inside = relative(os.path.abspath(path), root)
        return bool(excluded.decide(inside, is_folder)) or (ignored is not None and ignored(path, is_folder))

    return skips


def _outcomes(files: Sequence[Path], settings: Settings, jobs: int, cached: bool) -> list[Outcome]:
    rules = settings.rules
    if not cached or sum(map(size_of, files)) < WORTH_A_CACHE:
        return list(judge_files(files, rules, jobs))
    from unstuck.lint.cache import open_cache

    cache = open_cache([rule.code for rule in rules])
    hits = {path: cache.get(path) for path in files} if cache else {}
    new = [path for path in files if hits.get(path) is None]
    fresh: dict[Path, Outcome] = {}
    for path, outcome in zip(new, judge_files(new, rules, jobs), strict=True):
        fresh[path] = outcome
        if cache:
            cache.put(path, outcome)
    if cache and new:
        cache.prune()
    return [hits.get(path) or fresh[path] for path in files]


def _result(outcomes: Sequence[Outcome], settings: Settings, problems: list[Problem]) -> Result:
    verdict = unite(as_set(outcome.verdict, settings) for outcome in outcomes if outcome.verdict)
    problems = problems + [outcome.problem for outcome in outcomes if outcome.problem]
    return Result(
        command="lint",
        verdict=_without_used_ignores(verdict),
        files=sum(outcome.verdict is not None for outcome in outcomes),
        problems=tuple(problems),
    )


def as_set(verdict: Verdict, settings: Settings) -> Verdict:
    """The verdict after selected variants, `per-file-ignores` and `severity`."""
    found = [diagnosis for diagnosis in verdict.diagnoses if settings.wants(diagnosis.lead)]
    if len(found) == len(verdict.diagnoses) and not (found and (settings.per_file_ignores or settings.severity)):
        return verdict
    kept = [_at_severity(d, settings) for d in found if not _is_left_out(d, settings)]
    causes = {rule.code: frozenset(rule.explains) for rule in settings.rules}
    return msgspec.structs.replace(verdict, diagnoses=tuple(rank(kept, causes)))


def _is_left_out(diagnosis: Diagnosis, settings: Settings) -> bool:
    lead = diagnosis.lead
    return lead.place is not None and not settings.ignored_in(lead.place.path).isdisjoint((lead.code, lead.id))


def _at_severity(diagnosis: Diagnosis, settings: Settings) -> Diagnosis:
    severity = settings.severity.get(diagnosis.lead.id, settings.severity.get(diagnosis.lead.code))
    if severity is None:
        return diagnosis
    change = msgspec.structs.replace
    findings = tuple(change(finding, severity=severity) for finding in diagnosis.findings)
    return change(diagnosis, lead=change(diagnosis.lead, severity=severity), findings=findings)


def _without_used_ignores(verdict: Verdict) -> Verdict:
    """Drop findings about ignore comments that silence a finding made through another file."""
    used = {(place.document, line, word) for place, line, word in _silenced_lines(verdict.ignored)}
    rest = [d for d in verdict.diagnoses if d.lead.subject.kind != OF_COMMENT or not _is_used(d, used)]
    return msgspec.structs.replace(verdict, diagnoses=tuple(rest)) if len(rest) < len(verdict.diagnoses) else verdict


def _silenced_lines(ignored: Iterable[Diagnosis]) -> Iterator[tuple[Place, int, str]]:
    for diagnosis in ignored:
        for place in (finding.place for finding in diagnosis.findings if finding.place):
            for line in {place.line, place.end_line or place.line}:
                yield from ((place, line, word) for word in ("", *beginnings(diagnosis.lead.code), diagnosis.lead.id))


def _is_used(unused: Diagnosis, used: set[tuple[str, int, str]]) -> bool:
    place = unused.lead.place
    return place is not None and (place.document, place.line, unused.lead.subject.name) in used
