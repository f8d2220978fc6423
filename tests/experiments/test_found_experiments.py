"""Experiments are found by their files, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from unstuck import experiments
from unstuck.diagnose.triage import experiments_in_order
from unstuck.experiments import all_experiments, find_experiment

NEW = """
from unstuck.experiments import experiment

@experiment("does anything happen?", "Wait and see.", order=0)
def waiting(context, changes=()):
    ...
"""
FOUND = """
import sys

from unstuck import experiments

experiments.__path__.append(sys.argv[1])
first, *others = experiments.all_experiments()
print(first.name, first.question, len(others), "torch" in sys.modules)
"""


def test_every_file_with_the_decorator_is_an_experiment() -> None:
    folder = Path(experiments.__file__).parent
    decorated = {file.stem for file in folder.glob("*.py") if "\n@experiment(" in file.read_text(encoding="utf-8")}
    assert decorated == {kind.name for kind in all_experiments()}
    assert all(find_experiment(name) for name in decorated)
    assert find_experiment("notebook") is None


def test_a_new_file_is_all_that_a_new_experiment_needs(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(NEW)
    done = subprocess.run([sys.executable, "-c", FOUND, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == f"waiting does anything happen? {len(all_experiments())} False\n", done.stderr


def test_a_diagnosis_runs_the_quick_ones_first_and_no_seeds() -> None:
    names = [kind.name for kind in experiments_in_order()]
    quick = ["independence", "causality", "relations", "data"]
    assert names == [*quick, "layers", "overfit", "baseline", "gap", "ablate", "lr", "optimizer", "isolate"]
