"""`unstuck diagnose` on broken scripts in the style of real projects, and on their fixed twins.

Each folder here holds `broken.py` and `fixed.py` and is named after the rule that is the true cause. A few are tried
with every change; all of them by `make test-all`, where the shares that the project promises are asserted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CASES = sorted(folder for folder in HERE.glob("[A-Z]*_*") if folder.is_dir())
QUICK = ("O04_never_cleared",)


def diagnosed(script: Path, folder: Path, budget: str = "3m") -> dict[str, Any]:
    shutil.copy(script, folder / "train.py")
    command = [sys.executable, "-m", "unstuck", "diagnose", "--json", "--quiet", "--budget", budget, "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 40
    assert len({case.name.split("_")[0] for case in CASES}) >= 25
    for case in CASES:
        assert {file.name for file in case.glob("*.py")} == {"broken.py", "fixed.py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_cause_is_named_and_its_remedy_confirmed(name: str, tmp_path: Path) -> None:
    report = diagnosed(HERE / name / "broken.py", tmp_path)
    code = name.split("_")[0]
    assert report["principal"] == code
    assert {proof["code"]: proof["verdict"] for proof in report["proofs"]}[code] == "confirmed"
    assert report["diagnoses"][0]["verify"]["command"]


@pytest.mark.slow
def test_nearly_all_causes_are_named_first_and_nearly_all_remedies_confirmed(tmp_path: Path) -> None:
    first, provable, confirmed = [], [], []
    for case in CASES:
        folder = tmp_path / case.name
        folder.mkdir()
        report = diagnosed(case / "broken.py", folder)
        code = case.name.split("_")[0]
        if report["principal"] == code:
            first.append(case.name)
            proofs = {proof["code"]: proof["verdict"] for proof in report["proofs"]}
            provable += [case.name] if code in proofs else []
            confirmed += [case.name] if proofs.get(code) == "confirmed" else []
    missed = {case.name for case in CASES} - set(first)
    assert len(first) >= 0.95 * len(CASES), missed
    assert len(confirmed) >= 0.9 * len(provable), set(provable) - set(confirmed)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fixed_script_gets_no_error(case: Path, tmp_path: Path) -> None:
    report = diagnosed(case / "fixed.py", tmp_path)
    assert report["counts"]["error"] == 0, [d["message"] for d in report["diagnoses"]]
