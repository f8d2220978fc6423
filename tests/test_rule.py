"""Rules in folders, and variants: `X90/by-seven` works wherever `X90` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import unstuck.rules
from unstuck import cli, rule as catalogue, testing
from unstuck.findings import Severity, Subject, Variant
from unstuck.integrations.flake8 import flake8_code
from unstuck.rule import Rule

Capture = pytest.CaptureFixture[str]

INIT = """
from unstuck.findings import Severity, Variant
from unstuck.rule import Rule

class Numbers(Variant):
    BY_SEVEN = "by-seven", "a loop whose length seven divides"
    BY_ELEVEN = "by-eleven", "a loop whose length eleven divides"

rule = Rule("X90", "odd-length", "a loop of an odd length", Severity.WARNING, variants=Numbers.titles())

from unstuck.rules.team.odd_length import source
"""
SOURCE = """
import re
from unstuck.events import Place
from unstuck.findings import Subject
from unstuck.rules.team.odd_length import Numbers, rule

@rule.in_source
def seen_in_source(script):
    for number, line in enumerate(script.lines, 1):
        for length in map(int, re.findall(r"range\\((\\d+)\\)", line)):
            variant = Numbers.BY_SEVEN if length % 7 == 0 else Numbers.BY_ELEVEN if length % 11 == 0 else None
            if variant:
                place = Place(script.path, number, 1, number, 2)
                words = dict(cause="So.", fix="Even.", subject=Subject("loop", "loop"))
                yield rule.finding("Odd.", **words, place=place, variant=variant)
"""
SCRIPT = """\
import torch

torch.manual_seed(0); model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(49):{mark}
    loss = torch.nn.functional.mse_loss(model(torch.randn(4, 2)), torch.randn(4, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for epoch in range(11):
    pass
"""
PAGE = f"""# X90 odd-length: a loop of an odd length

## What happens

Odd.

## Variants

### by-seven

Seven divides it.

### by-eleven

Eleven divides it.

## Why

Because.

## Fix

Take another.

## Sources

- None.

## Broken

```python
{SCRIPT.format(mark="  # finding: odd-length").replace("range(11)", "range(12)")}```

## Fixed

```python
{SCRIPT.format(mark="").replace("49", "48").replace("11", "12")}```
"""


@pytest.fixture(autouse=True)
def folder_rule(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A rule in a folder, in a family of its own beside ours."""
    home = tmp_path_factory.mktemp("rules")
    folder = home / "team" / "odd_length"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    for name, text in {"__init__.py": INIT, "source.py": SOURCE, "page.md": PAGE}.items():
        (folder / name).write_text(text)
    (home / "team" / "_silent").mkdir()
    (home / "team" / "only_runs").mkdir()
    (home / "team" / "only_runs" / "__init__.py").write_text("")
    monkeypatch.setattr(unstuck.rules, "__path__", [*unstuck.rules.__path__, str(home)])
    monkeypatch.chdir(tmp_path)
    forget()
    yield folder
    forget()


def forget() -> None:
    catalogue.all_rules.cache_clear()
    catalogue.own_rules.cache_clear()
    catalogue.source_rules.cache_clear()
    for name in [name for name in sys.modules if name.startswith("unstuck.rules.team")]:
        del sys.modules[name]


def lint(capsys: Capture, *arguments: str, mark: str = "") -> list[str]:
    Path("train.py").write_text(SCRIPT.format(mark=mark))
    cli.main(["lint", "train.py", "--format", "json", *arguments])
    return [f"{found['code']}/{found['variant']}" for found in json.loads(capsys.readouterr().out)["diagnoses"]]


SEVEN, ELEVEN = "X90/by-seven", "X90/by-eleven"


def test_a_rule_may_be_a_folder(folder_rule: Path) -> None:
    found = catalogue.find_rule("X90")
    assert found is not None
    assert (found.family, found.page) == ("team", folder_rule / "page.md")
    testing.check_rule(found)


def test_lint_does_not_import_a_folder_without_a_source_witness() -> None:
    assert "X90" in [rule.code for rule in catalogue.source_rules()]
    assert "unstuck.rules.team.odd_length" in sys.modules
    assert "unstuck.rules.team.only_runs" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "mark", "left"),
    [
        (["--select", "X90"], "", [SEVEN, ELEVEN]),
        (["--select", "X90/by-seven"], "", [SEVEN]),
        (["--select", "odd-length/by-eleven"], "", [ELEVEN]),
        (["--select", "X90", "--ignore", "X90/by-seven"], "", [ELEVEN]),
        (["--select", "X90"], "  # unstuck: ignore[X90/by-seven]", [ELEVEN]),
        (["--select", "X90"], "  # unstuck: ignore[odd-length/by_seven]", [ELEVEN]),
        (["--select", "X90"], "  # unstuck: ignore[X90]", [ELEVEN]),
        (["--select", "X90,U01"], "  # unstuck: ignore[X90/by-seven]", [ELEVEN]),
        (["--select", "X90,U01"], "  # unstuck: ignore[X90/by-eleven]", [SEVEN, ELEVEN, "U01/"]),
    ],
)
def test_a_variant_is_selected_and_ignored(arguments: list[str], mark: str, left: list[str], capsys: Capture) -> None:
    assert lint(capsys, *arguments, mark=mark) == left


def test_settings_know_variants(capsys: Capture) -> None:
    Path("pyproject.toml").write_text(
        '[tool.unstuck]\nselect = ["X90"]\nper-file-ignores = { "train.py" = ["X90/by-seven"] }\n'
        'severity = { "X90/by-eleven" = "advice" }\n'
    )
    Path("train.py").write_text(SCRIPT.format(mark=""))
    cli.main(["lint", "train.py", "--format", "json"])
    (found,) = json.loads(capsys.readouterr().out)["diagnoses"]
    assert (found["variant"], found["severity"]) == ("by-eleven", "advice")


def test_a_mistyped_variant_is_suggested(capsys: Capture) -> None:
    assert cli.main(["lint", ".", "--select", "X90/by-sevn"]) == 2
    assert "did you mean X90/by-seven?" in capsys.readouterr().err
    assert cli.main(["explain", "X90/by-sevn"]) == 2
    assert "did you mean X90/by-seven?" in capsys.readouterr().err


def test_explain_begins_with_the_variant(capsys: Capture, folder_rule: Path) -> None:
    cli.main(["explain", "X90/by-eleven"])
    page = capsys.readouterr().out
    assert page.index("## by-eleven\n\nEleven divides it.") < page.index("## What happens")
    assert page.count("Eleven divides it.") == 1
    (folder_rule / "page.md").write_text(PAGE.replace("## Variants", "## Other"))
    cli.main(["explain", "odd-length/by_eleven"])
    assert "## by-eleven\n\nA loop whose length eleven divides.\n" in capsys.readouterr().out


def test_reports_name_the_variant(capsys: Capture) -> None:
    lint(capsys, "--select", "X90")
    cli.main(["lint", "train.py", "--select", "X90"])
    assert "unstuck explain X90/by-seven" in capsys.readouterr().out
    cli.main(["lint", "train.py", "--select", "X90", "--format", "sarif"])
    run = json.loads(capsys.readouterr().out)["runs"][0]
    first = run["results"][0]
    assert first["ruleId"] == SEVEN
    assert first["properties"]["variant"] == "by-seven"
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "X90"
    assert flake8_code("X90").isalnum()


def test_a_variant_must_be_declared() -> None:
    class Known(Variant):
        SOME = "some", "some of them"

    rule = Rule("X91", "counting", "counting", Severity.ERROR, variants=Known.titles())

    def finding(variant: str) -> str:
        subject = Subject("loop", "loop")
        return rule.finding("1.", cause="2.", fix="3.", subject=subject, variant=variant).id

    assert finding(Known.SOME) == "X91/some"
    assert finding("") == "X91"
    with pytest.raises(ValueError, match="X91 declares no variant 'others'"):
        finding("others")
