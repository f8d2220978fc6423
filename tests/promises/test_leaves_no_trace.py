"""Nothing of ours stays in torch: after success, after the user's error, after our own."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler, optimizer as optimizers

import unstuck
from unstuck.capture import watching
from unstuck.capture.observers.losses import NAMES
from unstuck.capture.observers.steps import Steps
from unstuck.record import read


def code_of(value: object) -> int:
    """Of a function, what it runs: observers are woven into it."""
    return id(getattr(value, "__code__", None))


def state_of_torch() -> dict[str, object]:
    """Everything we are known to touch, by identity."""
    owners = [
        torch.Tensor,
        torch.autograd,
        nn.Module,
        nn.utils,
        clip_grad,
        torch.optim.Optimizer,
        torch.optim.SGD,
    ]
    owners += [torch.amp.GradScaler, modules, lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau, F]
    owners += [lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler]
    return {
        "attributes": {(owner.__name__, name): id(value) for owner in owners for name, value in vars(owner).items()},
        "code": {(owner.__name__, name): code_of(value) for owner in owners for name, value in vars(owner).items()},
        "forward hooks": len(modules._global_forward_hooks) + len(modules._global_forward_pre_hooks),
        "always called": dict(modules._global_forward_hooks_always_called),
        "with kwargs": dict(getattr(modules, "_global_forward_hooks_with_kwargs", {})),
        "step hooks": len(optimizers._global_optimizer_pre_hooks) + len(optimizers._global_optimizer_post_hooks),
        "import": list(sys.meta_path),
        "grad mode": torch.is_grad_enabled(),
    }


def step(model: nn.Module | None = None) -> list[float]:
    torch.manual_seed(0)
    model = model or nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


def test_after_success(tmp_path: Path):
    before = state_of_torch()
    with watching(tmp_path / "run"):
        during = state_of_torch()
        step()
    assert state_of_torch() == before
    during["attributes"].pop(("Tensor", "__getitem__"))  # type: ignore[attr-defined] # see docs/watching.md
    assert during["attributes"] == before["attributes"]
    assert during["forward hooks"] == before["forward hooks"]
    changed = {key for key, value in during["code"].items() if before["code"].get(key) != value}  # type: ignore[attr-defined, index]
    watched = {("torch.autograd", "backward"), ("torch.nn.functional", "cross_entropy"), ("Module", "_call_impl")}
    assert watched <= changed


def attributes_of_all_torch() -> dict[tuple[str, str], object]:
    """What every loaded module of torch and every class in it holds."""
    found: dict[tuple[str, str], object] = {}
    for name, module in list(sys.modules.items()):
        if module is None or name.partition(".")[0] != "torch":
            continue
        for own, value in list(getattr(module, "__dict__", {}).items()):
            found[name, own] = value
            if isinstance(value, type) and value.__module__.startswith("torch"):
                found.update(((f"{name}.{own}", inner), held) for inner, held in list(vars(value).items()))
    return found


def code_of_all_torch() -> dict[tuple[str, str], object]:
    """What every function of torch runs."""
    return {key: value.__code__ for key, value in attributes_of_all_torch().items() if isinstance(value, FunctionType)}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # some parts of torch warn when they are looked at
def test_nothing_anywhere_in_torch_is_changed(tmp_path: Path):
    step()
    before, code_before = attributes_of_all_torch(), code_of_all_torch()
    with watching(tmp_path / "run"):
        step()
        during, code_during = attributes_of_all_torch(), code_of_all_torch()
    after, code_after = attributes_of_all_torch(), code_of_all_torch()
    numbers = {"next_id"}  # torch numbers all hooks that there ever were
    for others in (during, after):
        assert {key[1] for key, value in before.items() if others.get(key) is not value} <= numbers
    assert all(code_after[key] is code for key, code in code_before.items())
    assert len([key for key, code in code_before.items() if code_during[key] is not code]) > 30
    ours = [key for key, value in after.items() if "unstuck" in str(getattr(value, "__module__", ""))]
    assert ours == []


def crash(_: object) -> None:
    nn.Linear(3, 3)(torch.ones(2, 2))


def interrupt(_: object) -> None:
    model = nn.Linear(3, 3)

    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    model.register_forward_hook(pressed)
    model(torch.ones(2, 3)).sum().backward()


def leave_from_a_backward(_: object) -> None:
    loss = nn.Linear(3, 1)(torch.ones(1, 3)).sum()
    loss.register_hook(lambda _: sys.exit(3))
    loss.backward()


def leave_from_a_step(_: object) -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 1).parameters(), 0.1)
    optimizer.step(lambda: sys.exit(3))


ENDINGS = {
    crash: RuntimeError,
    interrupt: KeyboardInterrupt,
    leave_from_a_backward: SystemExit,
    leave_from_a_step: SystemExit,
}


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
@pytest.mark.parametrize("begin", [watching, unstuck.watch], ids=["watching", "unstuck.watch"])
def test_after_the_programs_own_end(tmp_path: Path, ending, begin):
    before = state_of_torch()
    watch = begin(tmp_path / "run") if begin is watching else begin(record=tmp_path / "run", print=False)
    with pytest.raises(ENDINGS[ending]), watch:
        ending(step())
    assert state_of_torch() == before
    bare = step()
    assert step() == bare


def test_after_our_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = state_of_torch()

    def broken(*_):
        raise LookupError("ours")

    monkeypatch.setattr(Steps, "attach", broken)
    with pytest.raises(LookupError), watching(tmp_path / "loud"):
        pass
    assert state_of_torch() == before
    monkeypatch.delenv("UNSTUCK_RAISE")
    bare = step()
    with watching(tmp_path / "quiet"):
        assert step() == bare
    assert state_of_torch() == before
    assert "ours" in read(tmp_path / "quiet").notes[0].text


OBSERVERS = [
    ("capture.observers.forwards", "Forwards", "before"),
    ("capture.observers.forwards", "Forwards", "after"),
    ("capture.observers.forwards", "Modes", "before"),
    ("capture.observers.losses", "Losses", "_before"),
    ("capture.observers.losses", "Losses", "_record"),
    ("capture.observers.gradients", "Zeroing", "before"),
    ("capture.observers.gradients", "Zeroing", "after"),
    ("capture.observers.gradients", "Clips", "prepare"),
    ("capture.observers.gradients", "Clips", "after"),
    ("capture.observers.backwards", "Backwards", "before"),
    ("capture.observers.backwards", "Backwards", "after"),
    ("capture.observers.steps", "Steps", "before"),
    ("capture.observers.steps", "Steps", "after"),
    ("capture.observers.steps", "Steps", "_read_gradients"),
    ("capture.observers.steps", "Steps", "built"),
    ("capture.detect.nonfinite", "Inspector", "loss_seen"),
    ("capture.detect.nonfinite", "Inspector", "window_began"),
    ("capture.window", "Watch", "tell"),
    ("capture.window", "Window", "step_taken"),
    ("capture.window", "Summary", "window_ended"),
    ("capture.places", "Places", "here"),
]


@pytest.mark.parametrize(("module", "kind", "method"), OBSERVERS, ids=lambda part: part)
def test_a_fault_of_ours_does_not_reach_the_program(tmp_path, monkeypatch, module, kind, method):
    monkeypatch.delenv("UNSTUCK_RAISE")
    bare = step()

    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("a fault of ours")

    before = state_of_torch()
    monkeypatch.setattr(getattr(sys.modules[f"unstuck.{module}"], kind), method, broken)
    with watching(tmp_path / "run"):
        nn.Linear(3, 2).train()
        assert step() == bare
    assert state_of_torch() == before
    told = " ".join(note.text for note in read(tmp_path / "run").notes)
    assert "a fault of ours" in told


def test_what_others_wrapped_on_top_of_us_keeps_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with watching(tmp_path / "run"):
        ours = F.mse_loss
        monkeypatch.setattr(F, "mse_loss", lambda *args, **kwargs: ours(*args, **kwargs) * 1)
    assert F.mse_loss(torch.ones(2), torch.zeros(2)).item() == 1.0
    assert len(list(read(tmp_path / "run").events)) == 2


def test_functions_imported_by_name_are_watched_and_then_let_go(tmp_path: Path):
    with watching(tmp_path / "run"):
        names = {name: getattr(F, name) for name in NAMES}
        assert all(function.__module__ == "torch.nn.functional" for function in names.values())
    assert names["mse_loss"](torch.ones(2), torch.zeros(2)).item() == 1.0


def test_models_and_optimizers_are_not_kept_alive(tmp_path: Path):
    with watching(tmp_path / "run"):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        references = weakref.ref(model), weakref.ref(optimizer)
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        del model, optimizer
        gc.collect()
        assert [reference() for reference in references] == [None, None]


def test_the_observers_named_here_exist():
    assert Steps.__module__ == "unstuck.capture.observers.steps"
    for module, kind, method in OBSERVERS:
        assert callable(getattr(getattr(sys.modules[f"unstuck.{module}"], kind), method))
    assert set(NAMES) <= set(vars(F))
