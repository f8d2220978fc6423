"""docs/losses.md: complete, up to date, and light."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "losses.md").read_text(encoding="utf-8")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_losses", DOCS / "make_losses.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_its_place() -> None:
    source = (DOCS.parent / "examples" / "surface" / "losses.py").read_text(encoding="utf-8")
    examples = re.findall(r"^def (\w+)", source, re.MULTILINE)
    assert set(re.findall(r"^`(\w+)`:", PAGE, re.MULTILINE)) == set(examples)
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 12


def test_every_picture_is_there_and_small_and_shown() -> None:
    shown = {DOCS / name for name in re.findall(r"\]\((pictures/\w+\.png)\)", PAGE)}
    assert shown == set((DOCS / "pictures").iterdir())
    assert [picture.name for picture in shown if picture.stat().st_size > 60_000] == []


@pytest.mark.slow
def test_the_verdicts_are_what_is_found_today() -> None:
    assert generator().page(draw=False) == PAGE, "docs/losses.md is out of date: python docs/make_losses.py"
