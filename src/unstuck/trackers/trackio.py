"""Trackio: a run of its own, in the project and the group of the program's."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from unstuck.trackers import PREFIX, Found, Place, Run, markdown

NEEDS = "trackio"
PROJECT = "unstuck"
"""Of a program that uses none."""
LEVELS = {"error": "error", "warning": "warn"}


def current() -> Place | None:
    """The active run of the program, and the server it goes to."""
    variables = getattr(sys.modules.get("trackio"), "context_vars", None)
    run = variables.current_run.get() if variables is not None else None
    if run is None:
        return None
    known = {
        "project": run.project,
        "name": run.name,
        "group": getattr(run, "group", None),
        "space_id": getattr(run, "_space_id", None),
        "server_url": getattr(run, "_server_base_url", None),
    }
    return {name: str(value) for name, value in known.items() if value}


def begin(run: Run, place: Place | None) -> TrackioRun:
    """On the server of the program's run, if that has one."""
    return TrackioRun(run, place or {})


class TrackioRun:
    """A run of Trackio. Histograms and gauges of a step become one row."""

    def __init__(self, run: Run, place: Place) -> None:
        trackio: Any = importlib.import_module("trackio")
        self._trackio = trackio
        name = f"{place['name']}-unstuck" if "name" in place else run.name
        project = place.get("project", PROJECT)
        options: dict[str, Any] = {
            "project": project,
            "name": name,
            "group": place.get("group") or place.get("name"),
            "config": {"script": run.script, "arguments": " ".join(run.arguments), "record": run.folder},
            "auto_log_gpu": False,
            "auto_log_cpu": False,
            "embed": False,
            **{option: place[option] for option in ("space_id", "server_url") if option in place},
        }
        known = inspect.signature(trackio.init).parameters  # versions differ
        self._run = trackio.init(**{option: value for option, value in options.items() if option in known})
        self._row: dict[str, Any] = {}
        self._step = -1
        self.where = f"the run {name} of {project} (trackio show --project {project})"

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """In the row of this step."""
        self._at(step).update(numbers)

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """With its edges as they are."""
        self._at(step)[name] = self._trackio.Histogram(np_histogram=(list(counts), list(edges)))

    def finding(self, found: Found) -> None:
        """As an alert."""
        level = self._trackio.AlertLevel(LEVELS.get(found.severity, "info"))
        self._run.alert(title=found.title, text=f"{found.message}\n{found.change}", level=level)

    def _at(self, step: int) -> dict[str, Any]:
        if step != self._step:
            self.flush()
            self._step = step
        return self._row

    def flush(self) -> None:
        """The row of the last step may not be complete, and a second one for the same step does no harm."""
        row, self._row = self._row, {}
        if row:
            self._run.log(row, step=self._step)

    def end(self, findings: Sequence[Found]) -> None:
        """With the findings of the complete run."""
        self.flush()
        text = self._trackio.Markdown(markdown(findings))
        self._run.log({f"{PREFIX}/findings": text}, step=max(self._step, 0))
        self._run.finish()
