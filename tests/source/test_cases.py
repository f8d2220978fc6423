"""Scripts in the style of real projects: lines that carry `# finding: name` are reported, and no others.

Advice may stand beside: old cases are not about the habits that later rules comment on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.findings import Severity
from unstuck.judge import judge
from unstuck.page import Example
from unstuck.rule import all_rules
from unstuck.source import read_script

CASES = Path(__file__).parent / "cases"
SCRIPTS = sorted(CASES.rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(CASES).as_posix())
def test_lint_marks_exactly_the_marked_lines(path: Path) -> None:
    example = Example(section="", variant="", code=path.read_text(encoding="utf-8"), line=1)
    expected = {(rule.name, line) for rule in all_rules() for line in example.marked_lines(rule.name)}
    verdict = judge(scripts=(read_script(path),))
    leads = [diagnosis.lead for diagnosis in verdict.diagnoses]
    here = [lead for lead in leads if lead.place and Path(lead.place.path).name == path.name]
    found = {(lead.name, lead.place.line): lead.severity for lead in here if lead.place}
    assert expected <= found.keys()
    assert {key for key, severity in found.items() if severity is not Severity.ADVICE} <= expected
    assert expected or all(lead.severity is Severity.ADVICE for lead in leads)
    assert not verdict.failures
