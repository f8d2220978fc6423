"""What docs/ci.md tells people to copy: it is valid, and its commands do what it says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import schemas
import yaml
from training_scripts import BROKEN, FIXED, Command

ROOT = Path(__file__).parents[2]
CI = ROOT / "examples" / "ci"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def notebook(code: str) -> str:
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": code}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def lint_commands(document: object) -> list[list[str]]:
    """Every `unstuck lint` in a file, as the words after `unstuck`."""
    if isinstance(document, str):
        return [shlex.split(line)[1:] for line in document.splitlines() if line.startswith("unstuck lint")]
    items = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return [words for item in items for words in lint_commands(item)]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("github.yml", schemas.GITHUB_WORKFLOW),
        ("gitlab.yml", schemas.GITLAB_CI),
        ("pre-commit-config.yaml", schemas.PRE_COMMIT_CONFIG),
    ],
)
def test_the_examples_are_valid(name: str, address: str) -> None:
    document = load(CI / name)
    document = {key if key is not True else "on": value for key, value in document.items()}  # YAML 1.1 reads on as true
    assert schemas.mistakes(document, address) == []


def test_the_github_workflow_annotates_then_uploads(python_module: Command) -> None:
    Path("train.py").write_text(BROKEN)
    annotate, write = lint_commands(load(CI / "github.yml"))
    done = python_module("unstuck", *annotate)
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=train.py,line=11,col=16,")
    assert python_module("unstuck", *write).returncode == 0
    uploaded = load(CI / "github.yml")["jobs"]["lint"]["steps"][-1]["with"]["sarif_file"]
    log = json.loads(Path(uploaded).read_text(encoding="utf-8"))
    assert schemas.mistakes(log, schemas.SARIF) == []
    assert [found["ruleId"] for found in log["runs"][0]["results"]] == ["O12"]


def test_the_gitlab_job_leaves_its_report_even_when_it_fails(python_module: Command) -> None:
    Path("train.py").write_text(BROKEN)
    job = load(CI / "gitlab.yml")["unstuck"]
    (words,) = lint_commands(job)
    assert python_module("unstuck", *words).returncode == 1
    root = ElementTree.fromstring(Path(job["artifacts"]["reports"]["junit"]).read_bytes())
    assert root.get("failures") == "1"


@pytest.mark.parametrize(("hook", "name"), [("unstuck", "train.py"), ("unstuck-jupyter", "train.ipynb")])
def test_a_pre_commit_hook_refuses_what_is_broken(python_module: Command, hook: str, name: str) -> None:
    def commit(code: str) -> tuple[int, str]:
        Path(name).write_text(notebook(code) if name.endswith(".ipynb") else code)
        done = python_module(*shlex.split(described["entry"]), *described.get("args", []), name)
        return done.returncode, done.stdout

    described = next(item for item in load(ROOT / ".pre-commit-hooks.yaml") if item["id"] == hook)
    assert described["language"] == "python"
    code, told = commit(BROKEN)
    assert code == 1
    assert "error O12 double-softmax" in told
    assert commit(FIXED)[0] == 0


def test_the_example_uses_hooks_that_exist() -> None:
    offered = {item["id"] for item in load(ROOT / ".pre-commit-hooks.yaml")}
    used = {hook["id"] for repo in load(CI / "pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    assert used == offered


def test_the_page_quotes_the_examples_as_they_are() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    for path in sorted(CI.iterdir()):
        assert f"../examples/ci/{path.name}" in page
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.S)
    examples = [path.read_text(encoding="utf-8") for path in CI.iterdir()]
    assert blocks
    for block in blocks:
        assert any(block.strip() in example for example in examples), block
