"""M28: a statement that looks like a part of the training and does nothing."""

from __future__ import annotations

from unstuck.findings import Severity, Variant
from unstuck.rule import Rule, find_in


class Idle(Variant):
    """What is missing."""

    NOT_CALLED = "not-called", "a method is named but not called"
    NOT_ENTERED = "not-entered", "a context manager is made but not entered"
    RESULT_UNUSED = "result-unused", "the result of a layer or an operation in forward() is not used"


rule = Rule(
    code="M28",
    name="statement-without-effect",
    title="a statement that does nothing",
    severity=Severity.ERROR,
    explains=("M06", "O01", "O04", "O05"),
    variants=Idle.titles(),
)

rule.in_source(find_in("unstuck.rules.wiring.statement_without_effect.source"))
