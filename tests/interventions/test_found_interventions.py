"""Interventions are found by their files, decoded by their tags, and named without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from unstuck import interventions
from unstuck.interventions import Intervention, all_interventions, any_intervention, in_words

VALUES = {
    "bool": True,
    "int": 3,
    "float": 0.5,
    "str": "eps",
    "Form": "log",
    "Inputs": "zeros",
    "Layout": "[N, H, W, C]",
    "Mix": "pick",
    "tuple[Edit, ...]": (),
}

NEW = """
from unstuck.interventions.base import Intervention

class HalveEverything(Intervention, frozen=True):
    often: int

    @property
    def words(self):
        return "everything halved"
"""
FOUND = """
import sys

from unstuck import interventions
from unstuck.trials.trial import Trial

interventions.__path__.append(sys.argv[1])
found = interventions.all_interventions
found.cache_clear()
import msgspec
decoded = msgspec.convert({"change": "halve-everything", "often": 2}, interventions.any_intervention())
print(decoded.words, decoded == interventions.HalveEverything(2), "torch" in sys.modules)
"""


def an_instance(kind: type[Intervention]) -> Intervention:
    return kind(*(VALUES[str(kind.__annotations__[field])] for field in kind.__struct_fields__[: required(kind)]))


def required(kind: type[Intervention]) -> int:
    return len(kind.__struct_fields__) - len(kind.__struct_defaults__)


@pytest.mark.parametrize("kind", all_interventions().values(), ids=all_interventions())
def test_every_intervention_survives_the_way_to_a_trial_and_has_words(kind: type[Intervention]) -> None:
    change = an_instance(kind)
    assert msgspec.convert(msgspec.to_builtins(change), any_intervention()) == change
    assert in_words([change, change]) == f"{change.words} and {change.words}" != " and "


def test_a_new_file_is_all_that_a_new_intervention_needs(tmp_path: Path) -> None:
    (tmp_path / "halve.py").write_text(NEW)
    done = subprocess.run([sys.executable, "-c", FOUND, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "everything halved True False\n", done.stderr


def test_a_name_that_is_none_is_an_error() -> None:
    with pytest.raises(AttributeError, match="there is no intervention Nothing"):
        interventions.Nothing  # noqa: B018
