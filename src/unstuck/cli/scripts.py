"""The script that a command names. What cannot be one is refused in a sentence, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Iterator

from unstuck.cli.common import Stop

USUAL_NAMES = ("train.py", "main.py", "run.py")
TRAINS = b".backward("
MOST_ENTRIES = 500
"""Files and folders that are looked at, in a folder that was named in place of a script."""
LARGEST = 2**20


def require_script(target: str, otherwise: str = "use -m to run a module.") -> None:
    """End the command unless this is something that Python runs: a file, or a folder with a `__main__.py`.

    `otherwise`: what to try if the file does not exist, and none with a similar name does.
    """
    if os.path.isdir(target):
        if not os.path.exists(os.path.join(target, "__main__.py")):
            likely = _likely_script(target)
            if likely:
                raise Stop(f"{target} is a folder; name a script in it, such as {likely}.")
            raise Stop(f"{target} is a folder without a script in it; name a script.")
    elif not os.path.exists(target):
        near = _near(target)
        advice = f"did you mean {near}?" if near else f"check the path, or {otherwise}"
        raise Stop(f"there is no file {target}; {advice}")


def _near(target: str) -> str:
    """The script next to it with a similar name."""
    from difflib import get_close_matches

    folder, name = os.path.split(target)
    names = [os.path.basename(path) for path in _scripts_in(folder or os.curdir)]
    close = get_close_matches(name, names, 1) or [other for other in names if other == f"{name}.py"]
    return os.path.join(folder, close[0]) if close else ""


def _likely_script(folder: str) -> str:
    """The script in a folder that probably trains: by its name, by its text, or else the first."""
    scripts = list(_scripts_in(folder))
    below = [path for inner in _folders_in(folder) for path in _scripts_in(inner)]
    found = [path for name in USUAL_NAMES for path in scripts if os.path.basename(path) == name]
    found = found or [path for path in (*scripts, *below) if _trains(path)] or scripts or below
    return os.path.normpath(found[0]) if found else ""


def _trains(path: str) -> bool:
    from unstuck.regular import read_regular

    try:
        return TRAINS in read_regular(path, LARGEST)
    except OSError:
        return False


def _scripts_in(folder: str) -> Iterator[str]:
    return (path for path in _entries_of(folder) if path.endswith(".py") and os.path.isfile(path))


def _folders_in(folder: str) -> list[str]:
    hidden = (".", "_")
    entries = _entries_of(folder)
    return [path for path in entries if not os.path.basename(path).startswith(hidden) and os.path.isdir(path)][:20]


def _entries_of(folder: str) -> list[str]:
    from itertools import islice

    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in islice(entries, MOST_ENTRIES))
    except OSError:
        return []
