"""Curves in characters: what is drawn, where, and in which characters."""

from __future__ import annotations

import io
import sys

import pytest

from unstuck.findings.curve import Curve
from unstuck.findings.results import NamedCurve
from unstuck.report.plots import HEIGHT, plot
from unstuck.report.terminal import plain


def curve(label: str, *losses: float | None) -> NamedCurve:
    return NamedCurve(label, Curve(tuple(range(len(losses))), losses))


FALLING = curve("with", *(2.0 - i / 100 for i in range(150)))
FLAT = curve("without", *([2.0] * 150))


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("in_ascii", [True, False])
def test_it_fits_and_names_each_curve_where_it_ends(width: int, in_ascii: bool) -> None:
    lines = plain(plot([FLAT, FALLING], width, plain=in_ascii)).splitlines()
    assert len(lines) == HEIGHT + 1
    assert max(map(len, lines)) <= width
    assert lines[0].endswith("without 2")
    assert lines[HEIGHT - 1].endswith("with 0.58")
    assert lines[-1].split() == ["0", "step", "149"]
    assert "".join(lines).isascii() == in_ascii


def test_letters_tell_curves_apart_without_colour() -> None:
    text = plain(plot([FLAT, FALLING], 80, plain=True))
    assert "* without" in text
    assert "o with" in text
    assert text.count("*") > 20
    assert text.count("o") > 20


def test_a_falling_curve_goes_from_top_left_to_bottom_right() -> None:
    lines = plain(plot([FALLING], 60, plain=True)).splitlines()[:HEIGHT]
    places = [line.index("*") for line in lines]
    assert places == sorted(places)


def test_rates_stand_on_a_logarithmic_axis() -> None:
    rates = [10.0**i for i in range(-6, 1)]
    lines = plain(plot([curve("loss", 3, 3, 3, 0, 3, 3, 3)], 80, xs=rates, x_axis="learning rate", plain=True))
    foot = lines.splitlines()[-1]
    assert foot.split() == ["1e-06", "learning", "rate", "1"]
    bottom = lines.splitlines()[HEIGHT - 1]
    assert bottom.index("*") == pytest.approx(len(foot) / 2, abs=4)


def test_large_losses_stand_on_a_logarithmic_axis() -> None:
    middle = plain(plot([curve("loss", 0.01, 0.1, 1.0, 10.0, 100.0)], 60, plain=True)).splitlines()[HEIGHT // 2]
    assert middle.split()[0] == "1"


@pytest.mark.parametrize("losses", [(), (None, None)])
def test_nothing_is_drawn_of_nothing(losses: tuple[None, ...]) -> None:
    assert plot([curve("loss", *losses)], 80) == []
    assert plot([], 80) == []
    assert plot([FLAT], 12) == []


def test_gaps_single_values_and_ends_that_are_not_finite() -> None:
    assert "not finite" in plain(plot([curve("loss", 1.0, 2.0, None)], 60))
    assert "loss 5" in plain(plot([curve("loss", 5.0)], 60))
    assert "-2" in plain(plot([curve("loss", -1.0, None, -2.0)], 60))


def test_a_stream_without_braille_gets_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert plain(plot([FALLING], 60)).isascii()
