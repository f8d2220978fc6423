"""Files judged in several processes. The answers, and their order, are those of one process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from unstuck.linting.outcome import Outcome, outcomes_of
from unstuck.rule import Rule, source_rules
from unstuck.source.project import Modules

WORTH_A_WORKER = 300_000
"""Bytes of source: with less, a process takes longer to start than the files take to read."""
CHUNKS_PER_WORKER = 6


class WorkerDied(Exception):
    """A worker process ended without an answer."""


def available_cores() -> int:
    """How many processes may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def judge_files(paths: Sequence[Path], rules: Sequence[Rule], jobs: int) -> Iterator[Outcome]:
    """An outcome for each file, in order."""
    sizes = [size_of(path) for path in paths]
    jobs = min(jobs, sum(sizes) // WORTH_A_WORKER, len(paths))
    if jobs < 2:
        return outcomes_of(paths, rules, Modules())
    return _spread(_chunks(paths, sizes, jobs * CHUNKS_PER_WORKER), [rule.code for rule in rules], jobs)


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where it cannot be seen."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _chunks(paths: Sequence[Path], sizes: Sequence[int], amount: int) -> list[list[str]]:
    """Neighbours stay together, since they import the same modules."""
    wanted = sum(sizes) / amount
    chunks: list[list[str]] = [[]]
    held = 0.0
    for path, size in zip(paths, sizes, strict=True):
        if held >= wanted:
            chunks.append([])
            held = 0.0
        chunks[-1].append(str(path))
        held += size
    return chunks


def _spread(chunks: Sequence[list[str]], codes: list[str], jobs: int) -> Iterator[Outcome]:
    """Threads that each wait for a worker; whatever ends this ends the workers too."""
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    workers = [_Worker() for _ in range(jobs)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def ask(chunk: list[str]) -> list[Outcome]:
        worker = idle.get()
        try:
            return worker.ask(_Task(chunk, codes))
        finally:
            idle.put(worker)

    executor = ThreadPoolExecutor(jobs)
    try:
        for future in [executor.submit(ask, chunk) for chunk in chunks]:
            yield from future.result()
    finally:
        for worker in workers:
            worker.end()
        executor.shutdown(cancel_futures=True)


class _Task(msgspec.Struct):
    names: list[str]
    codes: list[str]


class _Worker:
    """A Python of its own that shares neither threads, locks nor `__main__` with us.

    It is in a process group of its own: Ctrl-C reaches us alone, and we end it.
    """

    def __init__(self) -> None:
        import subprocess
        import sys

        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        own_group: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {"creationflags": 0x200}
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("UNSTUCK_RAISE") else subprocess.DEVNULL,
            **own_group,
        )

    def ask(self, task: _Task) -> list[Outcome]:
        """Have some files judged."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            _send(self._process.stdin, msgspec.msgpack.encode(task))
            answer = _receive(self._process.stdout)
        except (OSError, ValueError):
            answer = None
        if answer is None:
            raise WorkerDied("a worker process ended unexpectedly; add --jobs 1 to see which file it was at.")
        return msgspec.msgpack.decode(answer, type=list[Outcome])

    def end(self) -> None:
        """Whatever it is doing."""
        self._process.kill()
        self._process.wait()


def serve() -> None:
    """What a worker does: judge the files it is sent, until nothing more comes."""
    import sys

    modules = Modules()
    answers = sys.stdout.buffer
    while (raw := _receive(sys.stdin.buffer)) is not None:
        task = msgspec.msgpack.decode(raw, type=_Task)
        rules = [rule for rule in source_rules() if rule.code in task.codes]
        _send(answers, msgspec.msgpack.encode(list(outcomes_of(map(Path, task.names), rules, modules))))


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big") + message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """A whole message, or None where the other side has ended."""
    size = int.from_bytes(stream.read(8), "big")
    message = stream.read(size)
    return message if size and len(message) == size else None
