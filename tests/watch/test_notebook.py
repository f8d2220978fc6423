"""A watch in a notebook: what a cell shows, and that it is drawn again while the run goes on."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import unstuck
from tests.view.records import events_of_a_run, record_of
from unstuck.events import Event, NonFinite
from unstuck.result import result_of
from unstuck.view.notebook import essence

CELL = """\
import torch, unstuck
from torch import nn
from unstuck.watch import display
display.EVERY = 0.0
display.SHARE = 1.0
w = unstuck.watch(print=False)
def train(steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


class Seen(HTMLParser):
    """The tags of a text, its words, and whether what is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def seen(*events: Event, ended: bool = True) -> Seen:
    record = record_of(*events, ended=ended)
    found = Seen(essence(result_of(record, Path("run"), "watch"), record, Path("run")))
    assert not found.open
    return found


def test_a_run_shows_its_loss_and_a_heatmap() -> None:
    found = seen(*events_of_a_run(200, 3))
    assert found.tags.count("svg") == 1
    assert found.tags.count("polyline") == 2, "the loss and its trend"
    assert found.tags.count("img") == 1
    assert "blocks.2.weight" in found.words
    assert "Learns" in found.words
    assert "unstuck view run shows all of it." in found.words


def test_it_runs_no_script_and_loads_nothing() -> None:
    found = seen(*events_of_a_run(50, 3))
    assert not {"script", "link", "iframe"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "href"]
    assert all((value or "").startswith("data:image/png") for name, value in found.attributes if name == "src")


def test_names_are_text() -> None:
    record = record_of(*events_of_a_run(50, 2, optimizer="<script>alert(1)</script>"))
    html = essence(result_of(record, Path("<b>"), "watch"), record, Path("<b>"))
    assert "<script" not in html
    assert "<b>" not in html.replace("<b>Change:", "").replace('<b style="', "")


@pytest.mark.parametrize("losses", [[math.nan] * 40, [0.0] * 40, [1e308, 1e-308] * 20, [-1.0, 1.0] * 20, [5.0]])
def test_any_loss_can_be_drawn(losses: list[float]) -> None:
    found = seen(*events_of_a_run(len(losses), 1, losses=losses))
    points = " ".join(value or "" for name, value in found.attributes if name == "points")
    numbers = [float(number) for number in re.split(r"[ ,]", points) if number]
    assert all(0 <= number <= 640 for number in numbers)


def test_a_run_that_has_not_begun() -> None:
    found = seen(ended=False)
    assert "svg" not in found.tags


def test_a_broken_loss_leaves_a_gap() -> None:
    events = list(events_of_a_run(30, 1, every=1))
    broken = [NonFinite(step=20) if event.step == 20 else event for event in events]
    assert "G10 non-finite" in seen(*broken).words


def test_a_cell_shows_the_watch() -> None:
    with unstuck.watch(print=False) as w:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        assert "30 optimizer steps, running" in Seen(w._repr_html_()).words
    assert "30 optimizer steps, finished" in Seen(w._repr_html_()).words
    w._ipython_display_()  # outside of a notebook this shows nothing, and fails at nothing


def test_an_ipython_terminal_prints_one_line(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="IPython is not installed here")
    Path("setup.py").write_text(CELL)
    cells = "exec(open('setup.py').read())\ntrain(5)\nw\ntrain(5)\nw.stop()\n"
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--quick"]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(command, input=cells, env=environment, capture_output=True, text=True)
    assert re.findall("<unstuck.watch: .*>", done.stdout) == ["<unstuck.watch: watching, 5 steps, O12>"], done.stdout
    assert "Error" not in done.stdout + done.stderr


def test_ipython_draws_it_again_while_it_goes_on() -> None:
    pytest.importorskip("IPython", reason="IPython is not installed here")
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    with capture_output() as captured:
        shell.run_cell(CELL).raise_error()
        shell.run_cell("train(10)").raise_error()
        shell.run_cell("w").raise_error()
        shell.run_cell("train(30); w.stop()").raise_error()
    first, *later = captured.outputs
    assert "10 optimizer steps, running" in first.data["text/html"]
    assert first.data["text/plain"].startswith("<unstuck.watch: watching, 10 steps")
    assert not first.update
    assert all(output.update for output in later)
    assert {output.transient["display_id"] for output in (first, *later)} == {first.transient["display_id"]}
    assert "40 optimizer steps, finished" in later[-1].data["text/html"]
    assert "O12 double-softmax" in later[-1].data["text/html"]
    assert len(later) > 1, "it is drawn while the run goes on, too"
    InteractiveShell.clear_instance()
