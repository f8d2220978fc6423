"""Weights & Biases: a run of its own, in the project and the group of the program's.

Not the program's run itself: every `log` there moves the steps of that run on, and a second process that writes to it
needs a mode that the program would have to choose.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from unstuck.trackers import PREFIX, Found, Place, Run

NEEDS = "wandb"
SETTINGS = {"silent": True, "console": "off", "x_disable_stats": True, "save_code": False, "disable_git": True}
"""Nothing is printed, and the machine is not measured a second time."""
STEP = f"{PREFIX}/step"


def current() -> Place | None:
    """The active run of the program."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return None
    settings = run.settings
    known = {
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "entity": run.entity,
        "group": run.group,
        "mode": "disabled" if getattr(run, "disabled", False) else "offline" if run.offline else "online",
        "dir": os.path.abspath(settings.root_dir),
        "base_url": settings.base_url,
    }
    return {name: str(value) for name, value in known.items() if value}


def begin(run: Run, place: Place | None) -> WandbRun:
    """Offline if the program's run is."""
    return WandbRun(run, place or {})


class WandbRun:
    """A run of W&B. Histograms and gauges of a step become one row."""

    def __init__(self, run: Run, place: Place) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._wandb = wandb
        options: dict[str, Any] = {name: place[name] for name in ("project", "entity", "mode", "dir") if name in place}
        name = f"{place['name']}-unstuck" if "name" in place else run.name
        group = place.get("group") or place.get("id")
        wanted = SETTINGS | ({"base_url": place["base_url"]} if "base_url" in place else {})
        known = getattr(wandb.Settings, "model_fields", wanted)  # versions differ
        settings = wandb.Settings(**{name: value for name, value in wanted.items() if name in known})
        self._run = wandb.init(
            name=name,
            group=group,
            job_type="unstuck",
            config={"script": run.script, "arguments": list(run.arguments), "record": run.folder},
            settings=settings,
            **options,
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric(f"{PREFIX}*", step_metric=STEP)
        self._row: dict[str, Any] = {}
        self._step = -1
        self._findings: list[Found] = []
        self.where = f"the run {name} ({self._run.url or self._run.dir.removesuffix('/files')})"

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """In the row of this step."""
        self._at(step).update(numbers)

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """With its edges as they are."""
        histogram = self._wandb.Histogram(np_histogram=(list(counts), list(edges)))
        self._at(step)[name] = histogram

    def finding(self, found: Found) -> None:
        """As a table that grows, and in the summary."""
        self._findings.append(found)
        self._show(found.step)

    def _show(self, step: int) -> None:
        items = "".join(
            f"<p><b>{escape(found.title)}</b> (step {found.step})<br>{escape(found.message)}"
            f"<br>{escape(found.change)}</p>"
            for found in self._findings
        )
        self._at(step)[f"{PREFIX}/findings"] = self._wandb.Html(items or "Nothing found.", inject=False)
        self._run.summary[f"{PREFIX}/found"] = ", ".join(f"{found.code} {found.name}" for found in self._findings)

    def _at(self, step: int) -> dict[str, Any]:
        if step != self._step:
            self._send()
            self._step = step
        return self._row

    def _send(self) -> None:
        row, self._row = self._row, {}
        if row:
            self._run.log({**row, STEP: self._step})

    def flush(self) -> None:
        """The row of the last step may not be complete, and a second one for the same step does no harm."""
        self._send()

    def end(self, findings: Sequence[Found]) -> None:
        """With the findings of the complete run."""
        self._findings = list(findings)
        self._show(max((found.step for found in findings), default=max(self._step, 0)))
        self._send()
        self._run.finish()
