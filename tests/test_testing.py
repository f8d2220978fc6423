"""The contract itself: it accepts a good rule, and says of a bad one what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unstuck import testing
from unstuck.events import LossCall, OptimizerStep, Place, Setup
from unstuck.findings import Finding, Severity, Subject
from unstuck.page import PageError, read_page
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.source import Script

PAGE = """# X01 seventeen-steps: a loop of seventeen steps

## What happens

Seventeen steps.

## Why

Because.

## Fix

Take eighteen.

## Sources

- None.

## Broken

Without the text, a run sees steps, not the loop.

```python
import torch

torch.manual_seed(0); model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(17):  # finding: seventeen-steps
    loss = torch.nn.functional.mse_loss(model(torch.randn(4, 2)), torch.randn(4, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # in run
```

## Fixed

```python
import torch

torch.manual_seed(0); model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(18):
    loss = torch.nn.functional.mse_loss(model(torch.randn(4, 2)), torch.randn(4, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```
"""


def make(tmp_path: Path, page: str = PAGE, name: str = "seventeen-steps", code: str = "X01") -> Rule:
    rule = Rule(code, name, "a loop of seventeen steps", Severity.ADVICE)
    rule.page = tmp_path / "seventeen_steps.md"
    rule.page.write_text(page)

    def finding(place: Place | None) -> Finding:
        return rule.finding("17.", cause="17.", fix="18.", subject=Subject("loop", "loop"), place=place)

    @rule.in_source
    def seen_in_source(script: Script) -> Iterator[Finding]:
        for number, line in enumerate(script.lines, 1):
            if "range(17)" in line:
                yield finding(Place(script.path, number))

    @rule.in_run
    def seen_in_run(record: Record) -> Iterator[Finding]:
        steps = list(record.of(OptimizerStep))
        if len(steps) == 17:
            yield finding(steps[-1].place)

    return rule


def test_a_good_rule_of_a_third_party_passes(tmp_path: Path) -> None:
    testing.check_rule(make(tmp_path))


Change = Callable[[Path], Rule]


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        (lambda path: make(path, code="x1"), "a code is letters and digits"),
        (lambda path: make(path, name="seventeenSteps"), "not in kebab-case"),
        (lambda path: make(path, name="other-name"), "its files must be called other_name.py"),
        (
            lambda path: make(path, PAGE.replace("X01", "X02")),
            "must begin with `# X01 seventeen-steps: a loop",
        ),
        (lambda path: make(path, PAGE.replace("- None.\n", "")), "has nothing under `## Sources`"),
        (lambda path: make(path, PAGE.replace("## Why", "## Whither")), "has nothing under `## Why`"),
        (lambda path: make(path, PAGE.removesuffix("```\n")), "the code block is never closed"),
        (
            lambda path: make(path, PAGE.replace("```python", "```pyton")),
            "no ```python block under `## Broken`",
        ),
        (lambda path: make(path, PAGE.replace("```python", "```python sauce")), "'sauce' is not a witness"),
        (
            lambda path: make(path, PAGE.replace("```python", "```python run")),
            "no example for the source witness",
        ),
        (lambda path: make(path, PAGE.replace("  # finding: seventeen-steps", "")), "mark the guilty line"),
        (
            lambda path: make(path, PAGE.replace("Without the text,", "In a run,")),
            "must say under `## Broken` why: `Without the text",
        ),
        (lambda path: make(path, PAGE.replace("(18)", "(17)")), "must say nothing, but says:\n  line 5: X01"),
        (
            lambda path: make(path, PAGE.replace("(17)", "(16)")),
            "must mark line 5 of the block, but marks no line",
        ),
    ],
)
def test_a_bad_rule_is_told_what_to_change(tmp_path: Path, change: Change, explanation: str) -> None:
    with pytest.raises(AssertionError) as refused:
        testing.check_rule(change(tmp_path))
    assert explanation in str(refused.value)


@pytest.mark.parametrize(
    ("mark", "explanation"),
    [
        ("", "the record alone must name line 5 of the block, not line 9 of the block; correct the rule, or"),
        ("  # not in run", "the record alone must name no line, not line 9 of the block"),
    ],
)
def test_a_record_that_names_another_line_than_declared(tmp_path: Path, mark: str, explanation: str) -> None:
    rule = make(tmp_path, PAGE.replace("  # in run", mark))
    with pytest.raises(AssertionError) as refused:
        testing.check_run(rule, read_page(rule.page).examples[0])
    assert explanation in str(refused.value)


def test_a_rule_nobody_can_see() -> None:
    with pytest.raises(AssertionError, match="X01 has no witness"):
        testing.check_identity(Rule("X01", "seventeen-steps", "a loop of seventeen steps", Severity.ADVICE))


def test_an_example_that_crashes_unasked(tmp_path: Path) -> None:
    rule = make(tmp_path, PAGE.replace("(0); model =", "(0); modle =", 1))
    with pytest.raises(AssertionError, match=r"crashed: NameError: .*Write run=crash"):
        testing.check_run(rule, read_page(rule.page).examples[0])


def test_an_example_that_was_to_crash(tmp_path: Path) -> None:
    rule = make(tmp_path, PAGE.replace("```python", "```python run=crash"))
    with pytest.raises(AssertionError, match="was to crash"):
        testing.check_run(rule, read_page(rule.page).examples[0])


def test_a_setup_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.replace("```python", "```python setup").replace("import torch", "def objects():\n    return {}\n#", 2)
    rule = make(tmp_path, page)
    seen: list[Any] = []

    @rule.in_setup
    def seen_in_setup(setup: Setup) -> Iterator[Finding]:
        seen.append(setup)
        yield from ()

    from unstuck.check import objects as preflight

    def fake_check(**objects: object) -> preflight.Report:
        return preflight.Report(preflight.judge(setup=Setup(losses=(LossCall(),)), rules=[rule]))

    monkeypatch.setattr(preflight, "check", fake_check)
    broken, fixed = read_page(rule.page).examples
    assert broken.is_setup
    with pytest.raises(AssertionError, match="check on the broken example must find X01"):
        testing.check_setup(rule, _only_objects(broken))
    testing.check_setup(rule, _only_objects(fixed))
    assert len(seen) == 2


def _only_objects(example: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(example, code="def objects():\n    return {}\n")


def test_a_page_is_read(tmp_path: Path) -> None:
    rule = make(tmp_path, PAGE.replace("## Fixed\n", "## Fixed\n\n### with eighteen\n"))
    page = read_page(rule.page)
    assert page.title == "X01 seventeen-steps: a loop of seventeen steps"
    broken, fixed = page.examples
    assert (broken.section, broken.variant, broken.marked_lines("seventeen-steps")) == ("Broken", "", {5})
    assert (fixed.section, fixed.variant, fixed.marked_lines("seventeen-steps")) == (
        "Fixed",
        "with eighteen",
        set(),
    )
    assert rule.page.read_text().splitlines()[broken.line - 1] == "import torch"


def test_a_page_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"nowhere.md is missing"):
        read_page(tmp_path / "nowhere.md")
