"""How fast lint reads, in lines per second on one core, and how often each rule speaks.

    python bench/lint.py [FOLDER]

Without a folder it reads the sources of the installed torch: working code, so every finding deserves a look.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from unstuck.judge import judge
from unstuck.source import Project, Script, SourceError, find_files, read_script
from unstuck.source.files import read_text
from unstuck.source.project import parse, rare_collection

BUDGET = 50_000


def main() -> int:
    folder = sys.argv[1] if len(sys.argv) > 1 else torch_folder()
    files = find_files([folder])
    parsing, whole, lines, unreadable = 0.0, 0.0, 0, 0
    found: Counter[str] = Counter()
    project = Project()
    for path in files:
        try:
            started = time.process_time()
            text = read_text(path)
            parse(text, str(path))
            parsed = time.process_time()
            script = read_script(path, project)
        except SourceError:
            unreadable += 1
            continue
        found.update(codes_in(script))
        parsing += parsed - started
        whole += time.process_time() - parsed
        lines += len(script.lines)
    print(f"{len(files):,} files, {lines:,} lines, {unreadable} unreadable")
    print(f"parse      {lines / parsing:>10,.0f} lines/s  (budget {BUDGET:,})")
    print(f"whole lint {lines / whole:>10,.0f} lines/s  ({whole / parsing:.2f}x the parse)")
    for code, amount in sorted(found.items()):
        print(f"{code:<6}{amount:>6}  {1000 * amount / lines:.4f} per thousand lines")
    return int(lines / parsing < BUDGET)


def torch_folder() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("torch is not installed; name a folder: python bench/lint.py FOLDER")
    return str(Path(spec.origin).parent)


def codes_in(script: Script) -> Sequence[str]:
    return [diagnosis.lead.code for diagnosis in judge(scripts=(script,)).diagnoses]


if __name__ == "__main__":
    with rare_collection():  # as the command does
        sys.exit(main())
