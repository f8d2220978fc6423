"""The interactive page: complete in itself, true to the surface, and deaf to what names try to do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import bowl, finding, hinge

from unstuck.events import Place
from unstuck.findings.surface import Axis, Surface
from unstuck.surface.pictures import html, write
from unstuck.surface.pictures.data import MOST_POINTS, run_lengths

HOSTILE = "</script><script>alert(1)</script><!--<b>&amp;{{script}}\u2028"
LOADING = {"src", "href", "srcset", "action", "data", "poster", "formaction"}


class Reader(HTMLParser):
    """What a browser would see: the elements with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.scripts += [""] if tag == "script" else []

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data
        else:
            self.words += data


def embedded(surfaces: list[Surface]) -> Any:
    return json.loads(Reader(html.page(surfaces)).scripts[0])


def numbers(sent: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in sent])


def test_the_page_loads_nothing() -> None:
    page = html.page([bowl(), bowl("new", tilt=1)])
    reader = Reader(page)
    assert [tag for tag, _ in reader.elements if tag in {"link", "img", "iframe", "object", "embed", "base"}] == []
    assert [name for _, attributes in reader.elements for name in attributes if name in LOADING] == []
    assert re.findall(r"https?://|url\(|@import|\beval\(|new Function|innerHTML|fetch\(|XMLHttpRequest", page) == []
    assert "default-src 'none'" in page


def test_the_page_says_it_is_utf_8_and_fits_a_phone() -> None:
    attributes = [attributes for tag, attributes in Reader(html.page([hinge()])).elements if tag == "meta"]
    assert {"charset": "utf-8"} in attributes
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in attributes


def test_an_ordinary_page_stays_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(3, 80, 80))
    axes = (Axis("x", np.linspace(0, 1, 80)), Axis("y", np.linspace(0, 1, 80)))
    write([Surface("noise", axes, noise[0], noise[1:])], tmp_path / "noise.html")
    assert (tmp_path / "noise.html").stat().st_size < 300_000


def test_the_data_equals_the_surface() -> None:
    surface = bowl()
    (sent,) = embedded([surface])["surfaces"]
    shape = surface.value.shape
    assert np.allclose(numbers(sent["value"]).reshape(shape), surface.value, rtol=1e-6, atol=0, equal_nan=True)
    for part, slope in zip(sent["gradient"], surface.gradient, strict=True):
        assert np.allclose(numbers(part).reshape(shape), slope, rtol=1e-3, atol=0, equal_nan=True)
    for name, component in surface.components.items():
        assert np.allclose(numbers(sent["components"][name]).reshape(shape), component, rtol=1e-3, atol=0)
    assert [(axis["name"], axis["low"], axis["high"], axis["count"]) for axis in sent["axes"]] == [
        ("pos", -1, 1, 21),
        ("neg", -2, 2, 25),
    ]
    assert sent["stationary"][0] == {"kind": "minimum", "at": [0, 0], "value": 0, "curvature": [2, 4]}
    assert sent["marks"] == [[0.3, -0.3]]
    assert sent["flows"][0]["points"] == [[0.5, 1], [0.2, 0.1], [0, 0]]
    assert sent["table"][0]["flag"] == "zero gradient"
    assert sent["findings"][0]["message"] == "The gradient is zero on 5 % of the plane."
    assert sent["arrivals"] == {"starts": 100, "ended": {"minimum": 0.9, "stuck": 0.1}}


def test_infinities_and_nan_survive() -> None:
    (sent,) = embedded([hinge()])["surfaces"]
    assert sent["value"][0] == float("inf")
    assert sent["gradient"][0][0] is None
    assert embedded([bowl()])["surfaces"][0]["findings"][0]["evidence"][1]["value"] == float("inf")


def test_regions_are_sent_as_runs() -> None:
    surface = bowl()
    (sent,) = embedded([surface])["surfaces"]
    flags = np.repeat(np.arange(len(sent["dead"][0]["runs"])) % 2 == 1, sent["dead"][0]["runs"])
    assert (flags.reshape(surface.value.shape) == surface.dead[0].cells).all()


@pytest.mark.parametrize(
    ("cells", "runs"),
    [([0, 0, 1], [2, 1]), ([1, 1, 0], [0, 2, 1]), ([0, 0], [2]), ([1, 0, 1], [0, 1, 1, 1])],
)
def test_runs_begin_outside(cells: list[int], runs: list[int]) -> None:
    assert run_lengths(np.array(cells, dtype=bool)) == runs


def test_a_name_cannot_break_out_of_the_data() -> None:
    hostile = replace(
        bowl(HOSTILE),
        axes=tuple(Axis(HOSTILE, axis.points) for axis in bowl().axes),
        components={HOSTILE: bowl().value},
        findings=(finding(HOSTILE),),
        notes=(HOSTILE,),
    )
    clean, attacked = Reader(html.page([bowl()])), Reader(html.page([hostile]))
    assert [tag for tag, _ in attacked.elements] == [tag for tag, _ in clean.elements]
    assert attacked.scripts[1] == clean.scripts[1]
    (sent,) = json.loads(attacked.scripts[0])["surfaces"]
    assert sent["name"] == sent["axes"][0]["name"] == sent["notes"][0] == sent["findings"][0]["message"] == HOSTILE
    assert HOSTILE in attacked.words


def test_our_own_scripts_do_not_end_early() -> None:
    scripts = Reader(html.page([bowl()])).scripts
    assert len(scripts) == 2
    assert scripts[1].rstrip().endswith("setUp();")


def test_variants_come_with_their_difference_and_remedies() -> None:
    sent = embedded([bowl(), replace(bowl("new", tilt=1), remedy=bowl("in log space"))])
    assert [surface["name"] for surface in sent["surfaces"]] == ["bowl", "new", "in log space"]
    assert [(panel["surface"], panel["minus"]) for panel in sent["panels"]] == [(0, None), (1, None), (1, 0), (2, None)]
    assert list(sent["panels"][0]["scales"]) == ["", "pull", "push"]


def test_the_place_is_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = replace(bowl(), place=Place(str(tmp_path / "src" / "losses.py"), 7))
    assert embedded([inside])["surfaces"][0]["place"] == str(Path("src", "losses.py")) + ":7"
    assert embedded([bowl()])["surfaces"][0]["place"] == "losses.py:12"


def test_a_fine_grid_is_thinned_and_that_is_said() -> None:
    (sent,) = embedded([bowl(count=400)])["surfaces"]
    counts = [axis["count"] for axis in sent["axes"]]
    assert max(counts) <= MOST_POINTS[2]
    assert len(sent["value"]) == counts[0] * counts[1]
    assert sum(sent["dead"][0]["runs"]) == len(sent["value"])
    assert sent["notes"][-1] == "This page shows every 4th point of the grid along an axis."
