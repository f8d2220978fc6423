"""Pictures in files: their panels, scales and colours, and what becomes of a file that cannot be written."""

from __future__ import annotations

import itertools
import struct
import sys
import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import bowl, hinge

from unstuck.findings.surface import Region, Surface
from unstuck.surface.pictures import PlotsMissing, chart, write
from unstuck.surface.pictures.colours import DARK_INK, DIVERGING, LIGHT_INK, SEQUENTIAL, ink_on, spread
from unstuck.surface.pictures.layout import arrow_range, panels
from unstuck.surface.pictures.plane import _lengths
from unstuck.surface.pictures.scale import diverging, sequential

FLAT = replace(bowl("flat"), value=np.ones((21, 25)), gradient=np.zeros((2, 21, 25)), components={})
NOWHERE = replace(
    bowl("nowhere"), value=np.full((21, 25), np.nan), gradient=np.full((2, 21, 25), np.nan), components={}
)


def lightness(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(
    ("surfaces", "count"),
    [
        ([bowl()], 1),
        ([bowl(), bowl("new", tilt=0.5)], 3),
        ([bowl(), bowl("new", tilt=0.5), bowl("newer", tilt=1)], 5),
        ([bowl(), bowl("finer", count=31)], 2),
        ([replace(bowl(), remedy=bowl("in log space"))], 2),
        ([hinge()], 1),
        ([hinge(), hinge("new", edge=0.5)], 3),
        ([FLAT], 1),
        ([NOWHERE], 1),
    ],
    ids=["plane", "variants", "three variants", "two grids", "remedy", "curve", "curves", "flat", "nowhere finite"],
)
def test_every_panel_has_two_axes(surfaces: list[Surface], count: int) -> None:
    assert len(panels(surfaces)) == count
    assert len(chart.figure(surfaces).axes) == 2 * count


@pytest.mark.parametrize("shown", [bowl(), hinge()], ids=["plane", "curve"])
def test_operating_points_with_names_carry_them(shown: Surface) -> None:
    named = replace(shown, mark_names=("late in the run",))
    words = [text.get_text() for axes in chart.figure([named]).axes for text in axes.texts]
    assert words.count("late in the run") == 1


def test_a_png_is_a_png_of_a_readable_size(tmp_path: Path) -> None:
    write([bowl()], tmp_path / "bowl.png")
    content = (tmp_path / "bowl.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert 600 <= width <= 1200
    assert 500 <= height <= 1000


def test_an_svg_is_well_formed_and_loads_nothing(tmp_path: Path) -> None:
    write([bowl(), bowl("new", tilt=1)], tmp_path / "bowl.SVG")
    root = xml.parse(tmp_path / "bowl.SVG").getroot()
    links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
    assert root.tag.endswith("svg")
    assert all(link.startswith(("#", "data:")) for link in links)


def test_the_same_surface_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        write([bowl()], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_a_name_with_dollars_is_text_not_mathematics(tmp_path: Path) -> None:
    write([bowl(r"$\frac{$ & <b>")], tmp_path / "odd.svg")
    assert (tmp_path / "odd.svg").stat().st_size > 0


def test_drawing_leaves_the_settings_of_matplotlib_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    write([hinge()], tmp_path / "hinge.png")
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("chart", "curve", "plane", "marks"):
        monkeypatch.delitem(sys.modules, f"unstuck.surface.pictures.{name}", raising=False)
    with pytest.raises(PlotsMissing) as caught:
        write([bowl()], tmp_path / "bowl.png")
    assert "pip install 'unstuck[plots]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    write([bowl()], tmp_path / "bowl.html")
    assert [file.name for file in tmp_path.iterdir()] == ["bowl.html"]


def test_an_unknown_suffix_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.html, \.png or \.svg, and bowl\.gif does not"):
        write([bowl()], tmp_path / "bowl.gif")


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no surface"):
        write([], tmp_path / "bowl.png")


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    target = tmp_path / f"bowl.{suffix}"
    target.write_text("old")

    def half_a_file(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half_a_file)
    with pytest.raises(OSError, match="No space left"):
        write([bowl()], target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_hole_between_the_grid_points_is_marked() -> None:
    hole = Region((0.03, 0.5), (0.03, 0.7), 0.0, np.zeros((21, 25), dtype=bool), "gradient")
    with_hole, without = (
        chart.figure([replace(bowl(), non_finite=holes)]).axes[0].get_lines() for holes in ((hole,), ())
    )
    assert len(with_hole) == len(without) + 1
    assert (0.03, 0.6) in [pytest.approx((line.get_xdata()[0], line.get_ydata()[0])) for line in with_hole]


def test_variants_share_one_scale_that_covers_both() -> None:
    old, new, change = panels([bowl(), bowl("new", tilt=5)])
    assert old.scales is new.scales
    assert old.scale.low == min(np.nanmin(old.values), np.nanmin(new.values))
    assert old.scale.high == max(np.nanmax(old.values), np.nanmax(new.values))
    assert change.title == "new − bowl"
    assert change.scale.low == -change.scale.high


def test_a_difference_is_new_minus_old() -> None:
    old, new = bowl(), bowl("new", tilt=1)
    change = panels([old, new])[-1]
    assert np.nanmax(np.abs(change.values - (new.value - old.value))) == 0


def test_levels_are_round_and_lie_inside() -> None:
    scale = sequential(np.linspace(0, 3, 50))
    assert scale.levels == pytest.approx(np.arange(0.2, 3, 0.2))
    assert len(scale.colours) == len(scale.levels) + 1


def test_a_few_huge_values_do_not_take_all_the_colours() -> None:
    values = np.concatenate([np.linspace(0, 1, 1000), [1e6, 1e9, np.inf, np.nan]])
    scale = sequential(values)
    within = [level for level in scale.levels if level < 1]
    assert scale.high == 1e9
    assert len(within) >= 2
    assert list(scale.levels) == sorted(set(scale.levels))
    assert scale.unbend(scale.bend(values[:1000])) == pytest.approx(values[:1000])


def test_zero_lies_in_the_neutral_middle_of_a_difference() -> None:
    for values in (np.array([-1.0, 0.5, 3.0]), np.concatenate([np.linspace(-1, 1, 100), [1e7]])):
        scale = diverging(values)
        middle = int(np.searchsorted(scale.levels, 0.0))
        assert len(scale.colours) % 2 == 1
        assert scale.colours[middle] == DIVERGING[5]
        assert scale.levels == tuple(-level for level in reversed(scale.levels))


def test_colours_grow_lighter_with_the_loss() -> None:
    steps = [lightness(colour) for colour in spread(SEQUENTIAL, 15)]
    assert all(later - earlier > 5 for earlier, later in itertools.pairwise(steps))


def test_ink_contrasts_with_its_ground() -> None:
    assert ink_on(SEQUENTIAL[0]) == LIGHT_INK
    assert ink_on(SEQUENTIAL[-1]) == DARK_INK


def test_a_gradient_that_is_the_same_everywhere_has_long_arrows() -> None:
    even = replace(bowl(), gradient=np.ones((2, 21, 25)))
    assert _lengths(np.array([2**0.5]), arrow_range(panels([even]))) == pytest.approx([1.0])


def test_arrows_grow_with_the_logarithm_of_the_gradient() -> None:
    steep = replace(bowl(), gradient=np.full((2, 21, 25), 1e9))
    least, most = arrow_range(panels([bowl(), steep]))
    assert most / least == pytest.approx(1e6)
    lengths = _lengths(np.array([least / 10, least, (least * most) ** 0.5, most]), (least, most))
    assert lengths == pytest.approx([0.25, 0.25, 0.625, 1.0])
