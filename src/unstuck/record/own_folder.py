"""What is ours on disk: `.unstuck` and the folders in it, made and removed without following a link.

A repository from elsewhere may ship any of these names as a link to something of the user's. So every folder from
`.unstuck` on is opened below the one before it, is a real folder, and belongs to the user who runs us; whatever is
not is refused with a sentence. Whoever makes or removes something under `.unstuck` asks here.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from unstuck.record.store import RecordError

FOLDER = Path(".unstuck")
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd
"""Not on Windows, where names have to do."""
_OPEN = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class NotOurs(RecordError):
    """Something under a name of ours that is not ours; its text is one sentence: what, where, what to do."""


def own_folder(
    path: str | os.PathLike[str], *, below: str | os.PathLike[str] | None = None, private: bool = False
) -> Path:
    """The folder at `path`, made if it is missing (for us alone if `private`), as an absolute path.

    `path` is `.unstuck` or lies in it. A folder elsewhere is ours from the first part below `below` on. Raises NotOurs
    where a part of ours is a link or belongs to another user, and OSError where the disk refuses.
    """
    place = Path(path).absolute()
    outside, parts = _parts_of_ours(place, below)
    mode = 0o700 if private else 0o777
    if _HAS_DESCRIPTORS:
        os.close(_open_below(outside, parts, mode))
    else:
        _make_by_name(outside, parts, mode)
    return place


def find_own_folder(path: str | os.PathLike[str], *, below: str | os.PathLike[str] | None = None) -> Path | None:
    """The same folder, or None where there is none; nothing is made. Raises NotOurs as `own_folder` does."""
    place = Path(path).absolute()
    outside, parts = _parts_of_ours(place, below)
    if not _HAS_DESCRIPTORS:
        _refuse_links(outside, parts)
        return place if place.is_dir() else None
    try:
        os.close(_open_below(outside, parts))
    except OSError:
        return None
    return place


def remove_own_tree(path: str | os.PathLike[str], *, below: str | os.PathLike[str] | None = None) -> None:
    """Remove the folder at `path` and everything in it, however deep and whatever the permissions.

    Links are removed and not followed, and nothing is removed behind a mount point. Whatever can be removed is; what
    could not be raises OSError at the end. Raises NotOurs as `own_folder` does. A folder that is not there is fine.
    """
    place = Path(path).absolute()
    outside, parts = _parts_of_ours(place, below)
    if not _HAS_DESCRIPTORS:
        _remove_by_name(outside, parts)
        return
    with contextlib.suppress(FileNotFoundError):
        parent = _open_below(outside, parts[:-1])
        try:
            top = _open_own(parts[-1], parent, place, to_empty=True)
            try:
                _empty(top)
            finally:
                os.close(top)
            os.rmdir(parts[-1], dir_fd=parent)
        finally:
            os.close(parent)


def remove_own_files(
    folder: str | os.PathLike[str], names: Iterable[str], *, below: str | os.PathLike[str] | None = None
) -> int:
    """Remove files out of a folder of ours (links themselves, not what they lead to); returns how many went.

    What another process removed meanwhile, or what cannot be removed, is passed over. Raises NotOurs as `own_folder`.
    """
    place = Path(folder).absolute()
    outside, parts = _parts_of_ours(place, below)
    if not _HAS_DESCRIPTORS:
        _refuse_links(outside, parts)
        return sum(_unlinked(os.path.join(place, name)) for name in names)
    parent = _open_below(outside, parts)
    try:
        return sum(_unlinked(name, parent) for name in names)
    finally:
        os.close(parent)


def keep_only(
    folder: str | os.PathLike[str], names: Collection[str], *, below: str | os.PathLike[str] | None = None
) -> None:
    """Remove everything from a folder of ours but the regular files of these names, and take special permissions, such
    as setuid, from those. A program that we do not trust could write there.

    What cannot be removed stays. Raises NotOurs as `own_folder` does, and OSError where the folder cannot be opened.
    """
    place = Path(folder).absolute()
    outside, parts = _parts_of_ours(place, below)
    if not _HAS_DESCRIPTORS:
        _refuse_links(outside, parts)
        return  # such permissions do not exist there
    parent = _open_below(outside, parts[:-1])
    try:
        top = _open_own(parts[-1], parent, place, to_empty=True)
        try:
            kept = {name for name in names if _is_plain_now(name, top)}
            with contextlib.suppress(OSError):
                _empty(top, but=kept)
        finally:
            os.close(top)
    finally:
        os.close(parent)


def _is_plain_now(name: str, parent: int) -> bool:
    """Is it a regular file with one name and, from now on, ordinary permissions?"""
    try:
        known = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(known.st_mode) or known.st_nlink != 1:
            return False
        wanted = known.st_mode & 0o644 | 0o600
        if stat.S_IMODE(known.st_mode) != wanted:
            _permit(name, parent, wanted)
    except OSError:
        return False
    return True


def _unlinked(name: str, parent: int | None = None) -> bool:
    try:
        os.unlink(name, dir_fd=parent)
    except OSError:
        return False
    return True


def size_of_tree(path: str | os.PathLike[str]) -> int:
    """Bytes on disk that removing it would free; links are not followed, and files with another name do not count."""
    total = 0
    waiting = [os.fspath(path)]
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            known = os.lstat(name)
            if stat.S_ISDIR(known.st_mode):
                waiting += [os.path.join(name, inner) for inner in os.listdir(name)]
            if known.st_nlink == 1 or stat.S_ISDIR(known.st_mode):
                total += known.st_blocks * 512 if hasattr(known, "st_blocks") else known.st_size
    return total


def _parts_of_ours(place: Path, below: str | os.PathLike[str] | None) -> tuple[Path, tuple[str, ...]]:
    """Where our part of a path begins: the folder above, which may be a link of the user's own, and the rest."""
    if below is not None:
        outside = Path(below).absolute()
        parts = place.relative_to(outside).parts
    else:
        if FOLDER.name not in place.parts:
            raise ValueError(f"{place} does not lie in {FOLDER}")
        start = len(place.parts) - 1 - place.parts[::-1].index(FOLDER.name)
        outside, parts = Path(*place.parts[:start]), place.parts[start:]
    if not parts or ".." in parts:
        raise ValueError(f"{place} is not a folder below {outside}")
    return outside, parts


def _open_below(outside: Path, parts: tuple[str, ...], mode: int | None = None) -> int:
    """A descriptor of the folder that `parts` lead to, each of them ours; with a mode, what is missing is made."""
    folder = os.open(outside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for index, name in enumerate(parts):
            if mode is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=folder)
            above, folder = folder, _open_own(name, folder, Path(outside, *parts[: index + 1]))
            os.close(above)
            if mode is not None and name == FOLDER.name:
                _ignore_everything(folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _open_own(name: str, parent: int, place: Path, *, to_empty: bool = False) -> int:
    """A descriptor of one folder, or NotOurs where it is a link or another user's."""
    try:
        known = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(known.st_mode):
            raise _a_link(place)
        if stat.S_ISDIR(known.st_mode) and known.st_uid != os.geteuid():
            raise NotOurs(
                f"{place} belongs to another user ({_user_named(known.st_uid)}); remove it, or work in a directory of "
                "your own."
            )
        folder = _open_emptied(name, parent) if to_empty else os.open(name, _OPEN, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:  # it became a link this very moment
            raise _a_link(place) from None
        raise OSError(error.errno, error.strerror, str(place)) from None
    return folder


def _a_link(place: Path) -> NotOurs:
    return NotOurs(f"{place} is a link, and unstuck only writes to a folder of its own; remove the link.")


def _user_named(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _ignore_everything(folder: int) -> None:
    """Keep git away from what we write. A `.gitignore` that is there, or a link of that name, is left as it is."""
    with contextlib.suppress(OSError):  # on a full disk the folder is still good
        file = os.open(".gitignore", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
        try:
            os.write(file, b"*\n")
        finally:
            os.close(file)


def _empty(top: int, but: Collection[str] = ()) -> None:
    """Remove what a folder holds.

    Folders further down are moved up into it first: so no path grows too long, nothing recurses, and three descriptors
    do for any depth.
    """
    mount = _mount_of(top)
    token, numbers = os.urandom(6).hex(), itertools.count()
    first_error: OSError | None = None
    stuck = set(but)
    while names := [name for name in os.listdir(top) if name not in stuck]:
        for name in names:
            try:
                _remove_level(top, name, mount, token, numbers)
            except FileNotFoundError:
                continue  # another process is at it
            except OSError as error:
                stuck.add(name)
                first_error = first_error or error
    if first_error is not None:
        raise first_error


def _remove_level(top: int, name: str, mount: bytes, token: str, numbers: Iterator[int]) -> None:
    """Remove a file, or a folder whose own folders are moved up under new names to be removed later."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    folder = _open_emptied(name, top)
    try:
        if _mount_of(folder) != mount:
            raise OSError(errno.EBUSY, "something is mounted there", name)
        for inner in os.listdir(folder):
            if stat.S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                os.close(_open_emptied(inner, folder))  # only a folder with write permission can be moved
                os.rename(inner, f"{token}-{next(numbers)}", src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _open_emptied(name: str, parent: int) -> int:
    """A descriptor of a folder out of which things can be removed, whatever its permissions were."""
    try:
        folder = os.open(name, _OPEN, dir_fd=parent)
    except PermissionError:
        _permit(name, parent, 0o700)
        folder = os.open(name, _OPEN, dir_fd=parent)
    try:
        if os.fstat(folder).st_mode & 0o700 != 0o700:
            os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def _permit(name: str, parent: int, mode: int) -> None:
    """Change the permissions of a file or folder. On Linux chmod follows links, unless it is given a descriptor."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, mode, dir_fd=parent, follow_symlinks=False)
        return
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def _mount_of(folder: int) -> bytes:
    """The mount that a folder lies on: its number where Linux tells it (a bind mount has its device in common)."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{folder}", "rb") as lines:
        for line in lines:
            if line.startswith(b"mnt_id:"):
                return line
    return b"%d" % os.fstat(folder).st_dev


def _each_below(outside: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    return (Path(outside, *parts[: end + 1]) for end in range(len(parts)))


def _is_link(path: Path) -> bool:
    return path.is_symlink() or getattr(os.path, "isjunction", os.path.islink)(path)


def _refuse_links(outside: Path, parts: tuple[str, ...]) -> None:
    for place in _each_below(outside, parts):
        if _is_link(place):
            raise _a_link(place)


def _make_by_name(outside: Path, parts: tuple[str, ...], mode: int) -> None:
    for place in _each_below(outside, parts):
        if _is_link(place):
            raise _a_link(place)
        place.mkdir(mode, exist_ok=True)
        if place.name == FOLDER.name:
            with contextlib.suppress(OSError), open(place / ".gitignore", "x", encoding="ascii") as file:
                file.write("*\n")


def _remove_by_name(outside: Path, parts: tuple[str, ...]) -> None:
    import shutil

    _refuse_links(outside, parts)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(Path(outside, *parts))
