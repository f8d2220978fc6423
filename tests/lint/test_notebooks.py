"""Notebooks are linted as one script and fixed cell by cell, with nothing else in the file touched."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from unstuck.cli import main
from unstuck.findings import Edit
from unstuck.lint.engine import lint
from unstuck.lint.settings import Settings
from unstuck.source import SourceError
from unstuck.source.documents.notebook import Notebook

PYTHON = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn; torch.manual_seed(0)\n"
MODEL = "model = nn.Linear(8, 3)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)"
WIPED = """\
for x, y in data:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    opt.zero_grad()  # é
    opt.step()"""
INLINE = (
    "for x, y in data:\n    opt.zero_grad()\n    F.cross_entropy(model(x).softmax(1), y).backward()\n    opt.step()\n"
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def cell(source: str, kind: str = "code", as_list: bool = True) -> dict[str, Any]:
    lines = source.splitlines(keepends=True) if as_list else source
    if kind != "code":
        return {"cell_type": kind, "metadata": {}, "source": lines}
    output = {"name": "stdout", "output_type": "stream", "text": ["opt.zero_grad()  # é\n", "loss.backward()"]}
    return {"cell_type": "code", "execution_count": 7, "metadata": {"a": 1}, "outputs": [output], "source": lines}


def notebook(*cells: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": PYTHON, "nbformat": 4, "nbformat_minor": 5, **changes}


def save(content: dict[str, Any], name: str = "nb.ipynb") -> bytes:
    Path(name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Path(name).read_bytes()


def places(name: str = "nb.ipynb") -> list[tuple[str, str]]:
    result = lint([name], Settings())
    assert not result.errors
    return [(diagnosis.lead.code, str(diagnosis.lead.place)) for diagnosis in result.verdict.diagnoses]


def test_findings_are_shown_by_cell_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    save(notebook(cell("# Training é", "markdown"), cell(IMPORTS), cell(MODEL), cell(WIPED)))
    assert main(["lint", "--isolated", "nb.ipynb"]) == 1
    said = capsys.readouterr().out
    assert " --> nb.ipynb:cell 4:4:5\n" in said
    assert "4 |     opt.zero_grad()  # é\n" in said
    assert main(["lint", "--isolated", "--format", "concise", "."]) == 1
    assert capsys.readouterr().out.startswith("nb.ipynb:cell 4:4:5: O04 error step-order: ")
    assert main(["lint", "--isolated", "--format", "json", "nb.ipynb"]) == 1
    [found] = json.loads(capsys.readouterr().out)["diagnoses"]
    assert found["place"]["cell"] == 4
    assert {edit["cell"] for edit in found["fix"]["edits"]} == {4}
    assert "nb.ipynb:cell 4:4" in found["subject"]["name"]


def test_what_a_cell_shows_may_be_caused_by_another(capsys: pytest.CaptureFixture[str]) -> None:
    net = "net = nn.Sequential(\n    nn.Linear(8, 3),\n    nn.Softmax(dim=1),\n)\n"
    net += "o = torch.optim.SGD(net.parameters(), lr=0.1)"
    train = "for x, y in data:\n    o.zero_grad()\n    F.cross_entropy(net(x), y).backward()\n    o.step()"
    save(notebook(cell(IMPORTS), cell(net), cell("text", "markdown"), cell(train)))
    assert main(["lint", "--isolated", "nb.ipynb"]) == 1
    said = capsys.readouterr().out
    assert " --> nb.ipynb:cell 2:3:5\n" in said
    assert " ::: nb.ipynb:cell 4:3:5\n" in said
    assert "3 |     F.cross_entropy(net(x), y).backward()\n" in said


MAGICS = """\
%matplotlib inline
%load_ext autoreload
!pip install -q "torch>=2" \\
    numpy
pip install x
files = !ls *.py
out, err = %system ls
nn.Linear?
nn.Linear.forward??
?torch
text = '''
%not a magic
!nor this?
'''
if files:
    !echo {files}
    %cd ..
for name in files:
    %run {name}
"""


def test_magics_are_skipped_and_no_line_moves() -> None:
    save(
        notebook(cell(IMPORTS + MAGICS), cell("%%time\n" + MODEL), cell("%%bash\nfor i in 1; do :; done"), cell(WIPED))
    )
    assert places() == [("O04", "nb.ipynb:cell 4:4")]
    save(notebook(cell(IMPORTS + MAGICS + MODEL + "\n" + WIPED)))
    line = len((IMPORTS + MAGICS + MODEL).splitlines()) + 4
    assert places() == [("O04", f"nb.ipynb:cell 1:{line}")]


def test_many_magics_are_no_trouble() -> None:
    save(notebook(cell(IMPORTS + "!echo 'it is'\n" * 3000 + MODEL), cell(WIPED)))
    assert places() == [("O04", "nb.ipynb:cell 2:4")]


def test_a_cell_of_another_language_is_no_python() -> None:
    save(notebook(cell(IMPORTS + MODEL), cell("%%html\n<b>opt.zero_grad()</b>"), cell("\n%%writefile a.py\n" + WIPED)))
    assert places() == []


def test_comments_silence_lines_of_cells() -> None:
    save(notebook(cell(IMPORTS + MODEL), cell(WIPED.replace("# é", "# unstuck: ignore[O04]"))))
    assert places() == []


def test_fixes_are_written_back_and_nothing_else_changes(capsys: pytest.CaptureFixture[str]) -> None:
    content = notebook(cell("# Tïtle", "markdown"), cell(IMPORTS), cell(MODEL), cell(WIPED), cell(INLINE))
    before = save(content)
    assert main(["lint", "--isolated", "--diff", "nb.ipynb"]) == 1
    shown = capsys.readouterr().out
    assert "--- nb.ipynb:cell 4\n+++ nb.ipynb:cell 4\n" in shown
    assert Path("nb.ipynb").read_bytes() == before
    assert main(["lint", "--isolated", "--fix", "nb.ipynb"]) == 0
    assert capsys.readouterr().out.endswith("Fixed 2 findings; none remain.\n")
    lines = WIPED.splitlines(keepends=True)
    content["cells"][3]["source"] = [*lines[:2], lines[3], lines[2], lines[4]]
    content["cells"][4]["source"] = INLINE.replace(".softmax(1)", "").splitlines(keepends=True)
    after = Path("nb.ipynb").read_bytes()
    assert json.loads(after) == content
    assert after == save(content)
    assert main(["lint", "--isolated", "--unsafe-fixes", "nb.ipynb"]) == 0
    assert Path("nb.ipynb").read_bytes() == after


def test_a_fix_at_the_end_of_a_cell_stays_in_it() -> None:
    content = notebook(cell(IMPORTS + MODEL), cell(WIPED.replace("    opt.zero_grad()  # é\n", "")), cell("print(1)"))
    save(content)
    assert main(["lint", "--isolated", "--unsafe-fixes", "nb.ipynb"]) == 0
    changed = json.loads(Path("nb.ipynb").read_text(encoding="utf-8"))
    assert changed["cells"][1]["source"][-2:] == ["    opt.step()\n", "    opt.zero_grad()"]
    assert changed["cells"][2] == content["cells"][2]


@pytest.mark.parametrize(
    "edit",
    [
        Edit("nb.ipynb", 2, 1, 2, 5, "pass"),
        Edit("nb.ipynb", 2, 5, 2, 5, "\npass"),
        Edit("nb.ipynb", 1, 1, 3, 1, ""),
        Edit("nb.ipynb", 3, 1, 5, 2, ""),
        Edit("nb.ipynb", 4, 1, 4, 1, "x"),
    ],
)
def test_no_edit_changes_a_magic_or_reaches_into_another_cell(edit: Edit) -> None:
    raw = save(notebook(cell("x = 1\n!ls é\ny = 2"), cell("z = 3")))
    with pytest.raises(SourceError, match=r"change it by hand\.$"):
        Notebook(raw, "nb.ipynb").edited([edit])
    last = Edit("nb.ipynb", 3, 1, 4, 1, "")
    changed = json.loads(Notebook(raw, "nb.ipynb").edited([last]).raw)
    assert [item["source"] for item in changed["cells"]] == [["x = 1\n", "!ls é"], ["z = 3"]]


CODE = st.sampled_from(
    [IMPORTS + MODEL, WIPED, INLINE, "", "x = 'größe'\n", "%cd ..\n!ls", "%%bash\nls", "\n\n", WIPED + "\n\n"]
)


@pytest.mark.slow
@given(
    sources=st.lists(st.tuples(CODE, st.booleans(), st.sampled_from(["code", "code", "markdown", "raw"])), max_size=6),
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
    ascii_only=st.booleans(),
    end=st.sampled_from(["", "\n", "\r\n"]),
    windows=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_notebook_keeps_everything_but_the_fixed_lines(
    sources: list[tuple[str, bool, str]], indent: int | str | None, ascii_only: bool, end: str, windows: bool
) -> None:
    def written(cells: list[dict[str, Any]]) -> bytes:
        text = json.dumps(notebook(*cells), indent=indent, ensure_ascii=ascii_only) + end
        return text.replace("\\n", "\\r\\n").encode() if windows else text.encode()

    def fixed(source: str, kind: str) -> str:
        if kind != "code":
            return source
        moved = WIPED.splitlines(keepends=True)
        right = "".join([*moved[:2], moved[3], moved[2], moved[4]])
        return source.replace(WIPED, right).replace("model(x).softmax(1)", "model(x)")

    first = [cell(IMPORTS + MODEL)]
    before = [*first, *(cell(source, kind, as_list) for source, as_list, kind in sources)]
    after = [*first, *(cell(fixed(source, kind), kind, as_list) for source, as_list, kind in sources)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "nb.ipynb")
        path.write_bytes(written(before))
        for _ in range(2):
            main(["lint", "--isolated", "--no-cache", "--fix", "--select", "O04,O12", str(path)])
            assert path.read_bytes() == written(after)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"{", "bad.ipynb is not a notebook: its JSON is invalid at line 1; open and save it again."),
        (b"[1]", "bad.ipynb is not a notebook: it has no nbformat; open it in Jupyter and save it again."),
        (
            b'{"nbformat": 4}',
            "bad.ipynb is not a notebook: it has no list of cells; open it in Jupyter and save it again.",
        ),
        (
            b'{"nbformat": 3, "worksheets": []}',
            "bad.ipynb has the old notebook format 3; run jupyter nbconvert --to notebook.",
        ),
        (
            b'{"nbformat": 4, "cells": [], "metadata": {"kernelspec": {"language": "R"}}}',
            "bad.ipynb is a notebook in R, not in Python; it was skipped.",
        ),
        (b"\xff\xfe{}", "bad.ipynb is not UTF-8 text, as notebooks are; save it again from Jupyter."),
        (b"", "bad.ipynb is not a notebook: its JSON is invalid at line 1; open and save it again."),
        (b"[" * 100_000, "bad.ipynb is not a notebook: its JSON is invalid at line 1; open and save it again."),
    ],
)
def test_what_is_no_python_notebook_gets_one_sentence(
    raw: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.ipynb").write_bytes(raw)
    assert main(["lint", "--isolated", "--format", "concise", "bad.ipynb"]) == 2
    assert capsys.readouterr().err == f"unstuck: {sentence}\n"


def test_broken_syntax_is_named_by_cell_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    save(notebook(cell("a", "markdown"), cell("import torch\n%cd ..\n"), cell("x = 1\nfor\n")))
    assert main(["lint", "--isolated", "--format", "concise", "nb.ipynb"]) == 2
    assert "unstuck: nb.ipynb:cell 3:2:4 is not valid Python" in capsys.readouterr().err


@pytest.mark.parametrize(
    "odd",
    [
        {"cell_type": "code"},
        {"cell_type": "code", "source": None},
        {"cell_type": "code", "source": [1, None]},
        {"source": ["x = ("]},
        "text",
        None,
        {"cell_type": "code", "source": ["a = '\ud800'\n"]},
    ],
)
def test_odd_cells_do_no_harm(odd: object) -> None:
    content = notebook(cell(IMPORTS + MODEL), cell(WIPED))
    content["cells"].insert(0, odd)
    Path("nb.ipynb").write_text(json.dumps(content), encoding="utf-8")
    result = lint(["nb.ipynb"], Settings())
    assert not result.verdict.failures
