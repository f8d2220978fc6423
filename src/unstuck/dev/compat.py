"""Tries unstuck with other Pythons and other torches: the promises, the pages of the rules and the demo.

Every combination gets an environment of its own, with several GB of torch in it, which is removed when it is done.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from unstuck import torches
from unstuck.dev.common import Refusal

PYTHONS = "PYTHONS"
"""The environment variable that names folders with Pythons, as PATH does."""
TESTS = ("tests/promises", "tests/rules")


class Combination(NamedTuple):
    """A Python and a torch, such as 3.12 and 2.13.0."""

    python: str
    torch: str

    def __str__(self) -> str:
        return f"Python {self.python}, torch {self.torch}"


def main(root: Path, words: Sequence[str], keep: Path | None) -> int:
    """Try all combinations, or those given as `3.12:2.13.0`. The last lines are the results."""
    combinations = [_combination(word) for word in words] or _claimed(root)
    home = keep or root / "build" / "compat"
    home.mkdir(parents=True, exist_ok=True)
    results = []
    for combination in combinations:
        print(f"{combination} ...", flush=True)
        folder = home / f"python{combination.python}-torch{combination.torch}"
        try:
            results.append((combination, *_tried(root, combination, folder)))
        finally:
            if keep is None:
                shutil.rmtree(folder, ignore_errors=True)
    for combination, _, text in results:
        print(f"{combination}: {text}")
    return 0 if all(passed for _, passed, _ in results) else 1


def _combination(word: str) -> Combination:
    python, colon, torch = word.partition(":")
    if not (colon and re.fullmatch(r"3\.\d+", python) and re.fullmatch(r"\d+\.\d+\.\d+", torch)):
        raise Refusal(f"{word!r} is not a combination; write it as 3.12:2.13.0, the Python first.")
    return Combination(python, torch)


def _claimed(root: Path) -> list[Combination]:
    """What we say we work with: every Python with the torch of our own checks, the oldest torch and the newest."""
    pinned = re.search(r"^torch==([\d.]+)", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pythons = re.findall(r'Python :: (3\.\d+)"', (root / "pyproject.toml").read_text(encoding="utf-8"))
    if pinned is None or not pythons:
        raise Refusal("constraints.txt names no torch, or pyproject.toml no Python.")
    oldest, newest = (".".join(map(str, (*version, 0))) for version in (torches.OLDEST, torches.NEWEST))
    usual = [Combination(python, pinned[1]) for python in pythons]
    return [*usual, Combination(pythons[0], oldest), Combination(pythons[-1], newest)]


def _tried(root: Path, combination: Combination, folder: Path) -> tuple[bool, str]:
    """Did everything pass, and what there is to say."""
    python = find_python(combination.python)
    if python is None:
        return False, f"not tried: no python{combination.python} that runs; name its folder in {PYTHONS}"
    log = folder.parent / f"{folder.name}.log"
    with log.open("w", encoding="utf-8") as output:
        if not _prepared(root, combination, python, folder, output.fileno()):
            return False, f"not tried: it could not be installed; see {log}"
        own = str(folder / "bin" / "python")
        report = folder / "results.xml"
        tests = [own, "-m", "pytest", "-n", "2", "-m", "not slow", f"--junitxml={report}", *TESTS]
        passed = _ran(tests, root, output.fileno())
        shown = _ran([own, "-m", "unstuck.dev", "demo"], root, output.fileno())
    demo = "the demo finds the cause" if shown else "the demo FAILS"
    where = "" if passed and shown else f"; see {log}"
    return passed and shown, f"{counted(report)}, {demo}{where}"


def find_python(version: str) -> str | None:
    """The first `python3.12` that runs: a version manager may put others on PATH, which only say that they cannot."""
    for folder in (os.environ.get(PYTHONS, "") + os.pathsep + os.environ.get("PATH", "")).split(os.pathsep):
        found = shutil.which(f"python{version}", path=folder) if folder else None
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def _prepared(root: Path, combination: Combination, python: str, folder: Path, output: int) -> bool:
    """An environment with this torch and our tests. One that was kept from the last time is used again."""
    ready = folder / ".ready"
    if ready.exists():
        return True
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = ["--editable", ".[torch,plots,lsp]", "--group", "dev", f"torch=={combination.torch}"]
    commands = ([python, "-m", "venv", str(folder)], [*pip, "--upgrade", "pip>=25.1"], [*pip, *wanted])
    if not all(_ran(command, root, output) for command in commands):
        return False
    ready.touch()
    return True


def _ran(command: Sequence[str], root: Path, output: int) -> bool:
    return subprocess.run(command, cwd=root, stdout=output, stderr=subprocess.STDOUT).returncode == 0


def counted(report: Path) -> str:
    """How many tests passed and how many failed."""
    try:
        suites = ElementTree.parse(report).getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError):
        return "no tests ran"
    numbers = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for name in numbers:
            numbers[name] += int(suite.get(name, 0))
    failed = numbers["failures"] + numbers["errors"]
    passed = numbers["tests"] - failed - numbers["skipped"]
    return f"{passed} tests passed, {failed} failed, {numbers['skipped']} skipped"
