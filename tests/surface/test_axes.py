"""Axes as they are given, and as a signature suggests them."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import unstuck
from unstuck.surface.loss import SurfaceError


def loss(margin: Tensor, temp: Tensor, target: float = 0.0, scale: float = 1.0) -> Tensor:
    return F.softplus((target - margin) / temp) * scale


def spans(*arguments: Any, **options: Any) -> list[tuple[str, float, float, int]]:
    surface = unstuck.surface(*arguments, **{"points": 9, **options})
    return [(axis.name, round(axis.low, 6), round(axis.high, 6), len(axis.points)) for axis in surface.axes]


def test_a_tuple_a_text_and_a_bare_range() -> None:
    wanted = [("margin", -3, 3, 9), ("temp", 0.1, 1, 9)]
    assert spans(loss, ("margin", -3, 3), ("temp", 0.1, 1)) == wanted
    assert spans(loss, "margin=-3:3", "temp=0.1:1") == wanted
    assert spans(loss, (-3, 3), (0.1, 1)) == wanted
    assert spans(loss, "-3:3", "0.1:1") == wanted
    assert spans(loss, ("margin", -3, 3, 5), "temp=0.1:1:7") == [("margin", -3, 3, 5), ("temp", 0.1, 1, 7)]


def test_axes_come_from_the_signature_when_none_are_given() -> None:
    assert spans(loss) == [("margin", -3, 3, 9), ("temp", 0.01, 1, 9)]
    assert spans(lambda p: -torch.log(p)) == [("p", 0, 1, 9)]
    assert spans(lambda pos, neg: neg - pos) == [("pos", -1, 1, 9), ("neg", -1, 1, 9)]


def test_an_annotation_gives_the_range() -> None:
    def annotated(a: Annotated[Tensor, -7, 8], b: Annotated[Tensor, (0, 2)]) -> Tensor:
        return a * b

    annotated.__annotations__ = {"a": Annotated[Tensor, -7, 8], "b": Annotated[Tensor, (0, 2)]}
    assert spans(annotated) == [("a", -7, 8, 9), ("b", 0, 2, 9)]


def test_a_loss_with_nothing_but_defaults_is_drawn_around_them() -> None:
    def tuned(alpha: float = 2.0) -> Tensor:
        return torch.as_tensor(alpha) ** 2

    assert spans(tuned) == [("alpha", 0, 4, 9)]


def test_a_target_must_be_fixed() -> None:
    with pytest.raises(SurfaceError, match="mse_loss also needs 'target'; fix it at a value"):
        unstuck.surface(F.mse_loss)
    assert spans(F.mse_loss, fixed={"target": 0.0}) == [("input", -3, 3, 9)]


def test_a_line_has_more_points_than_a_plane_has_along_an_axis() -> None:
    assert unstuck.surface(lambda error: error**2).value.shape == (400,)
    assert unstuck.surface(loss).value.shape == (80, 80)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"x": ("margin", 3, -3)}, "the range of margin is empty: 3 is not below -3"),
        ({"x": ("margin", 1, 1)}, "the range of margin is empty"),
        ({"x": ("margin", 0, float("inf"))}, "the range of margin must be finite"),
        ({"x": "margin=a:b"}, "'margin=a:b' is not an axis; write name=low:high"),
        ({"x": ("margin", 1)}, "an axis is"),
        ({"x": ("margin", 0, 1, 2)}, "margin needs at least 3 points"),
        ({"x": ("margin", 0, 1), "y": ("margin", 0, 1)}, "both axes are called 'margin'"),
        ({"fixed": {"tmep": 1.0}}, "loss has no input 'tmep' to fix; it takes margin, temp"),
        ({"x": "margin", "y": "temp", "at": [(0,)]}, "has 1 coordinates, but there are 2 axes"),
        ({"desired": {"magrin": (0, 1)}}, "names 'magrin', which is none of the axes margin, temp"),
        ({"desired": {"margin": (8, 9)}}, "the desired region holds no point of the grid"),
        ({"dtype": "int32"}, "'int32' is not a floating-point type"),
        ({"x": ("margin[0]", 0, 1)}, "as an axis needs the other elements"),
    ],
)
def test_bad_input_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SurfaceError, match=sentence):
        unstuck.surface(loss, **options)
