"""How often each rule speaks on code it has never seen, so that a person can judge whether it is right.

    python bench/precision.py FOLDER...
    python bench/precision.py --show O12 FOLDER...      every hit of one rule, with the lines around it
    python bench/precision.py --show error FOLDER...    every hit of that severity
    python bench/precision.py --loops FOLDER...         loops whose order cannot be judged, and the calls at fault

Clone what you know, such as pytorch/examples or nanoGPT, and name the folders.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from unstuck.events import Place
from unstuck.findings import Diagnosis, Severity
from unstuck.judge import judge, unite
from unstuck.rules.shared.loop_order import hidden_on, step_functions
from unstuck.source import Project, SourceError, find_files, read_script
from unstuck.source.paths import paths
from unstuck.source.reader.project import Modules, rare_collection
from unstuck.source.trace import GRADIENTS, Loop, Path as Way

AROUND = 3


class Tally:
    """What one folder held and what was found in it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files = self.with_loop = self.lines = self.unreadable = 0
        self.diagnoses: tuple[Diagnosis, ...] = ()

    def count(self, severity: Severity) -> int:
        return sum(diagnosis.severity is severity for diagnosis in self.diagnoses)

    @property
    def row(self) -> str:
        found = "".join(f"{self.count(severity):>9,}" for severity in Severity)
        name = self.folder if len(self.folder) <= 40 else f"…{self.folder[-39:]}"
        return f"{name:<42}{self.files:>7,}{self.with_loop:>7,}{self.lines:>11,}{found}{self.unreadable:>12,}"


def main() -> int:
    parser = argparse.ArgumentParser(description="How often each rule speaks on code it has never seen.")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--show", metavar="CODE", help="list the hits of one rule or severity instead of counting")
    parser.add_argument("--loops", action="store_true", help="list the loops whose order cannot be judged")
    options = parser.parse_args()
    if options.loops:
        return print_loops(options.folders)
    tallies = []
    for folder in options.folders:
        try:
            tallies.append(tally(folder))
        except SourceError as error:
            print(error, file=sys.stderr)
            continue
        if options.show:
            show(tallies[-1], options.show)
    if not options.show:
        print_table(tallies)
    return 0


def tally(folder: str) -> Tally:
    counted = Tally(folder)
    verdicts = []
    modules = Modules()
    for path in (path for path in find_files([folder]) if path.suffix == ".py"):
        try:
            script = read_script(path, Project(modules))
        except SourceError:
            counted.unreadable += 1
            continue
        counted.files += 1
        counted.lines += len(script.lines)
        counted.with_loop += bool(script.training_loops)
        verdicts.append(judge(scripts=(script,)))
    verdict = unite(verdicts)
    for failure in verdict.failures:
        print(failure, file=sys.stderr)
    counted.diagnoses = verdict.diagnoses
    return counted


def print_table(tallies: Sequence[Tally]) -> None:
    words = "".join(f"{severity.value:>9}" for severity in Severity)
    print(f"{'folder':<42}{'files':>7}{'loops':>7}{'lines':>11}{words}{'unreadable':>12}")
    for counted in tallies:
        print(counted.row)
    whole = Tally("all")
    for counted in tallies:
        whole.files += counted.files
        whole.with_loop += counted.with_loop
        whole.lines += counted.lines
        whole.unreadable += counted.unreadable
        whole.diagnoses += counted.diagnoses
    print(f"{whole.row}\n\n`loops`: files with a training loop\n")
    print_rules(whole)


def print_rules(whole: Tally) -> None:
    found = Counter((d.lead.code, d.lead.name, d.severity.value) for d in whole.diagnoses)
    print(f"{'rule':<34}{'severity':<10}{'hits':>6}{'per 1,000 lines':>18}{'per 100 files with a loop':>28}")
    for (code, name, severity), hits in sorted(found.items()):
        per_lines = 1000 * hits / max(whole.lines, 1)
        per_files = 100 * hits / max(whole.with_loop, 1)
        print(f"{f'{code} {name}':<34}{severity:<10}{hits:>6,}{per_lines:>18.4f}{per_files:>28.2f}")


class Judged:
    """Whether the order of a training loop, or of a function that trains once per call, can be judged."""

    def __init__(self, loop: Loop, ways: Sequence[Way]) -> None:
        self.place = loop.place
        self.ways = len(ways)
        self.unread = hidden_on(ways, GRADIENTS)

    @property
    def is_judged(self) -> bool:
        return bool(self.ways) and not self.unread

    @property
    def why(self) -> str:
        if not self.ways:
            return "too many paths"
        lines = sorted({f"{call.called or '?'} at {call.place} could {call.can & GRADIENTS}" for call in self.unread})
        return "\n    ".join(lines)


def print_loops(folders: Sequence[str]) -> int:
    """Each loop counts once, by its place; it is judged if it is wherever a script leads to it."""
    total = judged = 0
    for folder in folders:
        found: dict[str, Judged] = {}
        modules = Modules()
        for path in (path for path in find_files([folder]) if path.suffix == ".py"):
            try:
                script = read_script(path, Project(modules))
            except SourceError:
                continue
            for loop in (*script.training_loops, *step_functions(script)):
                one = Judged(loop, paths(loop))
                before = found.get(str(loop.place))
                if before is None or before.is_judged:
                    found[str(loop.place)] = one
        for one in found.values():
            if not one.is_judged:
                print(f"{one.place}\n    {one.why}")
        good = sum(one.is_judged for one in found.values())
        print(f"{folder}: {good} of {len(found)} loops can be judged")
        total, judged = total + len(found), judged + good
    print(f"all: {judged} of {total} ({100 * judged / max(total, 1):.0f} %)")
    return 0


def show(counted: Tally, wanted: str) -> None:
    for diagnosis in counted.diagnoses:
        lead = diagnosis.lead
        if wanted.lower() in (lead.code.lower(), diagnosis.severity.value) and lead.place is not None:
            print(f"{diagnosis.severity.value} {diagnosis.confidence.value} {lead.code} {lead.place}  {lead.message}")
            for place in lead.places:
                print_around(place)
            print()


def print_around(place: Place) -> None:
    try:
        lines = Path(place.path).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return
    print(f"  {place}")
    for number in range(max(1, place.line - AROUND), min(len(lines), place.line + AROUND) + 1):
        print(f"  {'>' if number == place.line else ' '} {number:>5}  {lines[number - 1]}")


if __name__ == "__main__":
    with rare_collection():
        sys.exit(main())
