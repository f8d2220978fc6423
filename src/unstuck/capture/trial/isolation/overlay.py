"""A view of the file system in which everything can be read and nothing that is the user's can be written.

Inside a user and a mount namespace, which need no privilege, every mount is read only, and over each folder in which
somebody might write lies an overlay: what is written, by whom and however, lands in a layer of the trial's own and is
read back from there. Nothing is copied or linked, so the number of files does not matter. A process namespace for each
trial lets nothing that it started outlive it.

The process that forks trials lives in such a view too (`enter`), since it imports libraries, and libraries write; each
trial (`run`) puts its own layers over it. A process with threads may not do this: `enter` comes before torch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import select
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from unstuck.capture.trial.isolation import devices, filters, kernel
from unstuck.capture.trial.isolation.errors import FAILED, NotPossible
from unstuck.capture.trial.isolation.inputs import put
from unstuck.capture.trial.isolation.processes import close_folders, end_alike
from unstuck.capture.trial.layout import LAYER

SHARED_MEMORY = "/dev/shm"
HIDDEN = "/dev/.unstuck"
"""Where the process that forks keeps what its trials are built from. Nothing of it is left in a trial."""
REAL, RUN, MEMORY, SHARED = (f"{HIDDEN}/{name}" for name in ("real", "run", "memory", "shm"))
NOT_FILES = ("/proc", "/sys", "/dev")
MOST_PLACES = 100
"""Overlays of a trial, where mounts below mounts ask for many."""
FILE_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 14, 15, 23, 24})
"""What root needs for files and for its own processes. Not CAP_SYS_ADMIN, which could undo the mounts."""


class View(NamedTuple):
    """What the trials of one process are built from."""

    home: str
    places: tuple[str, ...]
    """Folders that overlays lie over, outer ones first."""
    in_memory: bool
    """Do layers lie in memory, because the file system of the project cannot hold them?"""


def enter(home: str, run_folder: str, needed: Sequence[str] = (), *, in_memory: bool = False) -> View:
    """Move this process into a view in which `home` can be written, and as far as possible what is `needed`.

    Raises `NotPossible` or OSError half-way, and leaves a process that is of no use: try it in another one first.
    """
    places = _places(home, [home, *needed, *_usual_folders()])
    owners = _mapped_ids()
    _leave_user_namespace(owners)
    # A namespace inside of this one would bring back capabilities, with which root could mount and change cgroups.
    _write("/proc/sys/user/max_user_namespaces", "0")
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _cover_devices()
    for folder in (REAL, RUN, MEMORY, SHARED):
        os.makedirs(folder, exist_ok=True)
    kernel.mount("/", REAL, flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.mount(SHARED_MEMORY, SHARED, flags=kernel.MS_BIND)
    kernel.mount(run_folder, RUN, flags=kernel.MS_BIND)
    kernel.make_read_only("/")
    kernel.make_writable(RUN)
    return _cover(View(home, places, in_memory), "zygote")


def run(view: View, folder: str, body: Callable[[str], int]) -> int:
    """Call `body` in a process with layers of its own. The end of that process ends all that it started.

    `folder` lies in the folder of the run. `body` is given another path of it, the only real folder it can write.
    """
    parent = os.getppid()
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC)
    name = os.path.basename(folder)
    _cover(view, name)
    record = _out_of_the_way(kernel.detached_mount(f"{RUN}/{name}"))
    for hidden in (REAL, RUN, SHARED, MEMORY, MEMORY):  # the last has that of the process that forks below it
        kernel.unmount(hidden)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return FAILED
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever sends it to the group means the program
    alive, never_written = os.pipe()
    answer, said = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(never_written)
        os.close(answer)
        _be_first(view.home, record, body, alive, said)
    for ours in (alive, said, record):
        os.close(ours)
    os.waitpid(first, 0)
    status = os.read(answer, 32)
    return end_alike(int(status)) if status else FAILED


def _be_first(home: str, record: int, body: Callable[[str], int], alive: int, said: int) -> NoReturn:
    """Be the first process of a namespace: when it ends, the kernel ends all others. It outlives nobody either."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        if not select.select([alive], [], [], 0)[0]:  # else the parent had gone before we asked
            _mount_proc()
            program = os.fork()
            if program == 0:
                os.close(alive)
                os.close(said)
                _be_program(home, record, body)
            while (ended := os.waitpid(-1, 0))[0] != program:
                pass
            os.write(said, str(ended[1]).encode())
    finally:
        os._exit(0)


def _be_program(home: str, record: int, body: Callable[[str], int]) -> NoReturn:
    code = FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        close_folders(but=record)
        kernel.forbid_new_privileges()
        kernel.keep_capabilities(FILE_CAPABILITIES if os.geteuid() == 0 else ())
        filters.forbid_keyrings()
        os.chdir(home)  # not the folder below the overlay
        code = body(f"/proc/self/fd/{record}")
    finally:
        os._exit(code)


def _out_of_the_way(descriptor: int) -> int:
    """The same under a number that a program, which gets the lowest free ones, hardly ever comes to."""
    with contextlib.suppress(OSError):
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 500)
        os.close(descriptor)
        return high
    return descriptor


# -- who: the user namespace -------------------------------------------------------------------------------------------


class _Owners(NamedTuple):
    """Which users and groups are known inside, as lines of `/proc/PID/uid_map` and `gid_map`."""

    users: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, int], ...]

    def know(self, status: os.stat_result) -> bool:
        """Can a file of this owner be copied into a layer?"""
        known = [
            any(first <= number < first + count for first, count in ranges)
            for number, ranges in ((status.st_uid, self.users), (status.st_gid, self.groups))
        ]
        return all(known)


def _mapped_ids() -> _Owners:
    """Root, who may map them all, keeps all ids; anybody else is allowed their own."""
    if os.geteuid() != 0:
        return _Owners(((os.geteuid(), 1),), ((os.getegid(), 1),))
    users, groups = (
        tuple((int(line.split()[0]), int(line.split()[2])) for line in _lines(f"/proc/self/{kind}_map"))
        for kind in ("uid", "gid")
    )
    return _Owners(users, groups)


def _leave_user_namespace(owners: _Owners) -> None:
    """Enter a new user namespace with a mount namespace. The ids are mapped from outside, which root needs."""
    process = os.getpid()
    waiting, go = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        code = 1
        try:
            os.close(go)
            if os.read(waiting, 1):
                _map_ids(process, owners)
                code = 0
        finally:
            os._exit(code)
    os.close(waiting)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC)
        os.write(go, b"!")
    finally:
        os.close(go)
        _, status = os.waitpid(mapper, 0)
    if status:
        raise NotPossible("the user could not be mapped into a namespace")


def _map_ids(process: int, owners: _Owners) -> None:
    if os.geteuid() != 0:
        _write(f"/proc/{process}/setgroups", "deny")
    for kind, ranges in (("uid", owners.users), ("gid", owners.groups)):
        _write(f"/proc/{process}/{kind}_map", "".join(f"{first} {first} {count}\n" for first, count in ranges))


# -- where: the folders under overlays ---------------------------------------------------------------------------------


def _places(home: str, needed: Sequence[str]) -> tuple[str, ...]:
    """The folders to lay overlays over: as few and as large as possible, but none with another mount below it, which
    the kernel does not allow; and those in which what is needed could otherwise not be written."""
    mounts = [_unescaped(line.split()[4]) for line in _lines("/proc/self/mountinfo")]
    owners = _mapped_ids()
    real = [path for path in map(_real, needed) if path]
    found: dict[str, None] = {}
    todo = ["/"]
    while todo and len(found) < MOST_PLACES:
        folder = todo.pop(0)
        if folder in NOT_FILES:
            continue
        if any(mount != folder and is_below(mount, folder) for mount in mounts):
            todo += sorted(_folders_in(folder), key=lambda path: not _leads_to(path, real))
        else:
            found[folder] = None
    for path in real:
        around = next((place for place in found if is_below(path, place)), None)
        if around is not None and (unknown := _last_unknown(around, path, owners)):
            found[unknown] = None
    if not any(is_below(os.path.realpath(home), place) for place in (*found, SHARED_MEMORY)):
        if any(mount != home and is_below(mount, home) for mount in mounts):
            raise NotPossible(f"other file systems are mounted below {home}")
        raise NotPossible(f"no overlay can be laid over {home}")
    if not owners.know(os.stat(home)):
        raise NotPossible(f"{home} belongs to another user or group")
    return tuple(found)


def _last_unknown(place: str, path: str, owners: _Owners) -> str:
    """The innermost folder on the way whose owner is unknown inside. It could not be copied into the layer of `place`,
    as it has to be before anything is written below it; an overlay of its own needs no such copy."""
    last = ""
    while path != place:
        with contextlib.suppress(OSError):
            if not last and os.path.isdir(path) and not owners.know(os.stat(path)):
                last = path
        path = os.path.dirname(path)
    return last


def _usual_folders() -> list[str]:
    """Where programs write besides their working directory."""
    names = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TORCH_HOME", "HF_HOME", "HF_DATASETS_CACHE")
    return [path for path in (*map(os.environ.get, names), "/tmp", "/var/tmp") if path and os.path.isdir(path)]


def _real(path: str) -> str:
    """Where a path leads; nowhere if that may not be asked."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return ""


def _leads_to(folder: str, paths: Sequence[str]) -> bool:
    return any(is_below(path, folder) for path in paths)


def _folders_in(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))


def is_below(path: str, folder: str) -> bool:
    """Is this absolute path that of the folder, or of something in it?"""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


# -- how: overlays, devices, processes ---------------------------------------------------------------------------------


def _cover(view: View, name: str) -> View:
    """Lay overlays over all places, with layers of this name. Folders of file systems that cannot lie under an overlay
    can be read only."""
    kernel.mount("tmpfs", MEMORY, "tmpfs", options="mode=700")
    layers = f"{MEMORY if view.in_memory else f'{RUN}/{LAYER}'}/{name}"
    places = (*view.places, SHARED_MEMORY)
    around_home = max((place for place in places if is_below(view.home, place)), key=len)
    covered = []
    for number, place in enumerate(view.places):
        layer = f"{layers}/{number}"
        os.makedirs(f"{layer}/upper")
        if place == around_home:
            _hide(f"{view.home}/.unstuck", place, f"{layer}/upper")
        try:
            _lay(REAL + place, place, layer)
            covered.append(place)
        except OSError:
            if place == around_home:
                raise
    os.makedirs(f"{MEMORY}/shm/upper")
    if around_home == SHARED_MEMORY:
        _hide(f"{view.home}/.unstuck", SHARED_MEMORY, f"{MEMORY}/shm/upper")
    _lay(SHARED, SHARED_MEMORY, f"{MEMORY}/shm")
    return view._replace(places=tuple(covered))


def _lay(lower: str, place: str, layer: str) -> None:
    os.mkdir(f"{layer}/work")
    _dress(f"{layer}/upper", os.stat(lower))
    # By descriptor, since a colon or a comma in a path would have to be escaped.
    opened = os.open(lower, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folders = f"lowerdir=/proc/self/fd/{opened},upperdir={layer}/upper,workdir={layer}/work"
        kernel.mount("overlay", place, "overlay", options=f"{folders},userxattr,volatile")
    finally:
        os.close(opened)


def _hide(path: str, place: str, upper: str) -> None:
    """Have a folder absent from the overlay: a device with the number 0 stands for what was removed."""
    if not os.path.lexists(REAL + path):
        return
    *names, hidden = os.path.relpath(path, place).split(os.sep)
    way = ""
    for name in names:
        way += f"/{name}"
        os.mkdir(upper + way)
    os.mknod(f"{upper}{way}/{hidden}", stat.S_IFCHR, 0)
    while way:
        _dress(upper + way, os.stat(REAL + place + way))
        way = os.path.dirname(way).rstrip("/")


def _dress(folder: str, status: os.stat_result) -> None:
    """Give a folder of a layer the looks of the one it lies over."""
    with contextlib.suppress(OSError):
        os.chown(folder, status.st_uid, status.st_gid)
    os.chmod(folder, stat.S_IMODE(status.st_mode))
    os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))


def _cover_devices() -> None:
    """A /dev with what programs use: graphics cards and terminals, but no disks."""
    opened = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = f"/proc/self/fd/{opened}"
    try:
        kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID, "mode=755")
        for name in ("shm", "pts"):
            os.mkdir(f"/dev/{name}")
        kernel.mount(f"{before}/shm", SHARED_MEMORY, flags=kernel.MS_BIND)
        # Terminals of its own: with those of the user it could type into their shell.
        kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID, "newinstance,ptmxmode=0666,mode=0620")
        os.symlink("pts/ptmx", "/dev/ptmx")
        for name in os.listdir(before):
            path = f"{before}/{name}"
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(path), f"/dev/{name}")
            elif devices.is_used(name) and stat.S_ISDIR(status.st_mode):
                os.mkdir(f"/dev/{name}")
                kernel.mount(path, f"/dev/{name}", flags=kernel.MS_BIND | kernel.MS_REC)
            elif devices.is_used(name) and stat.S_ISCHR(status.st_mode):
                os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
                kernel.mount(path, f"/dev/{name}", flags=kernel.MS_BIND)
    finally:
        os.close(opened)


def _mount_proc() -> None:
    """Show the processes of the new namespace only, and no switches of the machine. Some containers refuse it; then the
    old one stays, which can be read only."""
    with contextlib.suppress(OSError):
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        for name in ("sys", "sysrq-trigger", "irq", "bus"):
            if os.path.exists(f"/proc/{name}"):
                kernel.mount(f"/proc/{name}", f"/proc/{name}", flags=kernel.MS_BIND)
                kernel.make_read_only(f"/proc/{name}")


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().splitlines()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _unescaped(path: str) -> str:
    """The kernel writes blanks and other odd characters of a path as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


# -- what an overlay cannot do -----------------------------------------------------------------------------------------


def let_folders_be_renamed() -> None:
    """Have `os.rename` and `os.replace` move a folder that the program did not make itself. An overlay without
    privileges refuses that with EXDEV, which mv and shutil.move take as a request to copy."""
    for name in ("rename", "replace"):
        put(os, name, _copying(getattr(os, name)))


def _copying(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def rename(src: Any, dst: Any, **folders: Any) -> None:
        try:
            original(src, dst, **folders)
        except OSError as error:
            is_folder = not folders and os.path.isdir(src) and not os.path.islink(src)
            if error.errno != errno.EXDEV or not is_folder or os.stat(src).st_dev != _device_around(dst):
                raise
            if os.path.isdir(dst) and not os.path.islink(dst):
                os.rmdir(dst)  # only an empty one may be replaced
            elif os.path.lexists(dst):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), src, None, dst) from None
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return rename


def _device_around(path: Any) -> int:
    return os.stat(os.path.dirname(os.path.abspath(path))).st_dev
