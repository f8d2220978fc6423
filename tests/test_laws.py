"""The laws of the house: who may import whom, what starts without torch, how large a folder may be."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "unstuck"
FILES = sorted(PACKAGE.rglob("*.py"))
TORCH = {"capture", "check", "doctor", "gradients", "helpers", "interventions", "surface", "trials"}
"""Packages that may import torch. The command loads them when it has to; lint and explain never do."""
MOST_MODULES = 20


def module_of(file: Path) -> str:
    name = ".".join(("unstuck", *file.relative_to(PACKAGE).with_suffix("").parts))
    return name.removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES}


def room_of(module: str) -> str:
    """The package or top-level module that a module is part of: `unstuck.lint.cache` is in `lint`."""
    return module.split(".")[1] if "." in module else "unstuck"


def imports_of(file: Path, for_types: bool = True) -> Iterator[str]:
    """The modules that a file imports, at its top, in functions and for types alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    hints = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    skipped = set() if for_types else {id(inner) for hint in hints for inner in ast.walk(hint)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively; write the whole name"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES or not str(node.module).startswith("unstuck") else str(node.module)


def rooms_imported() -> dict[str, dict[str, set[str]]]:
    """For each room the rooms it imports, and which files do."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, file in MODULES.items():
        for name in imports_of(file):
            if name.startswith("unstuck") and room_of(name) != room_of(module):
                found[room_of(module)][room_of(name)].add(str(file.relative_to(PACKAGE)))
    return found


def loaded_after(program: str, watched: str) -> str:
    """Which of the watched modules a program has loaded when it ends."""
    program += f"\nimport sys\nsys.stderr.write(' '.join(set({watched.split()}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def command(*words: str) -> str:
    return f"from unstuck.cli import main\ntry:\n    main({list(words)})\nexcept SystemExit:\n    pass"


def test_no_cycle_between_packages() -> None:
    graph = {room: set(others) - {"unstuck"} for room, others in rooms_imported().items() if room != "unstuck"}
    graph["rule"].discard("rules")  # the loader imports the folder to list its files
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = error.args[1]
        who = rooms_imported()
        lines = [f"{b} imports {a} in {', '.join(sorted(who[b][a]))}" for a, b in itertools.pairwise(cycle)]
        pytest.fail("packages import each other; move what both need below them:\n" + "\n".join(lines))


def test_what_is_not_under_a_torch_package_imports_without_torch() -> None:
    names = [
        name
        for name, file in MODULES.items()
        if room_of(name) not in TORCH and file.stem not in ("__main__", "sitecustomize") and room_of(name) != "dev"
    ]
    assert loaded_after("\n".join(f"import {name}" for name in names), "torch rich") == ""


def test_only_torch_packages_name_torch() -> None:
    guilty = {
        str(file.relative_to(PACKAGE))
        for name, file in MODULES.items()
        if room_of(name) not in TORCH | {"dev"}
        for imported in imports_of(file, for_types=False)
        if imported.split(".")[0] == "torch"
    }
    assert guilty == set(), "move what needs torch into one of the torch packages"


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [
        ("capture", ("unstuck.rules", "unstuck.rule", "unstuck.report", "unstuck.judge", "unstuck.cli")),
        ("rules", ("unstuck.report", "unstuck.cli", "unstuck.capture", "unstuck.judge", "rich")),
        ("findings", ("unstuck.report", "unstuck.cli", "rich")),
    ],
)
def test_some_rooms_know_nothing_of_others(room: str, forbidden: tuple[str, ...]) -> None:
    guilty = [
        (str(file.relative_to(PACKAGE)), name)
        for file in (PACKAGE / room).rglob("*.py")
        for name in imports_of(file)
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    ]
    assert guilty == [], f"{room} must not need these; pass it what it needs, or move that below"


def test_no_folder_has_too_many_modules() -> None:
    folders = defaultdict(list)
    for file in FILES:
        if file.name != "__init__.py":
            folders[str(file.parent.relative_to(PACKAGE))].append(file.name)
    crowded = {folder: len(names) for folder, names in folders.items() if len(names) > MOST_MODULES}
    assert crowded == {}, f"a folder holds at most {MOST_MODULES} modules; split these by what they are about"


def test_a_helper_module_has_two_importers() -> None:
    importers = defaultdict(set)
    for module, file in MODULES.items():
        for name in imports_of(file):
            importers[name].add(module)
    private = {name for name in MODULES if name.rpartition(".")[2].startswith("_")}
    lonely = {name for name in private - {"unstuck._version"} if len(importers[name]) < 2 and "__main__" not in name}
    assert lonely == set(), "a `_helper` with one importer belongs into its importer"


def test_no_rule_is_named_outside_of_the_catalogue() -> None:
    """Examples in sentences apart: they say "such as O12"."""
    code = re.compile(r"[A-Z]\d\d")
    guilty = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}"
        for file in FILES
        if file.relative_to(PACKAGE).parts[0] != "rules"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and code.fullmatch(node.value)
    ]
    assert guilty == [], "give `Rule` a field that says what is special about this rule"


def test_no_code_compares_sentences() -> None:
    prose = {"message", "cause", "sentence"}
    guilty = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                is_prose = any(isinstance(s, ast.Attribute) and s.attr in prose for s in sides)
                if is_prose and any(isinstance(s, ast.Constant) and isinstance(s.value, str) for s in sides):
                    guilty.append(f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert guilty == [], "findings carry a variant and a subject key, crashes a `TorchError`; compare these"


def test_closed_sets_are_compared_by_their_enums() -> None:
    words: dict[str, set[str]] = defaultdict(set)
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
    for tree in trees.values():
        for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            if any(ast.unparse(base) == "StrEnum" for base in kind.bases):
                named = (item.value for item in kind.body if isinstance(item, ast.Assign))
                words[kind.name] |= {each.value for each in named if isinstance(each, ast.Constant)}
    sets = {
        "verdict": words["ExperimentVerdict"] | words["ProofVerdict"],
        "word": words["Direction"] | words["Achieved"],
        "status": words["RunStatus"] | words["Status"],
        "ended": words["End"],
    }
    guilty = []
    for file, tree in trees.items():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Compare)):
            attribute = node.left.attr if isinstance(node.left, ast.Attribute) else ""
            sides = [side for other in node.comparators for side in ast.walk(other)]
            if any(isinstance(side, ast.Constant) and side.value in sets.get(attribute, ()) for side in sides):
                guilty.append(f"{file.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert guilty == [], "compare with a member of the enum"


def test_the_architecture_names_files_that_exist() -> None:
    text = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = {f"/{file.relative_to(PACKAGE)}" for file in FILES}
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text)) - {"train.py", "x.py", "_x.py", "tests/test_laws.py"}
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in paths)}
    assert missing == set(), "docs/architecture.md names files that are gone"


def test_every_package_says_what_it_is() -> None:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
    silent = [str(file.relative_to(PACKAGE)) for file, tree in trees.items() if not ast.get_docstring(tree)]
    assert silent == [], "the first line of a module says what it is"


@pytest.mark.parametrize("words", [["--version"], ["explain", "O12"], ["rules"], ["lint", __file__]])
def test_the_quick_commands_load_neither_torch_nor_rich(words: list[str]) -> None:
    assert loaded_after(command(*words), "torch numpy rich asyncio unstuck.capture") == ""


def test_the_version_loads_nothing_but_the_command() -> None:
    assert loaded_after(command("--version"), "msgspec unstuck.judge unstuck.rule ast") == ""
