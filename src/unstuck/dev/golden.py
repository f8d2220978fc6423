"""What a refactoring must leave as it is, recorded under tests/golden and compared: `make golden`.

Files called *.facts.* hold what never changes (codes, places, formats, options); *.words.* hold the sentences, which
may be reworded in a commit of their own. Wherever possible the command itself is asked, so that modules can move.
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

import unstuck
from unstuck.cli import commands, main as command
from unstuck.dev.common import Refusal
from unstuck.findings import Witness
from unstuck.page import Example, read_page
from unstuck.rule import Rule, own_rules

Files = dict[str, str | None]
"""What a part found, by the name of the file that records it; None where it cannot be known here."""
Json = dict[str, Any]

FOLDER = Path("tests/golden")
INPUTS = FOLDER / "inputs"
CORPORA = {"examples": "examples", "cases": "tests/cases", "source-cases": "tests/source/cases"}
PACKAGES = ("torch",)
"""Installed packages that lint reads whole: over 2,000 files in which next to nothing may be found."""
FORMATS = {"json": "json", "sarif": "json", "json-lines": "txt", "junit": "xml", "github": "txt", "concise": "txt"}
SCRIPT = "train.py"
PROCESSES = 2
PYTHON = (3, 11)
"""With which it was recorded: argparse of 3.13 and later prints help in other lines."""


def main(root: Path, parts: Iterable[str], *, accept: bool) -> int:
    """Compare, or with `accept` rewrite, what is recorded of these parts, or of all."""
    parts, changed = list(parts) or list(PARTS), 0
    if unknown := set(parts) - set(PARTS):
        raise Refusal(f"{', '.join(sorted(unknown))} is not a part; choose among {', '.join(PARTS)}.")
    if sys.version_info[:2] != PYTHON:
        print("Recorded with Python {}.{}; another one prints some help differently.".format(*PYTHON))
    for part in parts:
        folder = root / FOLDER / part
        found = PARTS[part](root)
        recorded = {path.name for path in folder.glob("*") if path.is_file()}
        for name in sorted(recorded | found.keys()):
            before = (folder / name).read_text(encoding="utf-8") if name in recorded else ""
            after = found.get(name, "")
            if after is None or after == before:
                continue
            changed += 1
            if accept:
                _write(folder / name, after)
            where = f"{FOLDER / part / name}"
            lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(*lines, where, f"{where} (now)"))
    if changed:
        print(f"{changed} files of {FOLDER} {'rewritten' if accept else 'differ; accept with --accept'}.")
    return int(changed > 0 and not accept)


def _write(path: Path, text: str) -> None:
    if not text:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _pretty(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _unstuck(folder: Path, *arguments: str) -> str:
    """What the command prints in a folder, whatever its exit code."""
    line = [sys.executable, "-m", "unstuck", *arguments]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "UNSTUCK_RAISE": "1"}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1, 2) or not done.stdout:
        raise Refusal(f"`unstuck {' '.join(arguments)}` in {folder} failed:\n{done.stderr}")
    return done.stdout


# Findings as lines: of a diagnosis in a JSON document, or of a finding that was made one.


def _fact(item: Json) -> str:
    related = "".join(f" +{_spot(place)}" for place in item["related"])
    edits = "".join(f" [{_spot(edit)} {edit['text']!r}]" for edit in item["fix"].get("edits", ()))
    explains = "".join(f" >{code}" for code in item.get("explains", ()))
    witnesses = ",".join(item.get("witnesses") or [item["witness"]])
    loudness = f"{item['severity']} {item['confidence']} {witnesses} {item['fix'].get('safety', 'manual')}"
    return f"{_spot(item['place'])} {item['code']} {loudness}{related}{edits}{explains}"


def _spot(place: Json | None) -> str:
    if place is None:
        return "nowhere"
    cell = f"cell {place['cell']}:" if place.get("cell") else ""
    # An example of a page that is not a script has no file.
    path = "" if place["path"].startswith("<") else os.path.relpath(place["path"]) + ":"
    return f"{path}{cell}{place['line']}:{place.get('column', 0)}"


def _words(item: Json) -> list[str]:
    said = {"message": item["message"], "cause": item["cause"], "fix": item["fix"]["text"]}
    return [f"{item['code']} {what}: {text}" for what, text in said.items()]


def _without_numbers(text: str) -> str:
    """Measured values differ from machine to machine, and so does whether one is written 0.001 or 1e-03."""
    return re.sub(r"(?<![A-Za-z_\d])-?\d[\d,.]*(?:e[-+]?\d+)?(?<![,.])", "N", text)


# The parts.


def lint(root: Path) -> Files:
    """What lint finds in our own scripts, in the examples of the rules' pages, and in installed packages."""
    files: Files = {}
    for name, corpus in CORPORA.items():
        files |= _linted(name, root / corpus, ".", name)
    with tempfile.TemporaryDirectory() as folder:
        for rule, name, example in _examples():
            if not example.is_setup:
                home = Path(folder, rule.code, name)
                home.mkdir(parents=True)
                (home / SCRIPT).write_text(example.code, encoding="utf-8")
        files |= _linted("pages", Path(folder), ".", "pages")
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise Refusal(f"{package} is not installed; run `make setup`.")
        title = f"{package} {importlib.metadata.version(package).partition('+')[0]}"
        recorded = root / FOLDER / "lint" / f"{package}.facts.txt"
        known = recorded.read_text(encoding="utf-8").partition(":")[0] if recorded.exists() else title
        if known != title:
            print(f"lint: {known} is recorded but {title} is installed: not compared.")
            files |= {recorded.name: None, f"{package}.words.txt": None}
        else:
            files |= _linted(package, Path(spec.origin).parents[1], package, title)
    return files


def _linted(name: str, folder: Path, path: str, title: str) -> Files:
    options = ("--isolated", "--no-cache", "--no-gitignore", "--fail-on", "never", "--format", "json")
    document = json.loads(_unstuck(folder, "lint", *options, path))
    found: list[Json] = document["diagnoses"]
    with contextlib.chdir(folder):
        facts = sorted(_fact(item) for item in found)
    # Files that cannot be read are left out: which ones depends on the version of Python.
    header = f"{title}: {document['files']} files, {document['ignored']} ignored"
    words = sorted({line for item in found for line in _words(item)})
    return {f"{name}.facts.txt": _lines([header, *facts]), f"{name}.words.txt": _lines(words)}


def _examples() -> Iterator[tuple[Rule, str, Example]]:
    """Every example of every page, numbered in its section so that a longer page changes no name."""
    for rule in own_rules():
        counts: dict[str, int] = {}
        for example in read_page(rule.page).examples:
            counts[example.section] = counts.get(example.section, 0) + 1
            yield rule, f"{example.section.lower()}-{counts[example.section]}", example


def pages(root: Path) -> Files:
    """What the witnesses other than the source, which `lint` records, find in the examples of the pages."""
    from unstuck.testing import audience

    wanted = [
        (rule.code, name, example, witness)
        for rule, name, example in _examples()
        for witness in audience(rule, example)
        if witness is not Witness.SOURCE
    ]
    # Each worker keeps a process with torch in it, from which the runs are forked.
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        seen = sorted(line for lines in pool.map(_seen_by, *zip(*wanted, strict=True)) for line in lines)
    facts = [f"{title}: {index + 1} {fact}" if fact else title for title, index, fact, _ in seen]
    words = {_without_numbers(line) for *_, lines in seen for line in lines}
    return {"pages.facts.txt": _lines(facts), "pages.words.txt": _lines(sorted(words))}


def _seen_by(code: str, name: str, example: Example, witness: Witness) -> list[tuple[str, int, str, list[str]]]:
    """For each judgement the title, and one row for each finding in the order in which they are ranked."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        judgements = _WITNESSES[witness](example)
        rows = []
        for what, found in judgements.items():
            title = f"{code} {name} {what}"
            rows.append((title, -1, "", list[str]()))
            rows += [(title, index, _fact(item), _words(item)) for index, item in enumerate(found)]
        return rows


def _of_run(example: Example) -> dict[str, list[Json]]:
    """Judged with the script next to the record, and from the record alone."""
    from unstuck.testing.runs import run_server

    Path(SCRIPT).write_text(example.code, encoding="utf-8")
    options = ("--fail-on", "never", "--format", "json", "--output")
    run_server().run(os.getcwd(), ["run", *options, "run.json", SCRIPT])
    Path(SCRIPT).unlink()
    run_server().run(os.getcwd(), ["report", *options, "record.json"])
    run, record = (json.loads(Path(f"{what}.json").read_text(encoding="utf-8")) for what in ("run", "record"))
    crash = f" {run['run']['crash']['kind']} at {_spot(run['run']['crash']['place'])}" if run["run"]["crash"] else ""
    return {f"run ({run['run']['status']}{crash})": run["diagnoses"], "record": record["diagnoses"]}


def _given(example: Example, function: str) -> Any:
    """What the example's function of this name returns: the arguments of the call that is tested."""
    import torch

    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(example.code, "<page>", "exec"), namespace)
    return namespace[function]()


def _of_setup(example: Example) -> dict[str, list[Json]]:
    found = unstuck.check(**_given(example, "objects")).diagnoses
    return {"setup": [msgspec.to_builtins(diagnosis.lead) for diagnosis in found]}


def _of_surface(example: Example) -> dict[str, list[Json]]:
    return {"surface": msgspec.to_builtins(list(unstuck.surface(**_given(example, "plane")).findings))}


def _of_experiment(example: Example) -> dict[str, list[Json]]:
    from unstuck.testing.experiments import experiment_on

    done = experiment_on(example.code, example.experiment, SCRIPT)
    found = [finding for rule in own_rules() for finding in rule.findings(Witness.EXPERIMENT, done)]
    return {f"{example.experiment} ({done.verdict})": msgspec.to_builtins(found)}


_WITNESSES: dict[Witness, Callable[[Example], dict[str, list[Json]]]] = {
    Witness.RUN: _of_run,
    Witness.SETUP: _of_setup,
    Witness.SURFACE: _of_surface,
    Witness.EXPERIMENT: _of_experiment,
}


def documents(root: Path) -> Files:
    """Every format of `lint` over a small folder and of `report` over a record, whole and without its sentences."""
    files: Files = {}
    for verb, folder, words in (
        ("lint", root / INPUTS / "project", ("--isolated", "--no-cache", ".")),
        ("report", root / INPUTS / "run", ("events.jsonl",)),
    ):
        for style, suffix in FORMATS.items():
            text = _unstuck(folder, verb, "--format", style, *words)
            text = text.replace(str(root), "ROOT").replace(unstuck.__version__, "VERSION")
            if style in ("json", "sarif"):
                document = _without_pages(json.loads(text))
                files[f"{verb}-{style}.facts.json"] = _pretty(_wordless(document))
                text = _pretty(document)
            files[f"{verb}-{style}.words.{suffix}"] = text
    return files


def _without_pages(document: Json) -> Json:
    """SARIF carries the page of every rule, and a change of a page shows itself."""
    for run in document.get("runs", ()):
        for rule in run["tool"]["driver"]["rules"]:
            rule["help"] = "…"
    return document


def _wordless(value: Any) -> Any:
    """With `…` for what has a blank in it, which is a sentence."""
    if isinstance(value, dict):
        return {key: _wordless(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_wordless(item) for item in value]
    return "…" if isinstance(value, str) and " " in value else value


def help_texts(root: Path) -> Files:
    """The help of each verb, and of it the options alone; the list of rules."""
    said = {"unstuck": _printed("--help")} | {verb: _printed(verb, "--help") for verb in commands()}
    facts = sorted(
        f"{verb} {option.strip()}"
        for verb, text in said.items()
        for option in re.findall(r"^  (-\S.*?)(?:  .*)?$", text, re.MULTILINE)
    )
    files: Files = {f"{verb}.words.txt": text for verb, text in said.items()}
    rules: list[Json] = json.loads(_printed("rules", "--format", "json"))
    known = [f"{rule['code']} {rule['name']} {rule['severity']} {','.join(rule['witnesses'])}" for rule in rules]
    files |= {"options.facts.txt": _lines(facts), "catalogue.facts.txt": _lines(sorted(known))}
    return files | {"catalogue.words.txt": _printed("rules")}


def _printed(*arguments: str) -> str:
    """What the command prints, in this process: starting twenty takes long."""
    out, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            command(arguments)
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update({"COLUMNS": columns} if columns else {})
    return out.getvalue()


def record(root: Path) -> Files:
    """The format of a record, event by event, and the public names of the package with their signatures."""
    from unstuck.events import RECORD_VERSION, AnyEvent
    from unstuck.findings import FORMAT_VERSION

    kinds = typing.get_args(AnyEvent)
    _, schema = msgspec.json.schema_components(kinds)
    whole = {
        "versions": {"record": RECORD_VERSION, "json": FORMAT_VERSION},
        "tags": {kind.__struct_config__.tag: kind.__name__ for kind in kinds},
        "events": _undescribed(schema),
    }
    homes = {"unstuck": unstuck} | {f"unstuck.{name}": getattr(unstuck, name) for name in _rooms()}
    names = [line for home, module in homes.items() for name in module.__all__ for line in _public(home, module, name)]
    return {"events.facts.json": _pretty(whole), "names.facts.txt": _lines(sorted(names))}


def _undescribed(schema: Any) -> Any:
    """A JSON schema without our docstrings."""
    if isinstance(schema, dict):
        return {key: _undescribed(item) for key, item in schema.items() if key != "description" or type(item) is dict}
    return [_undescribed(item) for item in schema] if isinstance(schema, list) else schema


def _rooms() -> list[str]:
    return [
        name
        for name in unstuck.__all__
        if inspect.ismodule(room := getattr(unstuck, name)) and hasattr(room, "__all__")
    ]


def _public(home: str, module: Any, name: str) -> Iterator[str]:
    item = getattr(module, name)
    listed = isinstance(item, type) and issubclass(item, enum.Enum)  # called as every Python's enum is
    yield f"{home}.{name}{'' if listed else _signature(item)}"
    if isinstance(item, type):
        for member in sorted(dir(item)):
            if not member.startswith("_") and not hasattr(BaseException, member):
                value = inspect.getattr_static(item, member)
                value = value.value if isinstance(value, enum.Enum) else value
                yield f"{home}.{name}.{member}{_signature(getattr(value, '__func__', value))}"


def _signature(item: Any) -> str:
    if isinstance(item, str | int | float):
        return "" if item == unstuck.__version__ else f" = {item!r}"
    try:
        text = str(inspect.signature(item))
    except (TypeError, ValueError):
        return ""
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])| at 0x\w+", "", text)  # classes without the module they are in


PARTS: dict[str, Callable[[Path], Files]] = {
    "help": help_texts,
    "record": record,
    "documents": documents,
    "lint": lint,
    "pages": pages,
}
