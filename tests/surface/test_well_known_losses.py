"""The losses of examples/surface, each with the verdict an expert would give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import unstuck
from unstuck.findings.surface import Surface

FILE = Path(__file__).parents[2] / "examples" / "surface" / "losses.py"


@pytest.fixture(scope="module")
def losses() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_losses", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(surface: Surface) -> dict[str, str]:
    return {finding.code: finding.severity.value for finding in surface.findings}


WELL = {"S06": "advice"}


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("cross_entropy", {}, WELL),
        ("cross_entropy", {"desired": {"right": (3, 6), "wrong": (-6, -3)}}, WELL),
        ("focal", {}, WELL),
        ("hinge", {}, WELL),
        ("huber", {}, WELL),
        ("log_cosh", {}, WELL),
        ("info_nce", {}, WELL),
        ("triplet", {}, WELL),
        ("triplet", {"desired": {"d_positive": (0, 0.25)}}, {"S01": "error", "S04": "error"}),
        ("collapsing_triplet", {"at": [(0, 0)]}, {"S03": "warning"}),
        ("product_barrier", {}, {"S03": "warning"}),
        ("dpo", {}, WELL),
        ("gradient_penalty", {}, {"S05": "error"}),
        ("dice", {}, WELL),
        ("dice_without_object", {}, {"S01": "error", "S05": "error"}),
        ("kl", {}, {"S05": "error"}),
        ("guarded_kl", {}, WELL),
    ],
)
def test_verdicts(losses: ModuleType, name: str, options: dict[str, Any], wanted: dict[str, str]) -> None:
    surface = unstuck.surface(getattr(losses, name), **options)
    assert verdict(surface) == wanted
    assert surface.method == "vectorised"
    assert surface.disagreements == ()
    assert surface.place is not None
    assert surface.place.path == str(FILE)


def test_the_kink_of_the_hinge_and_the_seam_of_hubers(losses: ModuleType) -> None:
    assert [round(region.high[0], 1) for region in unstuck.surface(losses.hinge).kinks] == [1.0]
    assert unstuck.surface(losses.huber).kinks == ()


def test_the_product_is_shown_in_log_space(losses: ModuleType) -> None:
    surface = unstuck.surface(losses.product_barrier)
    assert surface.product == ("violation", "weight")
    assert surface.remedy is not None
    assert surface.remedy.steepness[40, 40] > 50 * surface.steepness[40, 40]
