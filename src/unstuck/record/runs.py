"""Where the records of runs are: under `.unstuck/runs`, or in the temporary folder where that cannot be."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from unstuck.record.own_folder import FOLDER as FOLDER, NotOurs, find_own_folder, own_folder, remove_own_tree

RUNS = FOLDER / "runs"
_NAME_OF_A_RUN = re.compile(r"\d{8}-\d{6}-[^/]+")


def new_run_folder(target: str) -> tuple[Path, str]:
    """A new folder for the record of one run, and a sentence where it could not be put next to the script.

    Raises NotOurs, a RecordError, where `.unstuck` or the folder for runs in it is a link or another user's.
    """
    name = _name_for(target)
    try:
        return _unique_folder(own_folder(RUNS), name), ""
    except OSError as error:
        return _folder_elsewhere(name, f"{FOLDER} cannot be written here ({error.strerror})")


def new_run_folder_somewhere(target: str) -> tuple[Path, str]:
    """The same for a program that must go on: what is not ours is left alone, and the record goes elsewhere."""
    try:
        return new_run_folder(target)
    except NotOurs as refusal:
        return _folder_elsewhere(_name_for(target), str(refusal).rstrip("."))


def run_folders(*, strict: bool = True) -> list[Path]:
    """The folders of all runs that were started in this directory; links among them are not ours."""
    return [folder for place in places_of_runs(strict=strict) for folder in _folders_in(place)]


def places_of_runs(*, strict: bool = True) -> list[Path]:
    """Where the runs that were started in this directory are. Raises NotOurs where that is a link or another
    user's, or passes over it if not `strict`."""
    try:
        here = RUNS if find_own_folder(RUNS) else None
    except NotOurs:
        if strict:
            raise
        here = None
    elsewhere, temporary = _elsewhere()
    with contextlib.suppress(NotOurs):  # anybody may make a folder of that name
        if find_own_folder(elsewhere, below=temporary):
            return [here, elsewhere] if here else [elsewhere]
    return [here] if here else []


def is_run(folder: Path) -> bool:
    """Is this the name that we give to folders of runs?"""
    return _NAME_OF_A_RUN.fullmatch(folder.name) is not None


def remove_run(folder: Path) -> None:
    """Remove the folder of a run of ours; what cannot be removed stays."""
    is_here = FOLDER.name in folder.absolute().parts
    with contextlib.suppress(OSError, NotOurs):
        remove_own_tree(folder, below=None if is_here else folder.parent)


def _folders_in(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            return [place / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _folder_elsewhere(name: str, why: str) -> tuple[Path, str]:
    folder = _unique_folder(_own_elsewhere(), name)
    return folder, f"the record goes to {folder}, because {why}."


def _elsewhere() -> tuple[Path, Path]:
    """Where runs go whose own directory cannot be written, one folder per user and directory, and its parent."""
    import hashlib
    import tempfile

    user = os.getuid() if hasattr(os, "getuid") else ""
    here = hashlib.sha256(os.fsencode(os.getcwd())).hexdigest()[:16]
    temporary = Path(tempfile.gettempdir())
    return temporary / f"unstuck-{user}" / here, temporary


def _own_elsewhere() -> Path:
    """That folder, or another one if somebody else has made it: the temporary folder belongs to all."""
    import tempfile

    folder, temporary = _elsewhere()
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        return own_folder(folder, below=temporary, private=True)
    except (NotOurs, NotADirectoryError):
        return Path(tempfile.mkdtemp(prefix="unstuck-"))


def _unique_folder(runs: Path, name: str) -> Path:
    for attempt in range(1, 10_000):
        folder = runs / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise OSError(f"{runs} is full")


def _name_for(target: str) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{_word_for(target)}"


def _word_for(target: str) -> str:
    stem = Path(target).name.removesuffix(".py")
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)[:60] or "run"
