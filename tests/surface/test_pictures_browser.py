"""The page in a real browser: it draws without an error, follows pointer and keys, and descends as torch does."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handmade import bowl, hinge

from unstuck.findings.surface import Surface
from unstuck.surface.pictures import write

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs chromium")]

HARNESS = """
<script>
const nextFrame = () => new Promise((done) => setTimeout(done, 20));
const picture = () => panels[0].picture;
const canvas = () => panels[0].canvas;
async function pointer(kind, point) {
  const box = canvas().getBoundingClientRect();
  const [x, y] = picture().pixel(point);
  const where = { clientX: box.left + x, clientY: box.top + y + 1, pointerId: 1, pointerType: "mouse", bubbles: true };
  canvas().dispatchEvent(new PointerEvent(kind, where));
  await nextFrame();
}
function press(key, shiftKey = false) {
  canvas().dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey, bubbles: true }));
}
const coloured = () => {
  const { data } = canvas().getContext("2d").getImageData(0, 0, canvas().width, canvas().height);
  return new Set(new Uint32Array(data.buffer)).size;
};
(async () => {
  let result;
  try { result = await (async () => { ACTION })(); } catch (error) { result = { error: String(error) }; }
  const output = document.createElement("pre");
  output.id = "result";
  output.textContent = JSON.stringify({ result, errors: window.errors });
  document.body.append(output);
})();
</script>
"""
# A browser without a screen draws frames when it likes, so frames become timers.
WATCH = """
<script>
window.errors = [];
addEventListener("error", (event) => errors.push(event.message));
window.requestAnimationFrame = (draw) => setTimeout(draw);
</script>
"""

Act = Callable[[list[Surface], str], Any]


@pytest.fixture
def act(tmp_path: Path) -> Act:
    """Open the page of some surfaces, do something, and return what that returns."""

    def run(surfaces: list[Surface], action: str) -> Any:
        file = tmp_path / "page.html"
        write(surfaces, file)
        page = file.read_text(encoding="utf-8").replace("<body>", f"<body>{WATCH}")
        file.write_text(page.replace("</body>", HARNESS.replace("ACTION", action) + "</body>"), encoding="utf-8")
        done = subprocess.run([*_command(tmp_path), file.as_uri()], capture_output=True, text=True, timeout=120)
        found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found, done.stderr
        answer = json.loads(html.unescape(found[1]))
        assert answer["errors"] == []
        return answer["result"]

    return run


def _command(folder: Path) -> list[str]:
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    quiet += ["--disable-component-update", "--disable-sync", f"--user-data-dir={folder / 'browser'}"]
    return [BROWSER or "", "--headless", "--no-sandbox", *quiet, "--virtual-time-budget=5000", "--dump-dom"]


@pytest.mark.parametrize(
    "surfaces",
    [[bowl()], [bowl(), bowl("new", tilt=1)], [hinge()], [hinge(), hinge("new", edge=0.5)]],
    ids=["plane", "variants", "curve", "curves"],
)
def test_every_component_and_layer_draws(act: Act, surfaces: list[Surface]) -> None:
    action = """
      const counts = [];
      for (const option of document.querySelectorAll("#component option")) {
        document.getElementById("component").value = option.value;
        for (const box of document.querySelectorAll("#layers input")) box.click();
        counts.push(coloured());
      }
      return counts;
    """
    counts = act(surfaces, action)
    assert len(counts) == 1 + len(surfaces[0].components)
    assert min(counts) > 10


def test_hovering_reads_the_surface(act: Act) -> None:
    action = "await pointer('pointermove', [0.5, 0.25]); return panels[0].reading.textContent;"
    reading = act([bowl()], action)
    x, y, loss, slope_x, slope_y = (
        float(word.replace("−", "-")) for word in re.findall(r"−?\d[\d.]*", reading.replace(",", " "))
    )
    assert (x, y) == pytest.approx((0.5, 0.25), abs=0.02)
    assert loss == pytest.approx(x**2 + 2 * y**2, abs=0.03)
    assert (slope_x, slope_y) == pytest.approx((2 * x, 4 * y), abs=0.01)


def test_dragging_moves_the_start_and_its_descent(act: Act) -> None:
    action = """
      const seen = [[...state.start]];
      await pointer("pointerdown", state.start);
      await pointer("pointermove", [-0.5, 0.5]);
      seen.push([...state.start]);
      await pointer("pointerup", [-0.5, 0.5]);
      await pointer("pointermove", [0.5, 0.5]);
      seen.push([...state.start]);
      const fields = [...document.querySelectorAll("#start input")].map((input) => input.valueAsNumber);
      return { seen, fields, outcome: panels[0].outcome.textContent };
    """
    answer = act([bowl()], action)
    before, dragged, released = answer["seen"]
    assert before == [0.3, -0.3]
    assert dragged == pytest.approx([-0.5, 0.5], abs=0.02)
    assert released == dragged
    assert answer["fields"] == pytest.approx(dragged, rel=1e-3)
    assert "settled" in answer["outcome"]


def test_keys_move_the_start_and_stop_at_the_edge(act: Act) -> None:
    action = """
      press("ArrowRight");
      press("ArrowUp", true);
      const seen = [...state.start];
      for (let k = 0; k < 60; k++) press("ArrowRight");
      return [seen, [...state.start]];
    """
    moved, at_the_edge = act([bowl()], action)
    assert moved == pytest.approx([0.36, -0.28])
    assert at_the_edge[0] == 1


def test_the_start_of_a_curve_moves_along_it(act: Act) -> None:
    action = "await pointer('pointerdown', [-1]); return [state.start, panels[0].outcome.textContent];"
    start, outcome = act([hinge()], action)
    assert start == pytest.approx([-1], abs=0.05)
    assert outcome.startswith("SGD settled")
    assert "at 1: loss 0" in outcome


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_descent_is_the_optimizer_of_torch(act: Act, name: str) -> None:
    action = f"return descend(fieldOf(data.surfaces[0], ''), [0.3, -0.3], '{name}', 0.05, 40).points;"
    weights = torch.tensor([0.3, -0.3], dtype=torch.float64, requires_grad=True)
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]([weights], lr=0.05)
    expected = [weights.tolist()]
    for _ in range(40):
        optimizer.zero_grad()
        (weights[0] ** 2 + 2 * weights[1] ** 2).backward()
        optimizer.step()
        expected.append(weights.tolist())
    # The gradient of a bowl is linear, so reading it between grid points is exact but for the digits sent.
    assert np.array(act([bowl()], action)) == pytest.approx(np.array(expected), abs=2e-4)


def test_descent_says_how_it_ends(act: Act) -> None:
    action = """
      const field = fieldOf(data.surfaces[0], "");
      const ended = (start, rate) => descend(field, start, "sgd", rate, 200).ended;
      const near = [0.3, 0.3];
      return [ended(near, 0.1), ended(near, 1e-4), ended(near, 10), ended([0.9, 1.8], 0.1), ended([-1, -2], 0.1)];
    """
    assert act([bowl()], action) == [
        "settled",
        "still moving",
        "left the plane",
        "stopped, the gradient is zero",
        "stopped, the gradient is not finite",
    ]


def test_level_lines_lie_on_their_level_and_close(act: Act) -> None:
    action = """
      const { values, axes: [across, up] } = fieldOf(data.surfaces[0], "");
      return levelLines(values, across.count, up.count, 0.5);
    """
    (line,) = act([bowl(count=41)], action)
    x, y = np.array(line).T
    assert line[0] == pytest.approx(line[-1])
    assert (x / 40 * 2 - 1) ** 2 + 2 * (y / 44 * 4 - 2) ** 2 == pytest.approx(np.full(len(line), 0.5), abs=0.02)
