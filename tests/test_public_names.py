"""The public surface is small, and exactly what it says it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

import unstuck
from unstuck import findings


def test_all_is_what_can_be_seen() -> None:
    assert sorted(unstuck.__all__) == dir(unstuck)
    assert set(unstuck.__all__) == {
        "Diagnosis",
        "Finding",
        "GradientManager",
        "RunStopped",
        "Severity",
        "__version__",
        "assert_learns",
        "assert_relations",
        "assert_trains",
        "baseline",
        "causality",
        "check",
        "diagnose",
        "gradients",
        "helpers",
        "independence",
        "isolate",
        "layers",
        "lr_range",
        "overfit",
        "relations",
        "seeds",
        "surface",
        "watch",
    }


def test_names_are_the_things_themselves() -> None:
    assert unstuck.Finding is findings.Finding
    assert unstuck.Diagnosis is findings.Diagnosis
    assert unstuck.Severity is findings.Severity
    assert callable(unstuck.check)
    assert callable(unstuck.surface)


def test_a_name_that_does_not_exist_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'unstuck' has no attribute 'wach'"):
        unstuck.wach  # noqa: B018


def test_importing_unstuck_loads_next_to_nothing() -> None:
    program = "import unstuck, sys; print(*{'msgspec', 'torch', 'rich', 'argparse'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_everything_callable_is_documented() -> None:
    named = [getattr(unstuck, name) for name in unstuck.__all__ if name != "__version__"]
    assert all(item.__doc__ for item in named)
