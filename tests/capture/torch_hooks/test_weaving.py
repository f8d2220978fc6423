"""Observers woven into a function see its calls; the function, its frames and its errors stay as they are."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from unstuck.capture import watching
from unstuck.capture.launch.importing import after_import
from unstuck.capture.torch_hooks.weaving import weave
from unstuck.events import SchedulerStep, ZeroGrad
from unstuck.record import read

COUNT = 0


class Seen:
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, None]:
        return (args, kwargs), None

    def finish(self, token: Any, result: Any, error: BaseException | None) -> None:
        self.calls.append((*token, result, type(error).__name__ if error else ""))


def all_kinds(a, /, b=2, *c, d=4, **e):
    """Every kind of parameter."""
    return [a, b, c, d, e]


def early_ends(n):  # noqa: RET503
    for number in range(n):
        if number == 3:
            return number
        with open(__file__):
            continue
    while n:
        n -= 1


def declares(n):
    if n:
        global COUNT
        COUNT += n
    return COUNT


def closes_over(value):
    def inner(n):
        nonlocal value
        value += n
        return [value for _ in range(2)]

    return inner


class Base:
    def __hidden(self, n):
        return n * 2

    def method(self, n):
        return self.__hidden(n) + len(super().__repr__()) * 0


def fails(n):
    try:
        return 1 / n
    finally:
        n += 1


def stack():
    return [(frame.name, frame.lineno, frame.line) for frame in traceback.extract_stack()[-2:]]


def looks():
    return stack(
        # the call ends below
    )


CALLS = [
    (all_kinds, (1,), {}),
    (all_kinds, (1, 2, 3), {"d": 5, "x": 6}),
    (early_ends, (2,), {}),
    (early_ends, (5,), {}),
    (declares, (0,), {}),
    (Base().method, (4,), {}),
    (fails, (2,), {}),
    (looks, (), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_woven_function_returns_what_it_did(function, args, kwargs):
    plain = getattr(function, "__func__", function)
    bare, names = function(*args, **kwargs), (plain.__defaults__, inspect.getsource(plain), inspect.signature(plain))
    seen, original = Seen(), plain.__code__
    woven = weave(plain, seen)
    assert woven is not None
    assert plain.__code__ is not original
    assert function(*args, **kwargs) == bare
    assert (plain.__defaults__, inspect.getsource(plain), inspect.signature(plain)) == names
    woven.remove(seen)
    assert plain.__code__ is original
    assert [call[2:] for call in seen.calls] == [(bare, "")]


def test_variables_of_a_closure_are_shared():
    function, seen = closes_over(1), Seen()
    assert weave(function, seen) is not None
    assert [function(2), function(3)] == [[3, 3], [6, 6]]
    assert [call[0] for call in seen.calls] == [(2,), (3,)]


def test_an_error_has_the_same_traceback_and_variables():
    def failure():
        with pytest.raises(ZeroDivisionError) as caught:
            fails(0)
        trace = caught.value.__traceback__
        return traceback.format_tb(trace)[1:], [frame.f_lineno for frame, _ in traceback.walk_tb(trace)][1:]

    bare, seen = failure(), Seen()
    woven = weave(fails, seen)
    assert woven is not None
    assert failure() == bare
    woven.remove(seen)
    assert seen.calls == [((0,), {}, None, "ZeroDivisionError")]


def test_several_observers_come_and_go_in_any_order():
    first, second, original = Seen(), Seen(), all_kinds.__code__
    woven = weave(all_kinds, first)
    assert woven is not None
    assert weave(all_kinds, second) is woven
    all_kinds(1)
    woven.remove(first)
    all_kinds(2)
    woven.remove(second)
    all_kinds(3)
    assert (len(first.calls), len(second.calls)) == (1, 2)
    assert all_kinds.__code__ is original
    assert pickle.loads(pickle.dumps(all_kinds)) is all_kinds


def generates():
    yield 1


def test_what_cannot_be_woven_is_left_alone(tmp_path: Path):
    names: dict[str, Any] = {}
    exec(compile("def unknown(n):\n    return n\n", "<nowhere>", "exec"), names)
    changed = tmp_path / "changed.py"
    changed.write_text("def other(n):\n    return n\n")
    exec(compile(changed.read_text(), str(changed), "exec"), names)
    changed.write_text("def other(n):\n    return n + 1\n")
    for function in (names["unknown"], names["other"], generates, len, random.seed):
        assert weave(function, Seen()) is None
    assert names["other"](1) == 1


def test_an_import_is_noticed_without_a_finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "wanted_module.py").write_text("import sys\nfinders = list(sys.meta_path)\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders, told = list(sys.meta_path), []
    after_import("wanted_module", lambda: told.append("wanted_module" in sys.modules))
    after_import("module_that_is_not_there", lambda: told.append(None))()
    assert sys.meta_path == finders
    import colorsys  # noqa: F401

    import wanted_module

    assert wanted_module.finders == finders
    assert told == [True]


class Own(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)


class Halving(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [group["lr"] / 2 for group in self.optimizer.param_groups]

    def step(self, epoch=None):
        super().step(epoch)


def test_a_method_of_the_users_is_told_where_it_is_called(tmp_path: Path):
    model = torch.nn.Linear(2, 1)
    with watching(tmp_path / "run"):
        optimizer = Own(model.parameters(), 0.1)
        scheduler = Halving(optimizer)
        optimizer.zero_grad()  # cleared here
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()  # stepped here
    record, lines = read(tmp_path / "run"), Path(__file__).read_text().splitlines()
    for kind, mark in ((ZeroGrad, "# cleared here"), (SchedulerStep, "# stepped here")):
        (event,) = record.of(kind)
        assert event.place is not None
        assert lines[event.place.line - 1].endswith(mark)
    assert next(record.of(SchedulerStep)).told is False
