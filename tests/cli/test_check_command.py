"""`unstuck check`: objects out of a function, the report, and one sentence for what cannot be checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unstuck.cli import main

pytest.importorskip("torch")

TRAINING = """
import types

import torch
from torch import nn

import neighbour


def build(last=None, width=4):
    torch.manual_seed(0)
    layers = [nn.Linear(width, 3)] + ([last] if last else [])
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizer": optimizer,
        "batch": (torch.randn(8, 4), torch.randint(3, (8,))),
    }


def healthy():
    print("building")
    return build()


def as_tuple():
    return tuple(build().values())


def as_object():
    return types.SimpleNamespace(**build())


def model_alone():
    import neighbour_too

    return (build()["model"],)


def broken():
    return build(nn.Softmax(dim=1))


def narrow():
    return build(width=5)


class Raising(nn.Module):
    def forward(self, x):
        return x.no_such_thing


def raising_model():
    return {**build(), "model": Raising()}


def raising():
    raise KeyError("data")


def leaving():
    raise SystemExit(3)


def nothing():
    return None


def unknown():
    return {**build(), "scheduler": 1}


def too_many():
    return (1, 2, 3, 4, 5)


def no_model():
    return {"model": 3}


def odd_batch():
    return {**build(), "batch": (1, 2, 3)}


def odd_loss():
    return {**build(), "loss_fn": lambda output, target: 1.0}


def lazy():
    return {**build(), "model": nn.LazyLinear(3), "optimizer": None}


asks = lambda x: x
number = 3
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSTUCK_RAISE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("training.py").write_text(TRAINING, encoding="utf-8")
    Path("neighbour.py").touch()
    Path("neighbour_too.py").touch()


@pytest.mark.parametrize("function", ["healthy", "as_tuple", "as_object", "model_alone"])
def test_objects_may_come_in_several_forms(function: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"training.py:{function}"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Nothing found")
    assert "building" not in said.out


def test_a_module_beside_us_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "training:healthy"]) == 0
    assert capsys.readouterr().err == "building\n"


def test_what_is_found_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "training.py:broken"]) == 1
    assert capsys.readouterr().out.startswith("error O12 double-softmax: ")
    assert main(["check", "training.py:broken", "--fail-on", "never"]) == 0


def test_formats_and_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "training.py:broken", "--format", "json", "--output", "check.json"]) == 1
    document = json.loads(Path("check.json").read_text(encoding="utf-8"))
    assert document["command"] == "check"
    assert [diagnosis["code"] for diagnosis in document["diagnoses"]] == ["O12"]
    assert capsys.readouterr().out == ""
    for name in ("concise", "json-lines", "sarif", "github", "junit"):
        assert main(["check", "training.py:broken", "--format", name]) == 1
        assert "O12" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("training.py", "'training.py' does not name a function; write FILE.py:FUNCTION, such as train.py:objects."),
        (":objects", "':objects' does not name a function; write FILE.py:FUNCTION"),
        ("missing.py:objects", "missing.py does not exist, or is not a file; check the path."),
        ("missing:objects", "missing cannot be imported: ModuleNotFoundError: No module named 'missing'"),
        ("training.py:healthi", "training.py has no 'healthi'; did you mean 'healthy'?"),
        ("training.py:number", "training.py:number is not a function; name one that returns the objects."),
        ("training.py:asks", "training.py:asks raises when it is called: TypeError: "),
        ("training.py:raising", "training.py:raising raises when it is called at training.py:"),
        ("training.py:leaving", "training.py:leaving raises when it is called at training.py:"),
        ("training.py:nothing", "training.py:nothing returns no model; return a dict with the keys model, loss_fn"),
        (
            "training.py:unknown",
            "training.py:unknown returns an unknown key 'scheduler'; the keys are model, loss_fn, optimizer",
        ),
        ("training.py:too_many", "training.py:too_many returns 5 values; return at most 4: model, loss_fn, optimizer"),
        ("training.py:no_model", "training.py:no_model cannot be checked: model must be a torch.nn.Module"),
        ("training.py:odd_batch", "training.py:odd_batch cannot be checked: batch must be (inputs, target)"),
        ("training.py:odd_loss", "training.py:odd_loss cannot be checked: loss_fn must return a tensor"),
        ("training.py:lazy", "training.py:lazy cannot be checked: weight has no shape yet"),
        ("training.py:narrow", "the objects of training.py:narrow do not run: RuntimeError: mat1 and mat2 shapes"),
        ("training.py:raising_model", "the objects of training.py:raising_model do not run at training.py:"),
    ],
)
def test_bad_input_is_one_sentence(target: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target, "--output", "report.txt"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"unstuck: {sentence}")
    assert said.err.count("\n") == 1
    assert not Path("report.txt").exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "training.py:healthy", "--output", "nowhere/report.txt"]) == 2
    assert capsys.readouterr().err == "unstuck: cannot write nowhere/report.txt: its directory does not exist.\n"


def test_help_names_the_forms_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = capsys.readouterr().out
    assert "FILE.py:FUNCTION or MODULE:FUNCTION" in said
    assert "exit codes:" in said
