"""Pictures of every section of the page, at three widths and in both themes, to be looked at: `make screenshots`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.view.browser import Watched, browser, trouble
from unstuck.view.live import Runs
from unstuck.view.server import Server

ROOT = Path(__file__).parents[2]
WIDTHS = (400, 1280, 2560)
THEMES = ("light", "dark")
SECTIONS = ("answer", "timeline", "findings", "layers", "data", "experiments", "checked")


def main() -> int:
    """Run three examples, and write the pictures into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots").absolute()
    if trouble():
        print(trouble(), file=sys.stderr)
        return 3
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        pages = {
            "stuck": _report(here, "diagnose", ROOT / "examples/stuck/train.py"),
            "resnet": _report(here, "run", ROOT / "examples/healthy/resnet.py"),
            "gpt": _report(here, "run", ROOT / "examples/healthy/gpt.py"),
        }
        errors: list[str] = []
        with browser() as opened:
            for width in WIDTHS:
                for theme in THEMES:
                    for name, file in pages.items():
                        errors += _sections(opened, file, folder, f"{name}-{width}-{theme}", width, theme)
                    errors += _live(opened, here, folder, width, theme)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")
    return 1 if errors else 0


def _report(here: Path, verb: str, script: Path) -> Path:
    file = here / f"{script.stem}.html"
    command = [sys.executable, "-m", "unstuck", verb, "--html", str(file), str(script)]
    subprocess.run(command, cwd=here, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    return file


def _sections(opened: Any, file: Path, folder: Path, name: str, width: int, theme: str) -> list[str]:
    watched = Watched(opened, width, 1000, theme)
    watched.page.goto(file.as_uri())
    watched.page.wait_for_timeout(400)
    _whole(watched.page, width)
    for section in SECTIONS:
        found = watched.page.locator(f"#{section}")
        if found.count():
            found.screenshot(path=folder / f"{name}-{section}.png")
    watched.page.set_viewport_size({"width": width, "height": 1000})
    if watched.page.evaluate("(shown.doc.layers?.tensors ?? []).length > 0"):
        watched.page.evaluate("openLayer(shown.doc.layers.tensors[shown.doc.layers.tensors.length >> 1].name)")
        watched.page.wait_for_timeout(500)
        watched.page.screenshot(path=folder / f"{name}-layer.png")
    watched.context.close()
    return watched.errors


def _whole(page: Any, width: int) -> None:
    """Tall enough for all of it, so that every chart is drawn."""
    for _ in range(2):
        height = page.evaluate("document.querySelector('main').scrollHeight + 200")
        page.set_viewport_size({"width": width, "height": min(height, 12_000)})
        page.wait_for_timeout(500)


def _live(opened: Any, here: Path, folder: Path, width: int, theme: str) -> list[str]:
    before = os.getcwd()
    os.chdir(here)
    server = Server(Runs())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=server.work, daemon=True).start()
    try:
        watched = Watched(opened, width, 1200, theme, server.address)
        watched.page.goto(server.address)
        watched.page.wait_for_timeout(4000)
        watched.page.screenshot(path=folder / f"live-{width}-{theme}.png")
        watched.page.evaluate("served.runs.slice(1).forEach(run => toggleOther(run.name))")
        watched.page.wait_for_timeout(2500)
        _whole(watched.page, width)
        if watched.page.locator("#compare").count():
            watched.page.locator("#compare").screenshot(path=folder / f"compare-{width}-{theme}.png")
        watched.context.close()
        return watched.errors
    finally:
        server.stop()
        server.shutdown()
        server.server_close()
        os.chdir(before)


if __name__ == "__main__":
    sys.exit(main())
