"""Writes the pair of a new rule: the Python file and its page, or a folder with both."""

from __future__ import annotations

import re
from pathlib import Path

from unstuck.dev.common import Refusal
from unstuck.rule import all_rules

FAMILIES = (
    "convergence",
    "data",
    "distributed",
    "games",
    "gradients",
    "recipe",
    "relations",
    "surface",
    "targets",
    "wiring",
)

CODE = '''"""{code} {name}: see the page next to this file."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.source import Script

rule = Rule("{code}", "{name}", "say the pitfall in half a sentence", Severity.ERROR)

CAUSE = "Say in one sentence why this keeps the run from learning."
FIX = "Say what to change."


@rule.in_source
def seen_in_source(script: Script) -> Iterator[Finding]:
    """Yield a finding for each guilty line of the script's text."""
    yield from ()


@rule.in_run
def seen_in_run(record: Record) -> Iterator[Finding]:
    """Yield a finding for each thing the run did wrong, in the numbers of the run."""
    if record.losses and record.losses[-1][1] < 0:
        yield rule.finding(
            f"The loss ended at {{record.losses[-1][1]:.4g}}.",
            cause=CAUSE,
            fix=FIX,
            subject=Subject("loss", "loss"),
            evidence=[Evidence("last loss", record.losses[-1][1], threshold=0.0)],
        )
'''

PAGE = """# {code} {name}: say the pitfall in half a sentence

## What happens

What the user sees: the symptom, in the words they would search for.

## Why

The mechanism, in a few sentences and with numbers that were measured.

## Fix

What to change, as code.

## Sources

- The documentation, paper or issue that says so.

## Broken

```python
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 4), torch.randn(64, 1)
for step in range(20):
    loss = torch.nn.functional.mse_loss(model(x), y)  # finding: {name}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```

## Fixed

```python
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 4), torch.randn(64, 1)
for step in range(20):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
```
"""

NEXT = """Wrote {code_file}
      {page_file}

Next:
  1. Write the page: the broken example first, with `# finding: {name}` on the guilty line.
  2. Write the witnesses until `pytest tests/rules -k {code}` passes; delete the one you do not need.
  3. make tables && make test
"""


def main(root: Path, code: str, name: str, family: str, *, as_folder: bool = False) -> int:
    """Write the two files and say what comes next."""
    _check_words(code, name, family)
    folder = root / "src" / "unstuck" / "rules" / family
    stem = name.replace("-", "_")
    single, large = (f"{stem}.py", f"{stem}.md"), (f"{stem}/__init__.py", f"{stem}/page.md")
    pair = dict(zip((folder / name for name in (large if as_folder else single)), (CODE, PAGE), strict=True))
    for path in (folder / name for name in (*single, *large)):
        if path.exists():
            raise Refusal(f"{path.relative_to(root)} is already there and was left as it is.")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "__init__.py").exists():
        (folder / "__init__.py").write_text("", encoding="utf-8")
    for path, template in pair.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(template.format(code=code, name=name), encoding="utf-8")
    code_file, page_file = (path.relative_to(root) for path in pair)
    print(NEXT.format(code=code, name=name, code_file=code_file, page_file=page_file), end="")
    return 0


def _check_words(code: str, name: str, family: str) -> None:
    if not re.fullmatch(r"[A-Z]{1,3}\d{2,3}", code):
        raise Refusal(f"{code!r} is not a code: write a capital letter and two digits, such as O12.")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise Refusal(f"{name!r} is not a name: write the pattern in kebab-case, such as double-softmax.")
    if family not in FAMILIES:
        raise Refusal(f"{family!r} is not a family: choose one of {', '.join(FAMILIES)}.")
    taken = next((rule for rule in all_rules() if code == rule.code or name == rule.name), None)
    if taken:
        raise Refusal(f"{taken.code} {taken.name} is already in the catalogue, in {taken.family}.")
