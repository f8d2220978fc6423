"""Who may import whom, so that `unstuck lint` starts at once and works where torch is not installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "unstuck"
WITHOUT_TORCH = [
    "events",
    "findings",
    "rule",
    "rules",
    "source",
    "linting",
    "judge",
    "record",
    "report",
    "integrations",
    "live",
    "trend",
    "page",
]
WITHOUT_TORCH += [f"cli/{verb}" for verb in "lint lsp explain rules report clean run check surface doctor".split()]


def modules_below(part: str) -> list[str]:
    path = PACKAGE / part
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    names = [".".join(("unstuck", *file.relative_to(PACKAGE).with_suffix("").parts)) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def loaded_after(program: str, watched: str) -> str:
    """Which of the watched modules a program has loaded when it ends."""
    program += f"\nimport sys\nsys.stderr.write(' '.join(set({watched.split()}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    return done.stderr


def command(*words: str) -> str:
    return f"from unstuck.cli import main\ntry:\n    main({list(words)})\nexcept SystemExit:\n    pass"


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_importing_it_does_not_import_torch(part: str) -> None:
    names = modules_below(part)
    assert names
    assert loaded_after("\n".join(f"import {name}" for name in names), "torch numpy rich") == ""


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_nor_does_it_import_torch_later(part: str) -> None:
    path = PACKAGE / part
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    guilty = [(file.name, name) for file in files for name in imports_of(file) if name.split(".")[0] == "torch"]
    assert guilty == []


def test_capture_knows_neither_rules_nor_reports() -> None:
    forbidden = ("unstuck.rules", "unstuck.rule", "unstuck.report", "unstuck.judge", "unstuck.cli")
    guilty = [
        (file.name, name)
        for file in (PACKAGE / "capture").rglob("*.py")
        for name in imports_of(file)
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    ]
    assert guilty == []


def test_rules_do_not_render() -> None:
    guilty = [
        (file.name, name)
        for file in (PACKAGE / "rules").rglob("*.py")
        for name in imports_of(file)
        if name.startswith(("unstuck.report", "unstuck.cli", "unstuck.capture", "rich"))
    ]
    assert guilty == []


@pytest.mark.parametrize("words", [["--version"], ["explain", "O12"], ["rules"], ["lint", __file__]])
def test_the_quick_commands_load_neither_torch_nor_rich(words: list[str]) -> None:
    assert loaded_after(command(*words), "torch numpy rich asyncio unstuck.capture") == ""


def test_the_version_loads_nothing_but_the_command() -> None:
    assert loaded_after(command("--version"), "msgspec unstuck.judge unstuck.rule ast") == ""
