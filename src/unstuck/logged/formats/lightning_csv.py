"""`metrics.csv` of Lightning's CSVLogger, and any other CSV with a column `step`: a row for some steps, empty where
nothing was logged."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from unstuck.logged import Log, LogError, Points, ordered
from unstuck.regular import read_regular

NAME = "metrics.csv"
LARGEST = 64 * 2**20
MOST_NAMED = 5
STEPS = ("step", "global_step", "trainer/global_step", "_step", "iteration")
"""As others call it, whatever the case: `Step` is that of a table exported from W&B."""


def accepts(path: Path) -> bool:
    """The file, the folder that holds it, or that of its versions."""
    return path.suffix == ".csv" or (path.is_dir() and bool(_files(path)))


def _files(folder: Path) -> list[Path]:
    own = folder / NAME
    return [own] if own.is_file() else sorted(file for file in folder.glob(f"*/{NAME}") if file.is_file())


def read(path: Path) -> Log:
    """Its columns of numbers."""
    files = _files(path) if path.is_dir() else [path]
    if len(files) > 1:
        some = ", ".join(file.parent.name for file in files[:MOST_NAMED])
        more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
        raise LogError(f"{path} holds {len(files)} runs; name one of them: {some}{more}.")
    file = files[0]
    try:
        text = read_regular(file, LARGEST).decode("utf-8-sig")
        table = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise LogError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise LogError(f"{file} is not a CSV file ({error}).") from None
    names = [name for name in table[0] if name is not None] if table else []
    step = next((name for wanted in STEPS for name in names if name.lower() == wanted), None)
    if step is None:
        raise LogError(f"{file} has no column `step` and rows below it; give the metrics.csv of a CSVLogger.")
    series: dict[str, Points] = {name: [] for name in names if name != step}
    for number, row in enumerate(table, 2):
        at = _number(row[step])
        if at is None or not 0 <= at < 2**53:
            raise LogError(f"{file} has no step in line {number}: {row[step]!r}.")
        for name, points in series.items():
            value = _number(row[name])
            if value is not None:
                points.append((int(at), value))
    return Log(path=path, series={name: ordered(points) for name, points in series.items() if points})


def _number(cell: str | None) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None
