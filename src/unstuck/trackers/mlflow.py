"""MLflow: metrics of the program's own run, which any process may add to; else a run of its own."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from unstuck.trackers import PREFIX, Found, Place, Run, markdown

NEEDS = "mlflow"
EXPERIMENT = "unstuck"
"""Where a run of its own goes, unless the environment names another."""
MOST = 500
"""Metrics of one request: servers take 1,000, but a file that the program writes to as well is locked so long."""
RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
LONGEST = 500
"""Letters of a tag that every server keeps."""


def current() -> Place | None:
    """The active run of the training thread."""
    mlflow = sys.modules.get("mlflow")
    active = getattr(mlflow, "active_run", None)
    run = active() if active is not None else None
    if mlflow is None or run is None:
        return None
    return {"uri": _absolute(str(mlflow.get_tracking_uri())), "run": str(run.info.run_id)}


def begin(run: Run, place: Place | None) -> MlflowRun:
    """In the program's run if there is one."""
    is_patient = RETRIES not in os.environ
    os.environ.setdefault(RETRIES, "2")  # a server that is not there is soon known; later ones may take their time
    try:
        return MlflowRun(run, place)
    finally:
        if is_patient:
            del os.environ[RETRIES]


class MlflowRun:
    """A run of MLflow. It has no histograms: those are kept as a file of the run, a line for each."""

    def __init__(self, run: Run, place: Place | None) -> None:
        self._entities: Any = importlib.import_module("mlflow.entities")
        client: Any = importlib.import_module("mlflow.tracking").MlflowClient
        self._client = client(place["uri"] if place is not None else None)
        self._is_own = place is None
        self._run = self._client.get_run(place["run"]).info.run_id if place is not None else self._own_run(run)
        self._pending: list[Any] = []
        self._histograms: list[str] = []
        whose = "a run of its own" if self._is_own else "the run of the script"
        self.where = f"{whose}, {self._run}"

    def _own_run(self, run: Run) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        number = os.environ.get("MLFLOW_EXPERIMENT_ID") or (
            found.experiment_id if found is not None else self._client.create_experiment(name)
        )
        tags = {"mlflow.runName": run.name, "mlflow.source.name": run.script, f"{PREFIX}/record": run.folder}
        return str(self._client.create_run(number, tags=tags).info.run_id)

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """As metrics."""
        now = int(time.time() * 1000)
        metric = self._entities.Metric
        self._pending += [metric(_named(name), value, now, step) for name, value in numbers.items()]
        if len(self._pending) >= MOST:
            self.flush()

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """For the file."""
        line = {"step": step, "name": name, "edges": list(edges), "counts": list(counts)}
        self._histograms.append(json.dumps(line) + "\n")

    def finding(self, found: Found) -> None:
        """As a tag, which the list of runs can show and search."""
        text = f"{found.title}: {found.message}"
        self._client.set_tag(self._run, _named(f"{PREFIX}/{found.code} {found.name}"), text[:LONGEST])

    def flush(self) -> None:
        """In as few requests as the server allows."""
        while self._pending:
            part, self._pending = self._pending[:MOST], self._pending[MOST:]
            self._client.log_batch(self._run, metrics=part)

    def end(self, findings: Sequence[Found]) -> None:
        """The findings and histograms become files of the run; a run of the program is left open."""
        self.flush()
        self._client.log_text(self._run, markdown(findings) + "\n", "unstuck/findings.md")
        if self._histograms:
            self._client.log_text(self._run, "".join(self._histograms), "unstuck/histograms.jsonl")
        if self._is_own:
            self._client.set_terminated(self._run)


def _named(name: str) -> str:
    """With the letters that MLflow allows in a name."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)[:250]


def _absolute(uri: str) -> str:
    """The same place for a process in another directory."""
    scheme, found, path = uri.rpartition(":///")
    if found and scheme == "sqlite" and path:
        return f"sqlite:///{os.path.abspath(path)}"
    return uri if ":" in uri or uri.startswith("databricks") else os.path.abspath(uri)
