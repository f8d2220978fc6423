"""`unstuck surface`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unstuck.cli import main

LOSSES = """import torch

print("loaded")

def pair(pos, neg):
    return neg * pos

def contrast(pos, neg):
    return torch.nn.functional.softplus(neg - pos)

def kl(p, q):
    guarded = q.clamp_min(1e-6)
    return p * (p.log() - guarded.log())

def decay(pos):
    return 0.1 * pos**2

class Halved(torch.nn.Module):
    def forward(self, error):
        return 0.5 * error**2

NUMBER = 3
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("losses.py").write_text(LOSSES)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["surface", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_report_has_a_sketch_a_table_and_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("losses.py:pair", "--x", "pos=-1:1", "--y", "neg=-1:1", "--at", "0,0", "--at", "-0.3,0.3")
    code, out, err = run(capsys, *words)
    assert code == 0
    assert out.startswith("pair over pos from -1 to 1 and neg from -1 to 1: 80 x 80 points, vectorised, -1 to 1\n")
    assert "  neg |" in out
    assert "  loss       pos        operating point  (0, 0)        +0       +0  <-- zero gradient\n" in out
    assert "operating point  (-0.3, 0.3)" in out
    assert "warning S03 saddle: pair (a product of a factor in neg and one in pos)" in out
    assert " --> losses.py:5 in pair" in out
    assert "Found 1 warning." in out
    assert "loaded" not in out
    assert "loaded" in err


def test_the_exit_code_follows_fail_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "losses.py:kl")[0] == 1
    assert run(capsys, "losses.py:kl", "--fail-on", "never")[0] == 0
    assert run(capsys, "losses.py:pair", "--fail-on", "warning")[0] == 1


def test_good_news_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "losses.py:contrast", "--desired", "pos=0.5:1")
    assert code == 0
    assert "S06 well-shaped: contrast is finite at all 6,400 points over pos from -1 to 1" in out
    assert "its gradient leads from 100 % of 144 starts to the desired region." in " ".join(out.split())
    assert "Nothing found in contrast over pos from -1 to 1 and neg from -1 to 1; " in out


def test_two_variants_are_compared_on_the_same_axes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "losses.py:pair", "losses.py:contrast", "--x", "pos=-2:2", "--y", "neg=-2:2")
    assert code == 0
    assert out.count("over pos from -2 to 2 and neg from -2 to 2: 80 x 80 points") == 2
    assert "contrast - pair is from " in out
    assert "Descent points against the old direction on " in out


def test_a_curve_of_a_module_and_fixed_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "losses.py:Halved", "--x", "error=-2:2:41")
    assert code == 0
    assert out.startswith("Halved over error from -2 to 2: 41 points")
    code, out, _ = run(capsys, "torch.nn.functional:huber_loss", "--x", "input=-2:2", "--fix", "target=0.0")
    assert code == 0
    assert "S06 well-shaped: huber_loss" in out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "losses.py:kl", "--format", "json", "--points", "11", "--component", "d=losses.py:decay")
    assert code == 1
    document = json.loads(out)
    assert document["command"] == "surface"
    assert document["diagnoses"][0]["code"] == "S05"
    assert document["diagnoses"][0]["witnesses"] == ["surface"]
    (surface,) = document["surfaces"]
    assert surface["name"] == "kl"
    assert surface["axes"][0] == {"name": "p", "low": 0.0, "high": 1.0, "points": 11}
    assert surface["non_finite"][0]["culprit"]["shown"] == "log(0)"
    assert surface["value"][0][0] is None
    assert len(surface["gradient"]) == 2
    assert "d" in surface["components"]


@pytest.mark.parametrize("name", ["surface.html", "surface.txt"])
def test_reports_and_pictures_go_to_files(capsys: pytest.CaptureFixture[str], name: str) -> None:
    option = "--out" if name.endswith("html") else "--output"
    code, out, _ = run(capsys, "losses.py:pair", option, name, "--points", "20")
    assert code == 0
    assert Path(name).stat().st_size > 500
    assert ("Picture      surface.html" in out) == (option == "--out")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["losses.py"], "'losses.py' names no loss; write file.py:function"),
        (["nowhere.py:pair"], "nowhere.py does not exist, or is not a file"),
        (["losses.py:piar"], "losses.py has no 'piar'; did you mean 'pair'?"),
        (["losses.py:NUMBER"], "is an int, not something to call"),
        (["no.such.module:loss"], "no.such.module cannot be imported: ModuleNotFoundError"),
        (["losses.py:pair", "--x", "pos=1:-1"], "the range of pos is empty"),
        (["losses.py:pair", "--x", "pos"], "missing 1 required positional argument: 'neg'"),
        (["losses.py:pair", "--at", "0"], "has 1 coordinates, but there are 2 axes"),
        (["losses.py:pair", "--at", "a,b"], "--at a,b contains something that is not a number"),
        (["losses.py:pair", "--desired", "pos"], "--desired pos is not a range"),
        (["losses.py:pair", "--fix", "pos"], "--fix pos has no value"),
        (["losses.py:pair", "--fix", "nope=1"], "pair has no input 'nope' to fix"),
        (["losses.py:pair", "--component", "x"], "--component x has no name"),
        (["losses.py:pair", "--out", "surface.pdf"], "--out surface.pdf must end in .html, .png or .svg"),
        (["losses.py:pair", "--out", "nowhere/s.html"], "its directory does not exist"),
        (["a.py:f", "a.py:g", "a.py:h"], "3 losses are too many; name one, or two to compare"),
        (["losses.py:pair", "--points", "1"], "needs at least 3 points"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    said = err.replace("loaded\n", "")
    assert said.startswith("unstuck: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_a_file_that_raises_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("import torch\n\nlimit = 1 / 0\n")
    code, _, err = run(capsys, "broken.py:loss")
    assert (code, err) == (2, "unstuck: broken.py:3 raises when it is loaded: ZeroDivisionError: division by zero\n")
    Path("broken.py").write_text("def loss(:\n")
    code, _, err = run(capsys, "broken.py:loss")
    assert code == 2
    assert err.startswith("unstuck: broken.py:1 raises when it is loaded: SyntaxError")


def test_without_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec

    def hidden(name: str, package: str | None = None) -> Any:
        return None if name == "torch" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    code, _, err = run(capsys, "losses.py:pair")
    assert (code, err.startswith("unstuck: surface needs PyTorch")) == (3, True)


def test_help_says_that_the_file_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["surface", "--help"])
    assert "The file is imported" in capsys.readouterr().out


def test_neighbours_of_the_file_can_be_imported(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("project")
    folder.mkdir()
    (folder / "helper_of_losses.py").write_text("FACTOR = 2.0\n")
    (folder / "mine.py").write_text(
        "from helper_of_losses import FACTOR\n\ndef loss(error):\n    return FACTOR * error**2\n"
    )
    assert run(capsys, "project/mine.py:loss")[0] == 0


def test_variants_on_other_axes_cannot_be_subtracted() -> None:
    import unstuck
    from unstuck.surface import SurfaceError, difference

    one, other = (unstuck.surface(lambda x: x**2, ("x", -reach, reach)) for reach in (1, 2))
    assert difference(one, one).highest == 0
    with pytest.raises(SurfaceError, match="do not have the same axes"):
        difference(one, other)


def test_the_package_is_a_module_and_a_function() -> None:
    import unstuck

    assert isinstance(unstuck.surface, ModuleType)
    assert callable(unstuck.surface)
    assert unstuck.surface.Surface.__name__ == "Surface"
    assert dir(unstuck.surface) == sorted(unstuck.surface.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'sirface'"):
        unstuck.surface.sirface  # noqa: B018
