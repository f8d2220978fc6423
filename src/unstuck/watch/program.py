"""`unstuck.watch`: the monitor, called from the program itself."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import operator
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from unstuck.capture import TorchMissing
from unstuck.record import RecordError
from unstuck.watch.engine import Callback, Engine, Options
from unstuck.watch.forwarding import checked
from unstuck.watch.series import series

if TYPE_CHECKING:
    from unstuck.findings import Diagnosis

_active: list[tuple[weakref.ref[Watching], Engine]] = []
"""Watches that have not ended, oldest first. A program may call `watch` and keep nothing."""


class Watching:
    """A watch in progress, or one that has ended. `print` it to read the report."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def findings(self) -> list[Diagnosis]:
        """What has been found so far; the first is what to fix first."""
        return list(self._engine.result().verdict.diagnoses)

    @property
    def record(self) -> Path:
        """Where the record is; `unstuck report` reads it again."""
        return self._engine.path

    @property
    def steps(self) -> int:
        """How many optimizer steps were taken under this watch."""
        return self._engine.steps

    def series(self, name: str, layer: str | None = None, optimizer: str | None = None) -> list[tuple[int, float]]:
        """One gauge as `(step, value)` pairs, of the steps that were recorded.

        Of a step: `loss`, `grad_norm`, `lr`, `loss_scale`, `seconds`, `forward_seconds`, `backward_seconds`,
        `step_seconds`, `memory`. Of a parameter, named by `layer` as in `fc1.weight`: `update_ratio`, `weight_norm`,
        `grad_norm`, `grad_max`, `grad_zero`, `unmoved`. Of an activation: `dead`, `zero`, `saturated`. Of a module:
        `rms`. Where several optimizers have the gauge, `optimizer` names one, such as `Adam#2`.
        """
        return series(self._engine.rows(), name, layer, optimizer)

    def to_pandas(self) -> Any:
        """Every number on record, one per row: `step`, `gauge`, `layer`, `value`, `optimizer`."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError("to_pandas needs pandas, which is not installed here: pip install pandas") from None
        columns = ["step", "gauge", "layer", "value", "optimizer"]
        return pandas.DataFrame(self._engine.rows(), columns=columns)

    def report(self) -> str:
        """The report so far, as text."""
        from unstuck.report import terminal, text

        return terminal.plain(text.render(self._engine.result())).strip("\n")

    def stop(self) -> None:
        """End the watch and print the report to stderr, unless it was begun with `print=False`.

        In a `finally` or `except` block, the current exception counts as what ended the run.
        """
        self._end(sys.exc_info()[1])

    def _end(self, error: BaseException | None) -> None:
        self._engine.end(error)
        _forget_ended()

    def __enter__(self) -> Watching:
        if self._engine.ended:
            raise RuntimeError("this watch has ended; begin another one with unstuck.watch().")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end(error)

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        state = "ended" if self._engine.ended else "watching"
        count = f"{self.steps:,} step" + ("" if self.steps == 1 else "s")
        try:
            found = ", ".join(dict.fromkeys(diagnosis.lead.code for diagnosis in self.findings)) or "nothing found"
        except RecordError:
            found = "no record"
        return f"<unstuck.watch: {state}, {count}, {found}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, the loss, the findings and a heatmap."""
        return self._engine.bundle()["text/html"]

    def _ipython_display_(self) -> None:
        """The same, drawn again in this cell while the run goes on."""
        self._engine.display.show(self._engine.bundle())


def watch(
    model: Any = None,
    optimizer: Any = None,
    *,
    every: int | None = None,
    on_finding: Callback | None = None,
    stop_on: str | None = None,
    record: str | os.PathLike[str] | None = None,
    name: str | None = None,
    to: str | Sequence[str] | None = None,
    print: bool = True,
) -> Watching:
    """Watch whatever this process trains from now on, and say why it does not learn.

    Use it as `with unstuck.watch(model) as w:`, or as `w = unstuck.watch()` and later `w.stop()`; a watch that is
    never stopped ends with the program. Everything the process trains is recorded. With a `model` or an `optimizer`,
    `series` and `to_pandas` cover only the optimizers that hold its parameters, and findings about other models and
    optimizers are left out of `findings`.

    `every`: record every Nth step; by default all at first, later as many as cost next to nothing.
    `on_finding`: called with each finding (a `Diagnosis`) as soon as it is certain, and with the rest at the end.
    `stop_on`: `"error"` or `"warning"`; such a finding ends the program by `unstuck.RunStopped`, a `SystemExit`.
    `record`: a new folder for the record, instead of one under `.unstuck/runs`; `name`: part of that folder's name.
    `to`: trackers that everything is forwarded to as well: `"tensorboard"`, `"wandb"`, `"mlflow"`, `"trackio"`.
    `print`: errors go to stderr at once and the report at the end; with False nothing is printed.
    """
    _check(model, optimizer, on_finding, stop_on)
    _check_place(record)
    trackers = checked(to)
    caller = sys._getframe(1)
    is_worker = caller.f_globals.get("__name__") == "__mp_main__" and caller.f_code.co_name == "<module>"
    place = None if is_worker else record
    trackers = () if is_worker else trackers
    options = Options(_whole(every), on_finding, stop_on, place, name or "", bool(print), trackers)
    engine = Engine((model, optimizer), options, caller)
    watching = Watching(engine)
    if is_worker:
        engine.forget()
        return watching
    if not engine.script:
        # In a notebook a cell is run again and again; in a script a watch that nobody holds lasts to its end.
        _abandon(other for handle, other in _active if handle() is None)
    _active.append((weakref.ref(watching, _was_dropped), engine))
    return watching


def _was_dropped(handle: weakref.ref[Watching]) -> None:
    """A watch whose variable was assigned another one has ended."""
    _abandon(engine for dropped, engine in _active[:-1] if dropped is handle)


def _abandon(engines: Iterable[Engine]) -> None:
    for engine in list(engines):
        engine.abandon()
    _forget_ended()


def _forget_ended() -> None:
    _active[:] = [(handle, engine) for handle, engine in _active if not engine.ended]


@atexit.register
def _end_all() -> None:
    """The program is over; if it crashed, python has just printed why."""
    for _, engine in reversed(_active):
        engine.end(getattr(sys, "last_value", None) if engine.script else None)
    _active.clear()


def _check(model: Any, optimizer: Any, on_finding: Any, stop_on: Any) -> None:
    if importlib.util.find_spec("torch") is None:
        raise TorchMissing("watch needs PyTorch, which is not installed here: pip install torch")
    if model is not None and not _is_a("nn.Module", model):
        raise TypeError(f"watch takes a model, a torch.nn.Module, not a {type(model).__name__}.")
    if optimizer is not None and not _is_a("optim.Optimizer", optimizer):
        raise TypeError(f"watch takes an optimizer of torch as its second argument, not a {type(optimizer).__name__}.")
    if on_finding is not None and not callable(on_finding):
        raise TypeError(f"on_finding must be a function of one finding, not a {type(on_finding).__name__}.")
    if stop_on not in (None, "error", "warning"):
        raise ValueError(f'stop_on must be "error" or "warning", not {stop_on!r}.')


def _check_place(record: Any) -> None:
    """A record is a folder of its own, or a new file that ends in .jsonl."""
    if record is None:
        return
    if not isinstance(record, str | os.PathLike) or not os.fspath(record):
        raise ValueError(f"record must name a new folder, not {record!r}.")
    place = Path(record)
    if place.is_file() and place.suffix != ".jsonl":
        raise RecordError(f"{place} is a file; name a new folder for the record.")


def _is_a(name: str, thing: Any) -> bool:
    """Without importing torch: what is an instance of its classes has it imported already."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, operator.attrgetter(name)(torch))


def _whole(every: Any) -> int | None:
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"every must be a positive integer, not {every!r}.")
    return every
