"""Where the records of runs are kept: under `.unstuck/runs`, or in the temporary folder where that cannot be."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

FOLDER = Path(".unstuck")


def new_run_folder(target: str) -> tuple[Path, str]:
    """A new folder for the record of one run, and a sentence where it could not be put beside the script."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_word_for(target)}"
    try:
        return _unique_folder(FOLDER.absolute() / "runs", name), ""
    except OSError as error:
        folder = _unique_folder(_own(_elsewhere()), name)
        return (
            folder,
            f"the record goes to {folder}, because {FOLDER} cannot be written here ({error.strerror}).",
        )


def run_folders() -> list[Path]:
    """The folders of all runs that were started in this directory."""
    places = (FOLDER / "runs", _elsewhere())
    return [folder for place in places if place.is_dir() for folder in place.iterdir() if folder.is_dir()]


def _elsewhere() -> Path:
    """Where runs go whose own directory cannot be written, told apart by user and directory."""
    import hashlib
    import tempfile

    user = os.getuid() if hasattr(os, "getuid") else ""
    here = hashlib.sha256(os.fsencode(os.getcwd())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"unstuck-{user}" / here


def _own(folder: Path) -> Path:
    """The folder, or another one if somebody else has made it: the temporary folder belongs to all."""
    import tempfile

    base = folder.parent
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and base.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="unstuck-"))
    return folder


def _unique_folder(runs: Path, name: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    ignore = runs.parent / ".gitignore"
    if runs.parent.name == FOLDER.name and not ignore.exists():
        with contextlib.suppress(OSError):  # on a full disk the folder may still be made
            ignore.write_text("*\n", encoding="utf-8")
    for attempt in range(1, 10_000):
        folder = runs / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise OSError(f"{runs} is full")


def _word_for(target: str) -> str:
    stem = Path(target).name.removesuffix(".py")
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)[:60] or "run"
