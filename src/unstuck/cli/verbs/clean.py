"""`unstuck clean`: remove old records and the lint cache, and nothing else."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from unstuck.cli import common
from unstuck.cli.runs import runs_by_age
from unstuck.lint.cache import entries_in
from unstuck.record import RecordError
from unstuck.record.in_use import is_in_use
from unstuck.record.own_folder import FOLDER, find_own_folder, remove_own_files, size_of_tree
from unstuck.record.runs import is_run, remove_run
from unstuck.trials.layers import sweep

HELP = "remove old records and the lint cache"
GROUP = "more"

KEPT = 20
DESCRIPTION = f"""Remove what unstuck stored under {FOLDER} in this directory: the records of all runs but the
newest, the lint cache, and the leftovers of killed trials. Runs that are in use are not removed,
nor are files that unstuck did not create."""
EPILOG = """exit codes:
  0   everything was removed, or there was nothing to remove
  2   wrong usage, or something could not be removed
"""


def main(arguments: Sequence[str]) -> int:
    """Remove old runs and the lint cache, and print how much space that freed."""
    parser = common.verb_parser("clean", DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--keep", type=_count, default=KEPT, metavar="N", help=f"runs to keep (default: {KEPT})")
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, and remove nothing")
    options = parser.parse_args(arguments)
    runs = [folder for folder in runs_by_age() if is_run(folder)]
    busy = [folder for folder in runs[options.keep :] if is_in_use(folder)]
    old = [folder for folder in runs[options.keep :] if folder not in busy]
    try:
        cache = FOLDER / "cache"
        answers = list(entries_in(cache)) if find_own_folder(cache) else []
        sizes = {folder: size_of_tree(folder) for folder in old}
        freed = sum(size_of_tree(cache / name) for name in answers)
        if not options.dry_run:
            for folder in old:
                remove_run(folder)
            remove_own_files(cache, answers) if answers else None
            sweep()
    except RecordError as refusal:
        raise common.Stop(str(refusal)) from None
    if options.dry_run:
        for folder in old:
            print(folder)
    stuck = [] if options.dry_run else [folder for folder in old if os.path.lexists(folder)]
    freed += sum(size for folder, size in sizes.items() if folder not in stuck)
    _print_summary(len(old) - len(stuck), len(answers), len(runs) - len(old), freed, options.dry_run)
    if busy:
        print(f"{_several(len(busy), 'older run')} in use and not removed.")
    if stuck:
        more = f" and {len(stuck) - 1:,} more" if len(stuck) > 1 else ""
        raise common.Stop(f"cannot remove {stuck[0]}{more}; check the permissions.")
    return common.CLEAN


def _count(word: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 18:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of runs; use 0 to remove all")
    return int(word)


def _print_summary(runs: int, answers: int, kept: int, freed: int, is_dry: bool) -> None:
    what = [f"{runs:,} run{'s' * (runs != 1)}"] * (runs > 0)
    what += [f"{answers:,} cached lint result{'s' * (answers != 1)}"] * (answers > 0)
    verb, freeing = ("Would remove", "would free") if is_dry else ("Removed", "freed")
    if not what:
        print(f"Nothing to remove; {_several(kept, 'run')} kept.")
        return
    print(f"{verb} {' and '.join(what)}, which {freeing} {_size(freed)}; {_several(kept, 'run')} kept.")


def _several(number: int, noun: str) -> str:
    return f"{number:,} {noun} is" if number == 1 else f"{number:,} {noun}s are"


def _size(amount: float) -> str:
    units = ["bytes", "KB", "MB", "GB"]
    while amount >= 1000 and len(units) > 1:
        amount /= 1000
        del units[0]
    return f"{amount:.3g} {units[0]}"
