"""The page in a real browser: what is drawn, hovered, opened, followed and compared."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.view.browser import Watched, browser, needs_browser
from tests.view.records import events_of_a_run, scaler, written
from unstuck.events import Gauges, NonFinite, RunEnded, RunStarted
from unstuck.findings.investigation import Investigation
from unstuck.record import read
from unstuck.record.in_use import lock
from unstuck.record.lines import encode
from unstuck.result import result_of
from unstuck.view.html import page as page_of
from unstuck.view.live import Runs
from unstuck.view.server import Server

pytestmark = [pytest.mark.slow, needs_browser]
PIXELS = """(selector) => {
  const canvas = document.querySelector(selector);
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) colours.add(data[at] * 65536 + data[at + 1] * 256 + data[at + 2]);
  return colours.size;
}"""
"""How many colours a canvas shows: 1 if nothing was drawn."""
HOSTILE = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that became NaN, with clipping and a loss scale."""
    folder = tmp_path_factory.mktemp("report")
    broken = [Gauges(step=step, loss=None) for step in range(400, 420)]
    trouble = NonFinite(step=400, what="gradient", name="blocks.3.weight", value="nan")
    run = sorted([*events_of_a_run(400, 12), *scaler(400)], key=lambda event: event.step)
    written(folder / "run", *run, trouble, *broken, script=f"train.py {HOSTILE}")
    record = read(folder / "run")
    done = Investigation(result=result_of(record, folder / "run", "report"), folder=folder)
    file = folder / "report.html"
    file.write_text(page_of(done, record), encoding="utf-8")
    return file


@pytest.fixture
def shown(opened: Any, report: Path) -> Iterator[Watched]:
    watched = Watched(opened, 1280, 900, "light")
    watched.page.goto(report.as_uri())
    watched.page.wait_for_selector(".chart")
    yield watched
    assert watched.errors == []
    assert watched.elsewhere == []
    watched.context.close()


def until(page: Any, expression: str) -> None:
    """Wait until something is true in the page. Playwright's own way evaluates text there, which the policy forbids."""
    deadline = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(50)


def box_of(page: Any, selector: str) -> dict[str, float]:
    """Where it is on the screen, scrolled into sight and drawn."""
    page.locator(selector).first.evaluate("one => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    page.wait_for_timeout(250)
    found: dict[str, float] = page.locator(selector).first.bounding_box()
    return found


def test_every_chart_is_drawn_when_it_comes_into_sight(shown: Watched) -> None:
    names = shown.page.eval_on_selector_all("[data-chart]", "all => all.map(one => one.dataset.chart)")
    assert names == ["loss", "rates", "gradients", "clipping", "scale", "time", "memory"]
    heats = shown.page.eval_on_selector_all("[data-heat]", "all => all.map(one => one.dataset.heat)")
    assert heats == ["update", "ratio", "gradient", "dead"]
    for selector in [f"[data-chart={name}] canvas" for name in names] + [
        f"[data-heat={name}] canvas" for name in heats
    ]:
        box_of(shown.page, selector)
        assert shown.page.evaluate(PIXELS, selector) > 3, selector


def test_names_in_a_record_are_text(shown: Watched) -> None:
    assert HOSTILE in shown.page.inner_text(".crumb code")
    assert shown.page.evaluate("window.hacked") is None
    assert shown.page.locator("main img[src=x]").count() == 0


def test_one_cursor_runs_through_all_charts(shown: Watched) -> None:
    box = box_of(shown.page, "[data-chart=loss] canvas")
    before = shown.page.inner_text("[data-chart=rates] .legend")
    shown.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    shown.page.wait_for_timeout(200)
    assert 60 < shown.page.evaluate("view.cursor") < 140
    assert shown.page.inner_text("[data-chart=rates] .legend") != before


def test_dragging_zooms_all_charts_and_the_address_holds_it(shown: Watched, report: Path) -> None:
    page = shown.page
    box = box_of(page, "[data-chart=loss] canvas")
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 150, steps=4)
    page.mouse.up()
    first, last = page.evaluate("view.zoom")
    assert 60 < first < last < 260
    assert f"steps={first}-{last}" in page.url
    page.goto("about:blank")
    page.goto(f"{report.as_uri()}#steps={first}-{last}&x=log&layer=blocks.2.weight")
    page.wait_for_selector("dialog#layer[open]")
    assert page.evaluate("[view.zoom, view.logX]") == [[first, last], True]
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    page.wait_for_timeout(100)
    assert "steps" not in page.url


def test_a_layer_opens_with_its_ratios_distributions_and_findings(shown: Watched) -> None:
    page = shown.page
    box = box_of(page, "[data-heat=update] canvas")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 3.5 * page.evaluate("shown.heats.get('update').rowHeight"))
    page.wait_for_timeout(150)
    assert "blocks.3.weight" in page.inner_text("[data-heat=update] .reading")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector("dialog#layer[open]")
    assert page.inner_text("#layer h2") == "blocks.3"
    titles = page.locator("#layer h3").all_inner_texts()
    assert titles[:4] == ["Update : weight", "Gradient : weight", "Gradient norm", "Dead units, %"]
    assert "Weights of blocks.3.weight" in titles
    assert "Activations of relu after blocks.3" in titles
    page.wait_for_timeout(300)
    assert page.evaluate(PIXELS, "#layer .ridge canvas") > 3
    page.keyboard.press("]")
    assert page.inner_text("#layer h2") == "blocks.4"
    assert "layer=blocks.4" in page.url
    page.keyboard.press("Escape")
    until(page, "!document.getElementById('layer').open")


def test_layers_are_searched_and_sorted(shown: Watched) -> None:
    page = shown.page
    page.locator("[data-heat=update]").scroll_into_view_if_needed()
    page.keyboard.press("/")
    page.keyboard.type("blocks.1")
    page.wait_for_timeout(200)
    rows = "shown.heats.get('update').rows.map(row => row.name)"
    assert page.evaluate(rows) == ["blocks.1.weight", "blocks.10.weight", "blocks.11.weight"]
    page.select_option(".controls select", "high")
    page.wait_for_timeout(200)
    assert page.evaluate(rows)[0] == "blocks.11.weight"
    page.fill("input[type=search]", "nothing")
    page.wait_for_timeout(200)
    assert page.locator("[data-heat=update] .quiet").is_visible()


def test_keys_move_the_cursor_and_bend_the_axis(shown: Watched) -> None:
    page = shown.page
    page.locator("[data-chart=loss] canvas").focus()
    page.keyboard.press("ArrowRight")
    first = page.evaluate("view.cursor")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("view.cursor") > first
    was = page.evaluate("shown.charts.get('loss').isLog")
    page.keyboard.press("l")
    assert page.evaluate("shown.charts.get('loss').isLog") is not was
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    theme = page.evaluate("look().dark")
    page.keyboard.press("t")
    assert page.evaluate("look().dark") is not theme


def test_a_finding_is_pinned_on_the_loss_and_opens(shown: Watched) -> None:
    pins = shown.page.evaluate("shown.charts.get('loss').pinPlaces.map(pin => pin.text)")
    codes = shown.page.evaluate("shown.doc.answer.findings.map(finding => finding.code)")
    assert codes
    assert set(pins) <= set(codes)


def test_numbers_and_pictures_can_be_copied(shown: Watched) -> None:
    page = shown.page
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.hover("[data-chart=rates]")
    page.click("[data-chart=rates] [aria-label*=CSV]")
    until(page, "document.getElementById('toast').textContent === 'Copied.'")
    rows = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert rows[0] == "step,Adam"
    assert rows[1] == "0,0.001"
    page.click("[data-chart=rates] [aria-label*=picture]")
    until(page, "document.getElementById('toast').textContent === 'Copied as a picture.'")
    kinds = page.evaluate("navigator.clipboard.read().then(items => items.flatMap(item => item.types))")
    assert kinds == ["image/png"]


@pytest.mark.parametrize("width", [400, 768, 1280, 2560])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_the_window(opened: Any, report: Path, width: int, theme: str) -> None:
    watched = Watched(opened, width, 900, theme)
    watched.page.goto(report.as_uri())
    watched.page.wait_for_timeout(400)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    assert watched.errors == []
    watched.context.close()


def test_large_runs_stay_small_and_quick(opened: Any, tmp_path: Path) -> None:
    written(tmp_path / "run", *events_of_a_run(4000, 60))
    record = read(tmp_path / "run")
    done = Investigation(result=result_of(record, tmp_path / "run", "report"), folder=tmp_path)
    content = page_of(done, record)
    assert len(content.encode()) < 2 * 2**20
    (tmp_path / "large.html").write_text(content, encoding="utf-8")
    watched = Watched(opened, 1280, 900, "light")
    watched.page.goto((tmp_path / "large.html").as_uri())
    watched.page.wait_for_selector("[data-heat=update]")
    assert watched.errors == []
    watched.context.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unstuck.record.pace.SHORTEST", 0.1)
    monkeypatch.setattr("unstuck.record.pace.CREDIT", 1e9)
    (tmp_path / ".unstuck" / "runs").mkdir(parents=True)
    server = Server(Runs())
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    threading.Thread(target=server.work, daemon=True).start()
    yield server
    server.stop()
    server.shutdown()
    server.server_close()


def test_a_run_is_followed_while_another_process_writes_it(opened: Any, served: Server, tmp_path: Path) -> None:
    folder = tmp_path / ".unstuck" / "runs" / "20260101-120000-train"
    folder.mkdir()
    watched = Watched(opened, 1280, 900, "dark", served.address)
    page = watched.page
    page.goto(served.address)
    page.wait_for_selector("text=No run yet")
    with (folder / "events.jsonl").open("ab", buffering=0) as record:
        lock(record.fileno())
        record.write(encode(RunStarted(script="train.py")))
        record.write(b"".join(encode(event) for event in events_of_a_run(100, 3)))
        page.wait_for_selector("text=Nothing found so far")
        until(page, "document.getElementById('status').textContent === 'following'")
        until(page, "shown.doc.run.steps >= 91")
        charts = page.evaluate("extent.last")
        record.write(b"".join(encode(Gauges(step=step, loss=1.0)) for step in range(100, 160)))
        until(page, f"extent.last > {charts}")
        until(page, "document.getElementById('facts').textContent.includes('159 optimizer steps')")
        record.write(encode(NonFinite(step=160, what="loss", value="nan")))
        record.write(b"".join(encode(Gauges(step=step, loss=None)) for step in range(160, 170)))
        until(page, "(shown.doc.answer.findings ?? []).length > 0")
        page.wait_for_selector("#toast.shown")
        assert "Found:" in page.inner_text("#toast")
        record.write(encode(RunEnded(steps=170)))
    until(page, "!shown.doc.run.running")
    until(page, "document.getElementById('status').textContent === ''")
    assert watched.errors == []
    assert watched.elsewhere == []
    watched.context.close()


def test_two_runs_are_compared_and_ranks_chosen(opened: Any, served: Server, tmp_path: Path) -> None:
    runs = tmp_path / ".unstuck" / "runs"
    written(runs / "20260101-120000-train", *events_of_a_run(120, 2, losses=[2.0] * 120), script="old.py")
    written(runs / "20260102-120000-train", *events_of_a_run(120, 2), script="new.py")
    written(runs / "20260101-110000-job-rank0", *events_of_a_run(60, 1), script="job.py")
    written(runs / "20260101-110000-job-rank1", *events_of_a_run(60, 1), script="job.py")
    watched = Watched(opened, 1280, 900, "light", served.address)
    page = watched.page
    page.goto(served.address)
    page.wait_for_selector("text=old.py")
    assert page.locator("#runs li").count() == 3
    page.locator("#runs li", has_text="old.py").hover()
    page.locator("#runs li", has_text="old.py").locator("input").check()
    page.wait_for_selector("#compare")
    assert page.locator("#compare thead th").all_inner_texts()[1:] == ["new.py 12:00:00", "old.py 12:00:00"]
    assert "script" in page.locator("#compare .differs th").all_inner_texts()
    lines = page.locator("[data-chart=compared-loss] .legend li").all_inner_texts()
    assert len(lines) == 2
    assert "with=20260101-120000-train" in page.url
    page.locator("#runs li", has_text="job.py").locator("text=rank 1").click()
    until(page, "shown.doc.run.name === '20260101-110000-job-rank1'")
    assert watched.errors == []
    watched.context.close()


def test_a_page_reconnects_and_its_link_opens_the_same(opened: Any, served: Server, tmp_path: Path) -> None:
    written(tmp_path / ".unstuck" / "runs" / "20260101-120000-train", *events_of_a_run(120, 2))
    watched = Watched(opened, 1280, 900, "light", served.address)
    watched.page.goto(f"{served.address}#run=20260101-120000-train&layer=blocks.1.weight")
    watched.page.wait_for_selector("dialog#layer[open]")
    assert watched.page.inner_text("#layer h2") == "blocks.1"
    assert json.loads(watched.page.evaluate("JSON.stringify(view.others)")) == []
    watched.context.close()
    deadline = time.monotonic() + 20
    while served.streams and time.monotonic() < deadline:
        time.sleep(0.05)
        with served.news:
            served.news.notify_all()
    assert served.streams == 0, "nobody looks any more"
