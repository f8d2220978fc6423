"""What is saved or copied under watch knows nothing of it, and loads where unstuck is not installed."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trainings import bits, seed

from unstuck.capture import watching

LOADER = """\
import pickle, sys
sys.modules["unstuck"] = None  # as where it is not installed
import torch
for name in sys.argv[1:]:
    if name.endswith(".pickle"):
        print(type(pickle.load(open(name, "rb"))).__name__)
    else:
        print(type(torch.load(name, weights_only="state" in name)).__name__)
"""


class Training:
    """A model, an optimizer and all that goes with them, in the middle of a run."""

    def __init__(self) -> None:
        seed()
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, 200)
        self.scaler = torch.amp.GradScaler("cpu")
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.criterion = nn.CrossEntropyLoss()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.average.update_parameters(self.model)

    def saved(self) -> dict[str, bytes]:
        """Every file a program may write of it, by name."""
        parts = {
            "state.pt": {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "scaler": self.scaler.state_dict(),
                "average": self.average.module.state_dict(),
            },
            "model.pt": self.model,
            "optimizer.pt": self.optimizer,
            "scheduler.pt": self.scheduler,
            "scaler.pt": self.scaler,
            "average.pt": self.average.module,
            "copy.pt": copy.deepcopy(self.model),
            "all.pt": [self.model, self.optimizer, self.scheduler, self.scaler, self.criterion],
        }
        functions = [F.cross_entropy, nn.utils.clip_grad_norm_, functools.partial(F.mse_loss, reduction="sum")]
        methods = [self.model.train, self.optimizer.zero_grad, self.model.load_state_dict]
        return {name: _torch_saved(part) for name, part in parts.items()} | {
            "functions.pickle": pickle.dumps(functions),
            "methods.pickle": pickle.dumps(methods),
            "model.pickle": pickle.dumps(self.model),
        }


def _torch_saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def saved_along_the_way() -> dict[str, bytes]:
    """After steps that a watch records, and after some that it does not."""
    training = Training()
    training.steps(3)
    early = training.saved()
    training.steps(60)
    return {f"early-{name}": part for name, part in early.items()} | training.saved()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    """Each file as written without and with a watch."""
    bare = saved_along_the_way()
    with watching(tmp_path_factory.mktemp("record") / "run"):
        watched = saved_along_the_way()
    return {name: (bare[name], watched[name]) for name in bare}


def test_files_are_the_same_byte_for_byte(files: dict[str, tuple[bytes, bytes]]):
    # torch pickles the address of a storage along with it where it is not torch itself that saves.
    torchs = {name: pair for name, pair in files.items() if name.endswith(".pt")}
    assert [name for name, (bare, watched) in torchs.items() if bare != watched] == []
    assert [name for name, (_, watched) in files.items() if b"unstuck" in watched] == []


def test_files_load_without_unstuck(files: dict[str, tuple[bytes, bytes]], tmp_path: Path):
    for name, (_, watched) in files.items():
        (tmp_path / name).write_bytes(watched)
    command = [sys.executable, "-c", LOADER, *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = dict(zip(files, done.stdout.split(), strict=True))
    assert (kinds["model.pt"], kinds["optimizer.pt"], kinds["scheduler.pt"]) == ("Sequential", "AdamW", "OneCycleLR")


def test_copies_train_on_as_the_original_does(tmp_path: Path):
    def branch() -> list[object]:
        training = Training()
        training.steps(3)
        other = copy.deepcopy(training)
        torch.manual_seed(1)
        training.steps(10)
        torch.manual_seed(1)
        other.steps(10)
        assert bits(training.model.state_dict()) == bits(other.model.state_dict())
        return [bits(other.model.state_dict()), bits(other.average.state_dict()), bits(other.optimizer.state_dict())]

    bare = branch()
    with watching(tmp_path / "run"):
        assert branch() == bare


def test_a_checkpoint_is_loaded_under_watch_as_without(tmp_path: Path):
    def resume() -> object:
        training, fresh = Training(), Training()
        training.steps(3)
        file = io.BytesIO(training.saved()["state.pt"])
        state = torch.load(file, weights_only=True)
        fresh.model.load_state_dict(state["model"])
        fresh.optimizer.load_state_dict(state["optimizer"])
        fresh.scheduler.load_state_dict(state["scheduler"])
        fresh.scaler.load_state_dict(state["scaler"])
        torch.manual_seed(1)
        fresh.steps(5)
        return bits(fresh.model.state_dict()), bits(fresh.optimizer.state_dict())

    bare = resume()
    with watching(tmp_path / "run"):
        assert resume() == bare


def test_what_was_made_under_watch_is_free_of_it_afterwards(tmp_path: Path):
    with watching(tmp_path / "run"):
        training = Training()
        training.steps(3)
        during = training.saved()
    assert training.saved() == during
    training.steps(2)


def test_a_function_that_starts_workers_can_be_pickled(tmp_path: Path):
    bare = pickle.dumps(random.seed)
    with watching(tmp_path / "run"):
        assert pickle.dumps(random.seed) == bare


def test_a_loaded_model_is_converted_by_swapping(tmp_path: Path):
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with watching(tmp_path / "run"):
            model = nn.Linear(3, 2)
            model.load_state_dict(nn.Linear(3, 2).state_dict())
            assert model.double().weight.dtype is torch.float64
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
