"""Each promise as a question with a yes, a no and a measured answer."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from unstuck.capture import watching
from unstuck.capture.observers.forwards import Forwards
from unstuck.doctor.overhead import ratios
from unstuck.doctor.workloads import MODELS, Model, differences, outcome, perceptron
from unstuck.events import Gauges
from unstuck.findings.results import Isolation
from unstuck.record import RecordError, read
from unstuck.record.runs import new_run_folder, remove_run

STEPS = 60
MOST_OVERHEAD = 1.25
"""A run on a machine that does other things too; on a quiet one the ratio is below 1.05."""


class Check(NamedTuple):
    """One answer."""

    name: str
    ok: bool
    detail: str


def checks() -> Iterator[Check]:
    """All of them, one after the other; one that breaks down counts as broken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors as small as these are slower on many
    try:
        for name, build in MODELS.items():
            yield _asked(f"same results: {name}", partial(_same_results, build))
        yield _asked("nothing stays in torch", _nothing_stays)
        yield _asked("a fault of ours stays ours", _faults_stay_ours)
        yield _asked("the record can be written", _record)
        yield _asked("trials cannot touch your files", _isolation)
        yield _asked("overhead on a small MLP", _overhead)
    finally:
        torch.set_num_threads(threads)


def _asked(name: str, question: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *question())
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _watched() -> Iterator[Path]:
    """Under watch, with internal errors swallowed as they are for a user; yields the path of the record."""
    loud = os.environ.pop("UNSTUCK_RAISE", None)
    try:
        with tempfile.TemporaryDirectory() as folder, watching(Path(folder) / "run"):
            yield Path(folder) / "run"
    finally:
        if loud is not None:
            os.environ["UNSTUCK_RAISE"] = loud


def _same_results(build: Model) -> tuple[bool, str]:
    bare = outcome(build, STEPS)
    with _watched() as folder:
        watched = outcome(build, STEPS)
        seen = len(list(read(folder).of(Gauges)))
    wrong = differences(bare, watched)
    if wrong:
        return False, f"different with the watch: {', '.join(wrong)}"
    return seen > 0, f"{STEPS} steps equal to the last bit" if seen else "no step was recorded"


def _nothing_stays() -> tuple[bool, str]:
    before = _patched()
    with _watched():
        during = _patched()
        outcome(perceptron, 3)
    after = _patched()
    left = [name for name in before if before[name] != after[name]]
    count = sum(before[name] != during[name] for name in before)
    if left:
        return False, f"left behind: {', '.join(left[:3])}"
    return count > 0, f"{count} patches and hooks taken away again"


def _patched() -> dict[str, int]:
    """Everything a watch touches, by identity or number."""
    owners = (torch.Tensor, torch.autograd, nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, F, nn.utils)
    held = [(f"{owner.__name__}.{name}", value) for owner in owners for name, value in vars(owner).items()]
    found = {name: id(value) for name, value in held}
    found |= {f"the code of {name}": id(value.__code__) for name, value in held if hasattr(value, "__code__")}
    found["forward hooks"] = len(modules._global_forward_hooks) + len(modules._global_forward_pre_hooks)
    found["step hooks"] = len(optimizers._global_optimizer_pre_hooks) + len(optimizers._global_optimizer_post_hooks)
    return found


def _faults_stay_ours() -> tuple[bool, str]:
    bare = outcome(perceptron, 10)

    def broken(*_: object) -> None:
        raise LookupError("planted by unstuck doctor")

    healthy = Forwards.after
    try:
        Forwards.after = broken  # type: ignore[method-assign, assignment]
        with _watched() as folder:
            watched = outcome(perceptron, 10)
            noted = any("planted" in note.text for note in read(folder).notes)
    finally:
        Forwards.after = healthy  # type: ignore[method-assign]
    wrong = differences(bare, watched)
    if wrong:
        return False, f"an error in an observer changed the {', '.join(wrong)}"
    return noted, "swallowed and noted in the record" if noted else "the planted error was not noted"


def _record() -> tuple[bool, str]:
    try:
        folder, moved = new_run_folder("doctor")
    except RecordError as error:
        return False, str(error)
    try:
        with watching(folder):
            outcome(perceptron, 1)
        complete = read(folder).ended is not None
    except RecordError as error:
        return False, str(error)
    finally:
        remove_run(folder)
    return complete, moved or f"in {_typed(folder.parent)}"


def _isolation() -> tuple[bool, str]:
    """The strongest way that works, in the folder where it would be used."""
    from unstuck.trials.runner import Program, Runner

    folder, _ = new_run_folder("doctor")
    try:
        with Runner(Program("doctor.py"), folder) as runner:
            held = runner.await_isolation()
    finally:
        remove_run(folder)
    if held in (None, Isolation.COPIES):
        return False, f"the kernel does not protect them here: {runner.isolation_reason or 'no trial could be started'}"
    return True, held + (f", since {runner.isolation_reason}" if runner.isolation_reason else "")


def _typed(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _overhead() -> tuple[bool, str]:
    watched, identical = ratios()
    return watched <= MOST_OVERHEAD, f"{watched:.2f} of the bare step (bare again: {identical:.2f})"
