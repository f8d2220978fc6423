"""What we make and remove under `.unstuck` is ours, whatever a repository from elsewhere put there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from unstuck.record import RecordError
from unstuck.record.own_folder import find_own_folder, own_folder, remove_own_files, remove_own_tree, size_of_tree

NOBODY = 65534


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's that must be the same at the end."""
    folder = tmp_path / "precious"
    (folder / "deep").mkdir(parents=True)
    (folder / "weights.pt").write_bytes(b"w" * 100)
    (folder / "deep" / "more.pt").write_bytes(b"m" * 100)
    before = contents(folder)
    yield folder
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        known = path.lstat()
        held = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (known.st_mode, known.st_uid, held)
    return found


def test_a_folder_is_made_with_a_gitignore(project: Path) -> None:
    assert own_folder(".unstuck/layers") == project / ".unstuck" / "layers"
    assert (project / ".unstuck" / "layers").is_dir()
    assert (project / ".unstuck" / ".gitignore").read_text() == "*\n"
    assert own_folder(".unstuck/layers") == project / ".unstuck" / "layers"
    assert find_own_folder(".unstuck/layers") == project / ".unstuck" / "layers"
    assert find_own_folder(".unstuck/runs") is None


@pytest.mark.parametrize("link", [".unstuck", ".unstuck/runs"])
@pytest.mark.parametrize("target", ["precious", "missing"])
def test_a_link_is_refused_with_a_sentence(tmp_path: Path, precious: Path, link: str, target: str) -> None:
    Path(link).parent.mkdir(exist_ok=True)
    Path(link).symlink_to(tmp_path / target)
    with pytest.raises(RecordError, match=r"is a link, .*; remove the link\.") as refusal:
        own_folder(".unstuck/runs")
    assert link in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(RecordError, match="is a link"):
        find_own_folder(".unstuck/runs")
    assert not (tmp_path / "missing").exists()


def test_a_gitignore_that_is_a_dangling_link_makes_no_file_outside(tmp_path: Path) -> None:
    Path(".unstuck").mkdir()
    Path(".unstuck/.gitignore").symlink_to(tmp_path / "made.txt")
    own_folder(".unstuck/runs")
    assert not (tmp_path / "made.txt").exists()


def test_a_gitignore_with_another_name_is_not_written_through(tmp_path: Path) -> None:
    Path(".unstuck").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    os.link(tmp_path / "mine.txt", ".unstuck/.gitignore")
    own_folder(".unstuck")
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("theirs", [".unstuck", ".unstuck/runs"])
def test_a_folder_of_another_user_is_refused_with_a_sentence(theirs: str) -> None:
    Path(theirs).mkdir(parents=True)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(RecordError, match=r"belongs to another user \(\w+\); remove it"):
        own_folder(".unstuck/runs")
    with pytest.raises(RecordError, match="belongs to another user"):
        remove_own_tree(".unstuck/runs")
    assert Path(theirs).is_dir()


def test_something_else_of_that_name_is_an_error_of_the_disk() -> None:
    os.mkfifo(".unstuck")
    with pytest.raises(OSError, match="Not a directory"):
        own_folder(".unstuck/runs")
    with pytest.raises(ValueError, match="does not lie in"):
        own_folder("runs")
    with pytest.raises(ValueError, match="is not a folder below"):
        own_folder(".unstuck/../x")


def test_a_tree_goes_and_what_its_links_lead_to_stays(tmp_path: Path, precious: Path) -> None:
    tree = own_folder(".unstuck/layers/one")
    (tree / "link").symlink_to(precious)
    (tree / "up").symlink_to("..")
    (tree / "loop").symlink_to("loop")
    os.link(precious / "weights.pt", tree / "same.pt")
    os.mkfifo(tree / "pipe")
    own_folder(".unstuck/layers/two")
    remove_own_tree(tree)
    assert os.listdir(".unstuck/layers") == ["two"]
    remove_own_tree(tree)


@pytest.mark.parametrize("link", [".unstuck", ".unstuck/layers", ".unstuck/layers/one"])
def test_a_tree_behind_a_link_is_not_removed(tmp_path: Path, precious: Path, link: str) -> None:
    (precious.parent / "far" / "layers" / "one").mkdir(parents=True)
    Path(link).parent.mkdir(parents=True, exist_ok=True)
    Path(link).symlink_to(precious)
    with pytest.raises(RecordError, match="is a link"):
        remove_own_tree(".unstuck/layers/one")
    with pytest.raises(RecordError, match="is a link"):
        remove_own_tree(".unstuck/layers/one/deep")
    assert Path(link).is_symlink()


LOCKED = """
import os
from unstuck.record.own_folder import own_folder, remove_own_tree
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
tree = own_folder(".unstuck/layers/one")
for name in ("work/work", "upper/a/b/c"):
    os.makedirs(tree / name)
    (tree / name / "file").write_text("x")
for name in ("upper/a/b/c", "upper/a/b", "upper/a", "work/work"):
    os.chmod(tree / name, 0)
os.chmod(tree, 0o500)
remove_own_tree(tree)
print(os.listdir(".unstuck/layers"))
"""


def test_folders_of_mode_zero_go_too_for_an_ordinary_user(tmp_path: Path) -> None:
    pytests = [folder for folder in tmp_path.parents if folder.name.startswith(("pytest-", "popen-"))]
    for folder in (tmp_path, *pytests):  # which others may not enter
        folder.chmod(0o755)
    Path.cwd().chmod(0o777)
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_tree_deeper_than_any_path_goes() -> None:
    tree = own_folder(".unstuck/layers/one")
    here = os.open(tree, os.O_RDONLY)
    for _ in range(1050):
        os.mkdir("d" * 5, dir_fd=here)
        below = os.open("d" * 5, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    remove_own_tree(tree)
    assert os.listdir(".unstuck/layers") == []
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


MOUNTED = """
set -e
mkdir -p .unstuck/layers/one/merged
mount --bind {precious} .unstuck/layers/one/merged
"{python}" -c 'from unstuck.record.own_folder import remove_own_tree as r; r(".unstuck/layers/one")' 2>&1 || true
ls {precious}
"""


def test_nothing_is_removed_behind_a_mount_point(precious: Path) -> None:
    script = MOUNTED.format(precious=precious, python=sys.executable)
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True, text=True
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no namespaces here")
    assert "something is mounted there" in done.stdout
    assert done.stdout.split()[-2:] == ["deep", "weights.pt"]


def test_what_cannot_be_removed_is_said_and_the_rest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = own_folder(".unstuck/layers/one")
    for name in ("a", "b", "c"):
        (tree / name).write_text("x")
    unlink = os.unlink

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        if name == "b":
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    with pytest.raises(OSError, match="not permitted"):
        remove_own_tree(tree)
    monkeypatch.undo()
    assert [path.name for path in tree.iterdir()] == ["b"]


def test_single_files_go_and_links_are_not_followed(tmp_path: Path, precious: Path) -> None:
    folder = own_folder(".unstuck/cache")
    (folder / "entry").symlink_to(precious / "weights.pt")
    (folder / "other").mkdir()
    assert remove_own_files(folder, ["entry", "missing", "other"]) == 1
    assert os.listdir(folder) == ["other"]
    (folder / "other").rmdir()
    folder.rmdir()
    folder.symlink_to(precious)
    with pytest.raises(RecordError, match="is a link"):
        remove_own_files(folder, ["weights.pt"])


def test_the_size_is_what_removing_frees(precious: Path) -> None:
    tree = own_folder(".unstuck/layers/one")
    bare = size_of_tree(tree)
    (tree / "link").symlink_to("../../../../precious")
    os.link(precious / "weights.pt", tree / "same.pt")
    assert size_of_tree(tree) == bare
    (tree / "own").write_bytes(b"x" * 2**20)
    assert size_of_tree(tree) >= bare + 2**20
    assert size_of_tree(".unstuck/missing") == 0


KINDS = st.sampled_from(["file", "folder", "link in", "link out", "dangling", "same file", "pipe", "locked"])
NAMES = st.sampled_from(["a", "b", "\udcff", " ", "é", "-rf", "..."])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=4), KINDS), max_size=25))
def test_any_tree_goes_and_nothing_else_changes(tmp_path: Path, made: list[tuple[list[str], str]]) -> None:
    precious = tmp_path / "outside"
    precious.mkdir(exist_ok=True)
    (precious / "weights.pt").write_bytes(b"w")
    tree = own_folder(".unstuck/layers/any")
    for names, kind in made:
        place = tree.joinpath(*names)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            put(place, kind, precious)
        except OSError:
            continue
    before = contents(precious)  # what was made through a link is the user's
    remove_own_tree(tree)
    assert os.listdir(".unstuck/layers") == []
    assert contents(precious) == before


def put(place: Path, kind: str, precious: Path) -> None:
    if kind == "file":
        place.open("x").close()  # a pipe of that name would wait for a reader
    elif kind == "folder":
        place.mkdir()
    elif kind == "locked":
        place.mkdir()
        (place / "inner").mkdir()
        place.chmod(0)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "same file":
        os.link(precious / "weights.pt", place)
    else:
        place.symlink_to({"link in": "a", "link out": precious, "dangling": "/nonexistent/x"}[kind])


def test_a_folder_whose_permissions_cannot_be_changed_does_not_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    own_folder(".unstuck/layers/locked").chmod(0o500)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(PermissionError):
        remove_own_tree(".unstuck/layers")
    assert sorted(os.listdir("/proc/self/fd")) == before
