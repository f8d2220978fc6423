"""A crash with a known cause is explained at the user's line, in the user's numbers; any other is left alone."""

from __future__ import annotations

import contextlib
import gc
import os
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes import make_record

from tests.capture.conftest import Recorded
from tests.capture.crash.crash_scripts import EXPLAINED, UNRELATED, Explained
from unstuck.events import Crash, Event, Forward, InputFact, LossCall, Place, TensorFact
from unstuck.findings import Finding, Severity
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.record import read
from unstuck.source.what_ran import script_of
from unstuck.testing.runs import OUTPUT, run_server

START = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


def verdict_on(code: str) -> tuple[Verdict, Crash]:
    """Run the code under watch in this folder, in a process of its own, and judge its record."""
    Path("train.py").write_text(START + textwrap.dedent(code), encoding="utf-8")
    run_server().run(os.getcwd(), ["run", "--fail-on", "never", "train.py"])
    record = read(next(Path(".unstuck/runs").iterdir()))
    script = script_of(record)
    assert record.crash is not None, "the script was to crash"
    assert not record.notes
    return judge(scripts=(script,) if script else (), record=record), record.crash


def loud(verdict: Verdict) -> list[Finding]:
    return [d.lead for d in verdict.diagnoses if d.severity.at_least(Severity.WARNING)]


@pytest.mark.parametrize("case", EXPLAINED, ids=lambda case: case.name)
def test_a_known_cause_gets_one_explanation(case: Explained, folder: Path) -> None:
    verdict, crash = verdict_on(case.code)
    assert not verdict.failures
    found = loud(verdict)
    assert [finding.code for finding in found[:1]] == [case.rule], (crash, found)
    symptoms = verdict.diagnoses[0].explains
    assert all(finding.code in symptoms for finding in found[1:]), found
    finding = found[0]
    lines = Path("train.py").read_text().split("\n")
    assert any("# here" in lines[place.line - 1] for place in finding.places if place.path == "train.py"), finding
    said = f"{finding.message} {finding.cause} {finding.fix.text}"
    for words in case.says:
        assert words in said


@pytest.mark.parametrize("name", UNRELATED)
def test_an_unrelated_crash_is_left_alone(name: str, folder: Path) -> None:
    verdict, crash = verdict_on(UNRELATED[name])
    assert not verdict.diagnoses, (crash, [d.lead for d in verdict.diagnoses])


def test_the_traceback_comes_first_and_then_the_finding(folder: Path) -> None:
    case = next(case for case in EXPLAINED if case.name == "labels from 1")
    verdict_on(case.code)
    output = Path(OUTPUT).read_text()
    assert output.index("Traceback (most recent call last)") < output.index("IndexError: Target")
    assert output.index("IndexError: Target") < output.index("O14 ce-target-form")


def test_a_crash_keeps_nothing_of_the_program_alive(recorded: Recorded) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def program() -> None:
        x = torch.randn(4, 7)
        alive.append(weakref.ref(x))
        torch.nn.Linear(3, 2)(x)

    assert next(recorded(program, RuntimeError).of(Crash)).inputs[0].shape == (4, 7)
    gc.collect()
    assert alive[0]() is None


def test_no_code_of_the_program_runs_when_a_crash_is_read(recorded: Recorded) -> None:
    class Odd:
        def __getattribute__(self, name: str) -> object:
            raise SystemError(name)

    class Mine(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: object, types: object, args: object = (), kwargs: object = None
        ) -> object:
            raise SystemError(function)

    def program(self: Odd, mine: Mine) -> None:
        loss = torch.nn.Linear(3, 2)(torch.randn(4, 3)).pow(2).mean()
        loss.backward()
        loss.backward(torch.tensor(1.0), inputs=[mine] if self is None else None)

    odd, mine = Odd(), torch.zeros(3).as_subclass(Mine)
    crash = next(recorded(lambda: program(odd, mine), RuntimeError).of(Crash))
    assert crash.function == "backward"


def explained(*events: Event) -> list[Finding]:
    return loud(judge(record=make_record(*events)))


def crash(message: str, kind: str = "RuntimeError", **more: object) -> Crash:
    return Crash(kind=kind, message=message, place=Place("train.py", 7), **more)  # type: ignore[arg-type]


def tensor(name: str, *shape: int, dtype: str = "float32") -> InputFact:
    return InputFact(name, shape=shape, dtype=dtype)


def test_an_input_left_on_the_cpu() -> None:
    (finding,) = explained(
        crash(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (when "
            "checking argument for argument mat1 in method wrapper_CUDA_addmm)",
            module="fc",
            module_kind="Linear",
            inputs=(tensor("input", 32, 10), tensor("weight", 5, 10)),
            names={"input": "images"},
            devices={"input": "cpu", "weight": "cuda:0"},
        )
    )
    assert finding.code == "M17"
    assert "`images` on cpu" in finding.message
    assert "images.to('cuda:0')" in finding.fix.text


def test_a_layer_left_on_the_cpu() -> None:
    (finding,) = explained(
        crash(
            "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
            module="conv1",
            module_kind="Conv2d",
            inputs=(tensor("input", 32, 3, 8, 8), tensor("weight", 5, 3, 3, 3)),
            devices={"input": "cuda:0", "weight": "cpu"},
        )
    )
    assert finding.code == "M17"
    assert "`conv1` (Conv2d) is still on the CPU. Call model.to('cuda:0')" in finding.fix.text


def test_devices_without_any_fact_are_quoted_from_the_message() -> None:
    (finding,) = explained(
        crash("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!")
    )
    assert finding.code == "M17"
    assert "cuda:0 and cuda:1" in finding.message


def test_a_checkpoint_of_a_gpu() -> None:
    (finding,) = explained(
        crash(
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are "
            "running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')"
        )
    )
    assert finding.code == "M17"
    assert "map_location" in finding.fix.text


OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 22.40 GiB memory in use. Of the allocated memory 21.00 GiB "
    "is allocated by PyTorch, and 900.00 MiB is reserved by PyTorch but unallocated."
)


def test_out_of_memory_quotes_the_numbers() -> None:
    (finding,) = explained(crash(OUT_OF_MEMORY, "OutOfMemoryError", function="backward"))
    assert finding.code == "M21"
    assert finding.message == "2.50 GiB of memory could not be allocated in backward()."
    assert {item.value for item in finding.evidence} >= {"23.65 GiB", "1.20 GiB", "21.00 GiB", "900.00 MiB"}


def test_out_of_memory_in_an_evaluation_that_records_gradients() -> None:
    forward = Forward(model="Net", training=False, grad_enabled=True)
    (finding,) = explained(forward, crash(OUT_OF_MEMORY, "OutOfMemoryError"))
    assert "no_grad" in finding.fix.text


def test_out_of_memory_after_many_steps_that_fitted() -> None:
    (finding,) = explained(crash(OUT_OF_MEMORY, "OutOfMemoryError", step=340))
    assert "The first 340 steps fitted" in finding.cause


def test_a_device_side_assert() -> None:
    (finding,) = explained(crash("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`"))
    assert finding.code == "M20"
    assert "CUDA_LAUNCH_BLOCKING=1" in finding.fix.text


def test_types_that_meet_only_in_backward() -> None:
    loss = LossCall(
        loss="mse_loss",
        place=Place("train.py", 5),
        input=TensorFact((8,), "float32"),
        target=TensorFact((8,), "float64"),
    )
    (finding,) = explained(loss, crash("Found dtype Double but expected Float", function="backward"))
    assert finding.code == "M19"
    assert finding.place == Place("train.py", 5)


def test_what_the_program_raises_itself_is_its_own_business() -> None:
    assert not explained(crash("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", raised=True))
