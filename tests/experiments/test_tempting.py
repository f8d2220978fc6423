"""Healthy scripts that look as if a relation were broken: caches, queues, carried states, two views, other modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.experiments import findings_in
from unstuck.findings.relations import Relation, State, broken, worst
from unstuck.testing.experiments import experiment_on

SCRIPTS = sorted((Path(__file__).parent / "tempting").glob("*.py"))
FAST = ("boxes", "lm_state", "teacher")


@pytest.mark.parametrize(
    "script", [pytest.param(one, id=one.stem, marks=() if one.stem in FAST else pytest.mark.slow) for one in SCRIPTS]
)
def test_no_relation_is_called_broken(script: Path) -> None:
    done = experiment_on(script.read_text(encoding="utf-8"), "relations")
    assert [one.sentence for one in done.relations if one.state is State.BROKEN] == []
    assert findings_in(done) == []
    tested = {one.relation for one in done.relations}
    assert {Relation.STEADY, Relation.MODES, Relation.MOVES, Relation.STATE} <= tested  # or they say why not


def test_boxes_that_stay_where_they_are() -> None:
    code = next(one for one in SCRIPTS if one.stem == "boxes").read_text(encoding="utf-8")
    moved = "b[:, [0, 2]] = 32 - b[:, [2, 0]]"
    assert moved in code
    done = experiment_on(code.replace(moved, ""), "relations")
    assert broken(done.relations, Relation.MOVES)
    assert [finding.code for finding in findings_in(done)] == ["P06"]


def test_carried_state_is_not_judged_without_the_order_of_the_data() -> None:
    code = next(one for one in SCRIPTS if one.stem == "lm_state").read_text(encoding="utf-8")
    found = worst(experiment_on(code, "relations").relations, Relation.STATE)
    assert found is not None
    assert found.state is State.DOES_NOT_APPLY
    assert "may continue" in found.sentence
