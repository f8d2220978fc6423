"""The plugin in the real flake8."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flake8.defaults import VALID_CODE_PREFIX
from training_scripts import BROKEN, FIXED, Command

from unstuck.integrations.flake8 import flake8_code
from unstuck.rule import all_rules

FOUND = "11:16: UNO012 double-softmax: cross_entropy is given the output of softmax, so softmax is applied twice."


def test_flake8_shows_it_without_being_told_to(python_module: Command) -> None:
    Path("train.py").write_text(BROKEN)
    Path("good.py").write_text(FIXED)
    done = python_module("flake8", "train.py", "good.py")
    assert (done.stdout, done.stderr, done.returncode) == (f"train.py:{FOUND}\n", "", 1)


def test_from_stdin(python_module: Command) -> None:
    done = python_module("flake8", "--stdin-display-name", "some/train.py", "-", text=BROKEN)
    assert done.stdout == f"some/train.py:{FOUND}\n"


@pytest.mark.parametrize("option", ["--extend-ignore=UNO012", "--extend-ignore=UN", "--select=UNG"])
def test_flake8_can_be_told_to_leave_it_out(python_module: Command, option: str) -> None:
    Path("train.py").write_text(BROKEN)
    assert python_module("flake8", option, "train.py").stdout == ""


@pytest.mark.parametrize("comment", ["# noqa: UNO012", "# unstuck: ignore[O12]"])
def test_a_comment_silences_it(python_module: Command, comment: str) -> None:
    Path("train.py").write_text(BROKEN.replace("dim=1)", f"dim=1)  {comment}"))
    assert python_module("flake8", "train.py").stdout == ""


def test_the_settings_of_the_project_hold(python_module: Command) -> None:
    Path("train.py").write_text(BROKEN)
    Path("pyproject.toml").write_text('[tool.unstuck]\nselect = ["G01"]\n')
    assert python_module("flake8", "train.py").stdout == ""
    Path("pyproject.toml").write_text('[tool.unstuck]\nignore = ["O99x"]\n')
    done = python_module("flake8", "train.py")
    assert "Traceback" not in done.stderr
    assert "unstuck: pyproject.toml: [tool.unstuck] ignore: there is no rule 'O99x'" in done.stdout
    assert done.returncode == 1


def test_a_mistake_in_an_imported_file_is_shown_where_it_is_used(python_module: Command) -> None:
    model, training = BROKEN.split("\n\n\nmodel = ")
    Path("model.py").write_text(model + "\n")
    Path("train.py").write_text(f"import torch\nfrom model import Net\nfrom torch import nn\n\nmodel = {training}")
    done = python_module("flake8", "train.py", "model.py")
    assert done.stdout.startswith("train.py:9:12: UNO012 double-softmax: ")
    assert done.stdout.endswith(" (see model.py:11)\n")


def test_every_code_is_one_that_flake8_takes() -> None:
    codes = [flake8_code(rule.code) for rule in all_rules()]
    assert len(set(codes)) == len(codes)
    for code in [*codes, flake8_code("vendor-7")]:
        assert VALID_CODE_PREFIX.match(code)
        assert re.fullmatch(r"UN[A-Z]\d{3}", code)
