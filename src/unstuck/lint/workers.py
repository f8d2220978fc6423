"""Files judged in worker processes. The outcomes and their order are the same as in one process.

A file may make the reader loop forever, use all memory or crash the interpreter. That ends its worker and adds one line
to the report; a new worker continues with the next file. If the system refuses to start a process, files are judged in
this one, without limits.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from unstuck.lint.outcome import Outcome
from unstuck.lint.worker import NoProcess, Task, Worker, attempt_here, is_possible, judge_here
from unstuck.rule import Rule
from unstuck.source.reader.project import Modules, rare_collection

WORTH_A_WORKER = 300_000
"""Bytes of source per process: less is judged faster than a process starts."""
CHUNKS_PER_WORKER = 6
SMALL = 30_000
"""Bytes of a single file that is first tried in this process: less is usually judged before a process has started."""


def available_cores() -> int:
    """How many processes can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def judge_files(paths: Sequence[Path], rules: Sequence[Rule], jobs: int) -> Iterator[Outcome]:
    """An outcome for each file, in order."""
    if not is_possible():
        return _judged_here(map(str, paths), rules)
    sizes = [size_of(path) for path in paths]
    if len(paths) == 1 and sizes[0] < SMALL and (outcome := attempt_here(paths[0], rules)) is not None:
        return iter([outcome])
    jobs = max(1, min(jobs, sum(sizes) // WORTH_A_WORKER, len(paths)))
    chunks = _chunks(paths, sizes, jobs * CHUNKS_PER_WORKER if jobs > 1 else 1)
    return _spread(chunks, rules, jobs)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _chunks(paths: Sequence[Path], sizes: Sequence[int], amount: int) -> list[list[str]]:
    """Neighbouring files stay together, since they import the same modules."""
    size_of_chunk = sum(sizes) / amount
    chunks: list[list[str]] = [[]]
    filled = 0.0
    for path, size in zip(paths, sizes, strict=True):
        if filled >= size_of_chunk and amount > 1:
            chunks.append([])
            filled = 0.0
        chunks[-1].append(str(path))
        filled += size
    return chunks


def _judged_here(names: Iterable[str], rules: Sequence[Rule]) -> Iterator[Outcome]:
    modules = Modules()
    with rare_collection():
        for name in names:
            yield judge_here(Path(name), rules, modules)


@functools.cache
def _mention_missing_limits() -> None:
    """Once per process."""
    print(
        "unstuck: the system refused to start another process, so files are judged in this one, without limits on time "
        "and memory.",
        file=sys.stderr,
    )


def _spread(chunks: Sequence[list[str]], rules: Sequence[Rule], jobs: int) -> Iterator[Outcome]:
    """Keep the workers busy; they end with this generator."""
    answers: list[list[Outcome]] = [[] for _ in chunks]
    waiting = deque(number for number, chunk in enumerate(chunks) if chunk)
    busy: dict[Worker, int] = {}
    idle: list[Worker] = []
    codes = [rule.code for rule in rules]
    try:
        for number, chunk in enumerate(chunks):
            while len(answers[number]) < len(chunk):
                while waiting and len(busy) < jobs:
                    chosen = waiting.popleft()
                    left = chunks[chosen][len(answers[chosen]) :]
                    try:
                        worker = idle.pop() if idle else Worker()
                    except NoProcess:
                        if busy:  # the running workers do the rest
                            waiting.appendleft(chosen)
                            jobs = len(busy)
                            break
                        _mention_missing_limits()
                        answers[chosen] += _judged_here(left, rules)
                        continue
                    worker.give(Task(left, codes))
                    busy[worker] = chosen
                for worker in Worker.answering(busy) if busy else ():
                    at = busy[worker]
                    answers[at].append(worker.answer())
                    if len(answers[at]) == len(chunks[at]) or worker.has_ended:
                        del busy[worker]
                        if worker.has_ended and len(answers[at]) < len(chunks[at]):
                            waiting.appendleft(at)
                        elif not worker.has_ended:
                            idle.append(worker)
            yield from answers[number]
    finally:
        for worker in (*busy, *idle):
            worker.end()


class Reader:
    """Judges texts one after another in a process that stays alive between them; for editors and flake8."""

    def __init__(self, *, remembers: bool = False) -> None:
        self._remembers = remembers
        self._worker: Worker | None = None
        self._owner = 0

    def judge(self, path: Path, text: str, rules: Sequence[Rule]) -> Outcome:
        """The outcome of a text as the file at `path`. With `remembers`, imported files are read only once."""
        if not is_possible():
            return judge_here(path, rules, Modules(), text)
        if self._worker is None or self._worker.has_ended or self._owner != os.getpid():
            try:
                self._worker, self._owner = Worker(), os.getpid()
            except NoProcess:
                _mention_missing_limits()
                return judge_here(path, rules, Modules(), text)
        self._worker.give(Task([str(path)], [rule.code for rule in rules], text, self._remembers))
        for _ in Worker.answering([self._worker]):
            return self._worker.answer()
        raise AssertionError("a worker always answers or times out")

    def close(self) -> None:
        """End the process."""
        if self._worker is not None and self._owner == os.getpid():
            self._worker.end()
        self._worker = None
