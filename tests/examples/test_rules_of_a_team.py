"""Rules of other packages: installed with an entry point, known to every command, harmless when broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rules_of_a_team"
BROKEN = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(20):
    loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"epoch": epoch, "model": model.state_dict()}, "checkpoint.pt")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the package and its dist-info."""
    folder = tmp_path / "site"
    shutil.copytree(EXAMPLE / "rules_of_a_team", folder / "rules_of_a_team")
    entries = (EXAMPLE / "pyproject.toml").read_text().partition('[project.entry-points."unstuck.rules"]')[2]
    install(folder, "rules_of_a_team-1.0", entries)
    (tmp_path / "train.py").write_text(BROKEN)
    return folder


def install(folder: Path, name: str, entries: str) -> None:
    information = folder / f"{name}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.partition('-')[0]}\nVersion: 1.0\n")
    values = [line for line in entries.splitlines() if " = " in line]
    (information / "entry_points.txt").write_text("\n".join(["[unstuck.rules]", *values]).replace('"', "") + "\n")


def unstuck(site: Path, *arguments: str, code: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "unstuck", *arguments]
    done = subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_rule_is_known_to_every_command(site: Path) -> None:
    found = unstuck(site, "lint", "train.py", "--fail-on", "warning", "--format", "concise", code=1)
    assert "train.py:11:5: T01 warning checkpoint-without-optimizer" in found.stdout
    assert unstuck(site, "lint", "train.py", "--select", "O", code=0).stdout.startswith("Nothing found")
    assert "T01" in unstuck(site, "rules", code=0).stdout
    assert unstuck(site, "explain", "T01", code=0).stdout.startswith("# T01 checkpoint-without-optimizer: a checkpoint")


def test_a_broken_rule_costs_one_sentence(site: Path) -> None:
    (site / "odd.py").write_text("import sys; sys.exit(3)")
    (site / "copied.py").write_text(
        "from unstuck.findings import Severity; from unstuck.rule import Rule\n"
        "rule = Rule('O12', 'mine', 'mine', Severity.ERROR)"
    )
    install(site, "odd-1.0", "X01 = odd\nX02 = missing_module:rule\nX03 = os\nX04 = copied")
    done = unstuck(site, "lint", "train.py", "--format", "concise", code=0)
    assert "T01 warning" in done.stdout
    said = done.stderr.splitlines()
    assert [line.partition(" is left out: ")[0].split()[3] for line in said] == ["X01", "X02", "X03", "X04"]
    assert said[1] == (
        "unstuck: the rule X02 of missing_module:rule is left out: "
        "ModuleNotFoundError: No module named 'missing_module'"
    )
    assert "O12 double-softmax is a rule of unstuck" in said[3]


def test_a_changed_rule_is_asked_again(site: Path) -> None:
    (site.parent / "long.py").write_text(BROKEN + "# a long file\n" * 2000)
    assert "T01" in unstuck(site, "lint", "long.py", "--format", "concise", code=0).stdout
    module = site / "rules_of_a_team" / "checkpoint_without_optimizer.py"
    module.write_text(module.read_text().replace("the progress, but no state", "an epoch, but no state"))
    assert "and an epoch, but" in unstuck(site, "lint", "long.py", "--format", "concise", code=0).stdout


@pytest.mark.slow
def test_the_package_tests_itself(site: Path) -> None:
    test = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(EXAMPLE / "tests")]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(test, cwd=site.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
