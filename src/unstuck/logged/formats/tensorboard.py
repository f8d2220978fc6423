"""The event files of a TensorBoard folder. Needs no TensorBoard."""

from __future__ import annotations

from pathlib import Path

from unstuck.logged import Log, LogError, Points, ordered
from unstuck.tfevents.reader import Damaged, scalars

PARTS = {"train", "training", "val", "valid", "validation", "eval", "evaluation", "test"}
"""Folders that belong to one run, as Keras writes them."""
OURS = "unstuck"
MOST_NAMED = 5
MOST_NUMBERS = 2_000_000


def accepts(path: Path) -> bool:
    """An event file, or a folder with some in it or below it."""
    if path.is_dir():
        return bool(_files(path) or _runs(path))
    return "tfevents" in path.name


def read(path: Path) -> Log:
    """Its scalars."""
    found: dict[str, Points] = {}
    times: list[float] = []
    count = 0
    for file, prefix in _chosen(path):
        fresh: dict[str, Points] = {}
        try:
            for one in scalars(file):
                fresh.setdefault(prefix + one.tag, []).append((one.step, one.value))
                times = [min(times[0], one.when), max(times[1], one.when)] if times else [one.when, one.when]
                count += 1
                if count > MOST_NUMBERS:
                    raise LogError(f"{path} holds more than {MOST_NUMBERS:,} numbers; name a folder with fewer.")
        except Damaged as damage:
            raise LogError(f"{file} is damaged, or not an event file: at byte {damage.at:,}, {damage}.") from None
        except OSError as error:
            raise LogError(f"{file} cannot be read ({error.strerror or error}).") from None
        for tag, points in fresh.items():
            found.setdefault(tag, []).extend(points)
    seconds = times[1] - times[0] if times else None
    return Log(path=path, series={tag: ordered(points) for tag, points in found.items()}, seconds=seconds)


def _files(folder: Path) -> list[Path]:
    """In the order in which they were begun, which their names hold."""
    return sorted(file for file in folder.glob("*tfevents*") if not file.is_dir())


def _runs(folder: Path) -> list[Path]:
    """The folders below that hold event files, at most two levels deep."""
    return sorted({file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/*tfevents*")})


def _chosen(path: Path) -> list[tuple[Path, str]]:
    """The files of one run, each with what its tags are to begin with."""
    if not path.is_dir():
        return [(path, "")]
    if own := _files(path):
        return [(file, "") for file in own]
    runs = [run for run in _runs(path) if run.name != OURS] or _runs(path)
    if len(runs) == 1:
        return [(file, "") for file in _files(runs[0])]
    if all(run.name.lower() in PARTS and run.parent == path for run in runs):
        return [(file, f"{run.name}/") for run in runs for file in _files(run)]
    some = ", ".join(str(run.relative_to(path)) for run in runs[:MOST_NAMED])
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    raise LogError(f"{path} holds {len(runs)} runs; name one of them: {some}{more}.")
