"""Every pattern of the catalogue: recognised on a loss that has it, and not on one that has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import unstuck
from unstuck.findings import Severity
from unstuck.findings.surface import Stationary, Surface


def codes(surface: Surface) -> set[str]:
    return {finding.code for finding in surface.findings}


def message(surface: Surface, code: str) -> str:
    return next(finding.message for finding in surface.findings if finding.code == code)


def plane(loss: Any, reach: float = 1.0, **options: Any) -> Surface:
    return unstuck.surface(loss, ("a", -reach, reach), ("b", -reach, reach), **options)


def test_a_dead_zone_has_a_share_and_a_box() -> None:
    def plateau(a: Tensor, b: Tensor) -> Tensor:
        return torch.where((a > 0) & (b > 0), torch.ones_like(a), a**2 + b**2)

    surface = plane(plateau)
    (zone,) = [region for region in surface.dead if region.value == 1]
    assert zone.share == pytest.approx(0.25, abs=0.01)
    assert np.allclose(zone.low, 0, atol=0.03)
    assert np.allclose(zone.high, 1)
    assert "S01" in codes(surface)
    assert "no gradient over 25 % of the plane: a from" in message(surface, "S01")


def test_separate_dead_zones_are_separate_regions() -> None:
    surface = unstuck.surface(lambda x: (x**2).clamp(max=1), ("x", -3, 3))
    assert [round(region.share, 2) for region in surface.dead] == [0.33, 0.33]
    assert surface.dead[0].high[0] < surface.dead[1].low[0] or surface.dead[1].high[0] < surface.dead[0].low[0]


def test_a_floor_is_dead_only_outside_the_desired_region() -> None:
    def hinge(margin: Tensor) -> Tensor:
        return torch.relu(1 - margin)

    assert codes(unstuck.surface(hinge, ("margin", -3, 3))) == {"S06"}
    assert codes(unstuck.surface(hinge, ("margin", -3, 3), desired={"margin": (1, 3)})) == {"S06"}
    assert codes(unstuck.surface(hinge, ("margin", -3, 3), desired={"margin": (2, 3)})) == {"S01", "S04"}


@pytest.mark.parametrize(("factor", "found"), [(1, False), (100, False), (2000, True)])
def test_imbalance_begins_at_a_thousand(factor: float, found: bool) -> None:
    surface = plane(lambda a, b: factor * a**2 + b**2)
    assert ("S02" in codes(surface)) == found


def test_imbalance_is_found_whichever_axis_is_steep() -> None:
    assert "along b is" in message(plane(lambda a, b: a**2 + 5000 * b**2), "S02")


def only(surface: Surface, kind: str) -> Stationary:
    (found,) = [point for point in surface.stationary if point.kind == kind]
    return found


def test_stationary_points_are_refined_beyond_the_grid() -> None:
    surface = plane(lambda a, b: (a - 0.1234) ** 2 + 3 * (b + 0.4321) ** 2, points=11)
    minimum = only(surface, "minimum")
    assert minimum.at == pytest.approx((0.1234, -0.4321), abs=1e-6)
    assert minimum.curvature == pytest.approx((2, 6), rel=1e-4)


def test_stationary_points_are_told_apart() -> None:
    def egg_box(a: Tensor, b: Tensor) -> Tensor:
        return torch.cos(a) + torch.cos(b)

    surface = plane(egg_box, 5, points=41)
    kinds = sorted(point.kind for point in surface.stationary)
    assert kinds == ["maximum"] + ["minimum"] * 4 + ["saddle"] * 4
    assert only(surface, "maximum").value == pytest.approx(2)
    assert plane(lambda a, b: (a - b) ** 2).stationary[0].kind == "degenerate"


def test_the_saddle_of_a_product_comes_with_its_log_space() -> None:
    surface = plane(lambda a, b: a * b, at=[(0, 0)])
    assert only(surface, "saddle").at == pytest.approx((0, 0), abs=1e-9)
    assert surface.product == ("a", "b")
    assert surface.remedy is not None
    corner = surface.remedy.gradient[:, 40, 79]
    assert abs(corner[1]) == pytest.approx(1 / 2, rel=0.05)  # 1 / (1 + |b|), however small a is
    assert "log space" in next(f.fix.text for f in surface.findings if f.code == "S03")


def test_positive_factors_are_added_as_plain_logarithms() -> None:
    surface = plane(lambda a, b: (0.2 + a**2) * (2 - b**2))
    assert surface.remedy is not None
    assert surface.remedy.value[0, 40] == pytest.approx(np.log(1.2) + np.log(2), abs=1e-3)


def test_a_product_inside_a_square_is_not_offered_what_would_change_its_meaning() -> None:
    surface = plane(lambda a, b: (a * b - 1) ** 2, 2)
    assert "S03" in codes(surface)
    assert surface.remedy is None


def test_a_saddle_between_two_minima_is_advice_unless_one_stands_on_it() -> None:
    def wells(a: Tensor, b: Tensor) -> Tensor:
        return (a**2 - 1) ** 2 + b**2

    def severity(**options: Any) -> Severity:
        return next(f.severity for f in plane(wells, 2, **options).findings if f.code == "S03")

    assert severity() is Severity.ADVICE
    assert severity(at=[(0.01, 0)]) is Severity.WARNING


def test_the_wrong_way_is_counted_in_starts() -> None:
    def contrast(a: Tensor, b: Tensor) -> Tensor:
        return F.softplus(b - a)

    right = plane(contrast, desired={"a": (0.5, 1), "b": (-1, -0.5)})
    assert codes(right) == {"S06"}
    assert right.arrivals is not None
    assert right.arrivals.ended == {"desired region": 1.0}
    wrong = plane(lambda a, b: contrast(b, a), desired={"a": (0.5, 1), "b": (-1, -0.5)})
    assert "S04" in codes(wrong)
    assert "from only 0 % of 144 starts" in message(wrong, "S04")


@pytest.mark.parametrize("desired", [(0.5, -0.5), lambda a, b: (a > 0.3) & (b < -0.3)])
def test_a_desired_region_is_a_point_or_a_function_too(desired: Any) -> None:
    surface = plane(lambda a, b: (a - 0.5) ** 2 + (b + 0.5) ** 2, desired=desired)
    assert codes(surface) == {"S06"}


def test_a_local_minimum_that_traps() -> None:
    surface = unstuck.surface(lambda x: (x**2 - 1) ** 2 + 0.3 * x, ("x", -2, 2))
    assert "S04" in codes(surface)
    assert "x = 0.96" in message(surface, "S04")


@pytest.mark.parametrize(
    ("loss", "shown", "left"),
    [
        (lambda p, q: -torch.log(p), "log(0)", 0),
        (lambda p, q: q / p, "/ 0", 0),
        (lambda p, q: 1 / p, "1 / 0", 0),
        (lambda p, q: torch.sqrt(p), "the gradient of sqrt", 0),
        (lambda p, q: torch.where(p > 0, p.log(), q), "the gradient of log", 0),
        (lambda p, q: torch.sqrt(p - 0.5), "sqrt(-", 0),
        (lambda p, q: torch.exp(100 * p), "exp(", 0),
        (lambda p, q: torch.acos(2 * p), "acos(", 0),
    ],
)
def test_a_non_finite_region_names_the_operation_and_the_guard_that_removes_it(
    loss: Any, shown: str, left: float
) -> None:
    surface = unstuck.surface(loss, ("p", 0, 1), ("q", 0.1, 1), points=21)
    culprit = surface.non_finite[0].culprit
    assert culprit is not None
    assert shown in culprit.shown
    assert culprit.guard
    assert culprit.left == left
    assert "S05" in codes(surface)
    assert shown in message(surface, "S05")


def test_the_guilty_line_is_named() -> None:
    def two_lines(p: Tensor) -> Tensor:
        doubled = 2 * p
        return doubled.log()

    culprit = unstuck.surface(two_lines, ("p", 0, 1)).non_finite[0].culprit
    assert culprit is not None
    assert culprit.place is not None
    assert culprit.place.line == two_lines.__code__.co_firstlineno + 2


def test_zero_is_looked_at_even_where_the_grid_has_no_point() -> None:
    surface = plane(lambda a, b: torch.sqrt(a**2 + b**2 + 0 * a), points=80)
    assert not surface.non_finite[0].cells.any()
    assert "not finite at a point: a = 0 and b = 0" in message(surface, "S05")


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: a.detach() ** 2 + b**2,
        lambda a, b: (a.detach() * a) + b**2,
        lambda a, b: (a + (a.round() - a).detach()) ** 2 + b**2,
    ],
)
def test_a_gradient_that_is_not_the_slope(loss: Any) -> None:
    surface = plane(loss, 2)
    assert "S07" in codes(surface)
    assert len(surface.disagreements) >= 3


@pytest.mark.parametrize("loss", [lambda a, b: a.abs() + b**2, lambda a, b: torch.relu(a) + 1e-6 * b, torch.maximum])
def test_kinks_are_no_disagreement(loss: Any) -> None:
    assert plane(loss).disagreements == ()


def test_kinks_are_found_where_they_are() -> None:
    surface = unstuck.surface(lambda x: torch.relu(x - 0.3) + x**2, ("x", -1, 1))
    (kink,) = surface.kinks
    assert kink.low[0] == pytest.approx(0.3, abs=0.01)
    diagonal = plane(lambda a, b: torch.relu(a - b))
    assert len(diagonal.kinks) == 1
    assert diagonal.kinks[0].low == pytest.approx((-1, -1), abs=0.03)
    assert diagonal.kinks[0].high == pytest.approx((1, 1), abs=0.03)
    assert plane(lambda a, b: torch.tanh(8 * a) + b**2).kinks == ()


def test_a_minimum_in_a_kink_is_advice() -> None:
    surface = unstuck.surface(lambda x: (x - 0.2).abs(), ("x", -1, 1))
    assert codes(surface) == {"S08"}
    assert only(surface, "minimum").at == pytest.approx((0.2,), abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "reach"),
    [
        (lambda a, b: a**2 + b**2, 1),
        (lambda a, b: F.softplus(b - a), 1),
        (lambda a, b: torch.log(1 + a**2 + b**2), 5),
        (lambda a, b: a - b, 1),
        (lambda a, b: F.smooth_l1_loss(a, b, reduction="none"), 3),
    ],
)
def test_a_good_loss_is_said_to_be_well_shaped_and_nothing_else(loss: Any, reach: float) -> None:
    surface = plane(loss, reach)
    assert codes(surface) == {"S06"}
    assert "its gradient leads from 100 % of 144 starts to its lowest value" in message(surface, "S06")


def test_a_loss_that_is_the_same_everywhere_is_not_praised() -> None:
    assert codes(plane(lambda a, b: 0 * a + 3)) == {"S01"}
