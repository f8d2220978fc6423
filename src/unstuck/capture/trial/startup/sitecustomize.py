"""Run by every python that a trial starts: keeps trackers offline there, then runs the user's own `sitecustomize`."""

import importlib.machinery
import importlib.util
import os
import sys


def _run(name: str, spec: "importlib.machinery.ModuleSpec | None") -> None:
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
_trackers = os.path.join(os.path.dirname(_here), "trackers.py")
_run("_unstuck_trackers", importlib.util.spec_from_file_location("_unstuck_trackers", _trackers))
sys.modules["_unstuck_trackers"].keep_offline()
_elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _here]
_run("sitecustomize", importlib.machinery.PathFinder.find_spec("sitecustomize", _elsewhere))
