"""Our reading of `.gitignore` is git's: compared with `git check-ignore` on random patterns and paths."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from unstuck.lint.patterns import GitIgnored, Patterns

PIECES = st.sampled_from(
    ["a", "b", "ab", "*", "**", "?", "/", "/", "[ab]", "[!a]", "[^b]", "[a-b]", "[[:alpha:]]", "\\a", ".py", " ", "\\ "]
)
LINES = st.builds(
    lambda bang, start, pieces, end: bang + start + "".join(pieces) + end,
    st.sampled_from(["", "", "", "!"]),
    st.sampled_from(["", "", "/", "**/", "#", "\\#"]),
    st.lists(PIECES, min_size=1, max_size=5),
    st.sampled_from(["", "", "/", "/**", " "]),
).filter(lambda line: not re.search(r"[^/!]\*\*|\*\*[^/ ]", line))
# git's manual takes two stars inside a part of a path for one; not all versions of git agree.
NAMES = ("a", "b", "ab", "ba", "a.py", "b.py")


def tree(root: Path) -> list[str]:
    """A small tree of folders and files, as paths; folders end in a slash."""
    paths = []
    for outer in NAMES[:3]:
        paths.append(f"{outer}/")
        for inner in NAMES[:3]:
            (root / outer / inner).mkdir(parents=True)
            paths.append(f"{outer}/{inner}/")
            for name in NAMES:
                (root / outer / inner / f"{name}.py").touch()
                paths.append(f"{outer}/{inner}/{name}.py")
    return paths


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    root = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root, tree(root)


def ignored_by_git(root: Path, paths: list[str]) -> set[str]:
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=", "check-ignore", "--stdin", "-z"],
        cwd=root,
        input="\0".join(path.rstrip("/") for path in paths),
        capture_output=True,
        text=True,
        check=False,
    )
    said = set(done.stdout.split("\0"))
    return {path for path in paths if path.rstrip("/") in said}


def ignored_by_us(root: Path, paths: list[str]) -> set[str]:
    ignored = GitIgnored()
    found: set[str] = set()
    for path in paths:  # folders come before what is in them, as in a walk
        above = any(path.startswith(folder) for folder in found if folder.endswith("/") and folder != path)
        if above or ignored(str(root / path.rstrip("/")), path.endswith("/")):
            found.add(path)
    return found


@settings(max_examples=120, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=5), st.lists(LINES, max_size=3))
def test_as_git_reads_them(repository: tuple[Path, list[str]], top: list[str], nested: list[str]) -> None:
    root, paths = repository
    (root / ".gitignore").write_text("\n".join(top) + "\n")
    (root / "a" / ".gitignore").write_text("\n".join(nested) + "\n")
    assert ignored_by_us(root, paths) == ignored_by_git(root, paths)


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("tests/", "tests/deep/test_a.py", True),
        ("tests", "src/tests/a.py", True),
        ("/tests", "src/tests/a.py", False),
        ("*_old.py", "src/train_old.py", True),
        ("src/*.py", "src/deep/a.py", False),
        ("src/**/*.py", "src/deep/a.py", True),
        ("src/**", "src/a.py", True),
    ],
)
def test_a_pattern_of_the_settings_covers_a_file(pattern: str, path: str, covered: bool) -> None:
    assert Patterns([pattern]).covers(path) is covered


def test_outside_a_repository_the_files_above_count_up_to_the_searched_folder(tmp_path: Path) -> None:
    inner = tmp_path / "searched" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("b.py\n")
    (tmp_path / "searched" / ".gitignore").write_text("a.py\n")
    ignored = GitIgnored([str(tmp_path / "searched")])
    assert ignored(str(inner / "a.py"), False)
    assert not ignored(str(inner / "b.py"), False)


def test_a_nested_repository_has_its_own_rules(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("a.py\n")
    nested = tmp_path / "nested"
    nested.mkdir()
    subprocess.run(["git", "init", "-q", str(nested)], check=True)
    ignored = GitIgnored()
    assert ignored(str(tmp_path / "a.py"), False)
    assert not ignored(str(nested / "a.py"), False)


def test_an_unreadable_or_odd_ignore_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").mkdir()
    assert not GitIgnored([str(tmp_path)])(os.fspath(tmp_path / "a.py"), False)
