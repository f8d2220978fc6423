"""Conversations of an editor with the server, over stdio."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from editor import Editor, edited
from training_scripts import BROKEN, FIXED

GUILTY = 10  # the line of the softmax, from 0


@pytest.fixture
def editor() -> Iterator[Editor]:
    talking = Editor()
    yield talking
    talking.end()


def test_a_conversation(editor: Editor) -> None:
    assert editor.greeting["serverInfo"]["name"] == "unstuck"
    (found,) = editor.open("train.py", BROKEN)
    assert found["range"] == {"start": {"line": GUILTY, "character": 15}, "end": {"line": GUILTY, "character": 49}}
    assert (found["code"], found["severity"], found["source"]) == ("O12", 1, "unstuck")
    assert found["message"].startswith("double-softmax: cross_entropy is given the output of softmax")
    assert "codeDescription" not in found
    (related,) = found["relatedInformation"]
    assert related["location"]["range"]["start"] == {"line": 17, "character": 11}
    assert related["message"].startswith("loss = criterion(")

    hover = editor.hover("train.py", GUILTY, 20)
    assert hover["contents"]["kind"] == "markdown"
    assert hover["contents"]["value"].startswith("**cross_entropy is given the output of softmax")
    assert "# O12 double-softmax" in hover["contents"]["value"]
    assert "## Why" in hover["contents"]["value"]
    assert editor.hover("train.py", 0) is None

    editor.type("train.py", FIXED, 2)
    assert editor.diagnostics("train.py", 2) == []
    assert editor.hover("train.py", GUILTY, 20) is None
    assert editor.leave() == (0, "")


def test_a_finding_can_be_ignored_from_the_editor(editor: Editor) -> None:
    editor.open("train.py", BROKEN)
    action = editor.actions("train.py", GUILTY)[-1]
    assert action["title"] == "Ignore O12 double-softmax on this line"
    assert action["kind"] == "quickfix"
    assert action["diagnostics"][0]["code"] == "O12"
    (edits,) = action["edit"]["changes"].values()
    text = edited(BROKEN, edits)
    assert text == BROKEN.replace("dim=1)", "dim=1)  # unstuck: ignore[O12]")
    editor.type("train.py", text, 2)
    assert editor.diagnostics("train.py", 2) == []
    assert editor.actions("train.py", 0) == []


def test_an_ignore_comment_that_is_there_is_extended(editor: Editor) -> None:
    text = BROKEN.replace("dim=1)", "dim=1)  # unstuck: ignore[G01] for now")
    editor.open("train.py", text)
    action = next(item for item in editor.actions("train.py", GUILTY) if item["title"].startswith("Ignore O12"))
    (edits,) = action["edit"]["changes"].values()
    assert edited(text, edits) == text.replace("[G01]", "[G01, O12]")


def test_only_the_wanted_kinds_of_actions_are_offered(editor: Editor) -> None:
    editor.open("train.py", BROKEN)
    assert editor.actions("train.py", GUILTY, only=["refactor"]) == []
    assert editor.actions("train.py", GUILTY, only=["quickfix"])


CLIPPED_LATE = """\
import torch
from torch import nn

model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.01)
criterion = nn.CrossEntropyLoss()
names = {"\U0001f600": 1}; scores = []
for step in range(30):
    loss = criterion(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()
"""


def test_a_quick_fix_removes_the_finding(editor: Editor) -> None:
    Path("pyproject.toml").write_text('[tool.unstuck]\nselect = ["G01", "O06"]\n')
    found = editor.open("train.py", CLIPPED_LATE)
    fixable = [
        (diagnostic, action)
        for diagnostic in found
        for action in editor.actions("train.py", diagnostic["range"]["start"]["line"])
        if action["diagnostics"][0] == diagnostic and not action["title"].startswith("Ignore")
    ]
    diagnostic, action = fixable[0]
    (edits,) = action["edit"]["changes"].values()
    editor.type("train.py", edited(CLIPPED_LATE, edits), 2)
    codes = [item["code"] for item in editor.diagnostics("train.py", 2)]
    assert diagnostic["code"] not in codes


@pytest.mark.parametrize(
    ("offered", "chosen", "before"), [((), "utf-16", 2), (("utf-8", "utf-16"), "utf-8", 4), (("utf-32",), "utf-32", 1)]
)
def test_columns_count_as_the_editor_counts(offered: tuple[str, ...], chosen: str, before: int) -> None:
    text = BROKEN.replace("        return torch", '        "\U0001f600"; return torch')
    editor = Editor(*offered)
    try:
        assert editor.greeting["capabilities"]["positionEncoding"] == chosen
        (found,) = editor.open("train.py", text)
        assert found["range"]["start"] == {"line": GUILTY, "character": 8 + before + 2 + 2 + 7}
        (edits,) = editor.actions("train.py", GUILTY)[-1]["edit"]["changes"].values()
        changed = edited(text, edits, {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}[chosen])
        assert changed == text.replace("dim=1)", "dim=1)  # unstuck: ignore[O12]")
    finally:
        editor.end()


def test_while_the_syntax_is_broken_the_findings_stay(editor: Editor) -> None:
    before = editor.open("train.py", BROKEN)
    editor.type("train.py", BROKEN + "loss = (\n", 2)
    after = editor.diagnostics("train.py", 2)
    assert after[:-1] == before
    assert "is not valid Python" in after[-1]["message"]
    assert editor.actions("train.py", GUILTY) == [], "edits would be made from what is no longer the text"
    editor.type("train.py", BROKEN, 3)
    assert editor.diagnostics("train.py", 3) == before


def test_a_file_that_never_was_python_says_so(editor: Editor) -> None:
    (found,) = editor.open("train.py", "def f(:\n")
    assert found["range"]["start"] == {"line": 0, "character": 6}
    assert "is not valid Python" in found["message"]


def test_not_every_keystroke_is_looked_at(editor: Editor) -> None:
    editor.open("train.py", FIXED)
    keystrokes = 40
    for version in range(2, 2 + keystrokes):
        editor.type("train.py", FIXED + "#" * version, version)
    last = 2 + keystrokes
    editor.type("train.py", BROKEN, last)
    assert [item["code"] for item in editor.diagnostics("train.py", last)] == ["O12"]
    assert len(editor.told) < keystrokes // 2


def test_lines_end_where_editors_end_them(editor: Editor) -> None:
    text = ("\f# \u2028 one line\n" + BROKEN).replace("\n", "\r\n")
    (found,) = editor.open("train.py", text)
    assert found["range"]["start"] == {"line": GUILTY + 1, "character": 15}


def test_an_imported_file_is_followed_and_its_unsaved_lines_are_quoted(editor: Editor) -> None:
    model, training = BROKEN.split("\n\n\nmodel = ")
    Path("model.py").write_text(model + "\n")
    text = f"import torch\nfrom model import Net\nfrom torch import nn\n\nmodel = {training}"
    (found,) = editor.open("train.py", text)
    assert found["range"]["start"] == {"line": 8, "character": 11}
    (related,) = found["relatedInformation"]
    assert related["location"]["uri"].endswith("/model.py")
    assert related["message"] == "return torch.softmax(self.head(x), dim=1)"
    Path("model.py").write_text(model.replace("torch.softmax(self.head(x), dim=1)", "self.head(x)") + "\n")
    uri = Path("model.py").absolute().as_uri()
    editor.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
    assert editor.diagnostics("train.py") == []


def test_the_settings_of_the_project_hold(editor: Editor) -> None:
    Path("pyproject.toml").write_text('[tool.unstuck]\nselect = ["O12"]\nseverity = { O12 = "warning" }\n')
    (found,) = editor.open("train.py", BROKEN)
    assert found["severity"] == 2
    Path("pyproject.toml").write_text('[tool.unstuck]\nselcet = ["O12"]\n')
    editor.type("train.py", BROKEN + "\n", 2)
    (told,) = editor.diagnostics("train.py", 2)
    assert "selcet" in told["message"]


def test_a_closed_file_shows_nothing(editor: Editor) -> None:
    editor.open("train.py", BROKEN)
    editor.tell("textDocument/didClose", {"textDocument": {"uri": Path("train.py").absolute().as_uri()}})
    assert editor.diagnostics("train.py") == []


def test_a_new_file_without_a_name_is_looked_at(editor: Editor) -> None:
    document = {"uri": "untitled:Untitled-1", "languageId": "python", "version": 1, "text": BROKEN}
    editor.tell("textDocument/didOpen", {"textDocument": document})
    asked = {
        "textDocument": {"uri": "untitled:Untitled-1"},
        "range": {"start": {"line": GUILTY, "character": 0}, "end": {"line": GUILTY, "character": 0}},
        "context": {"diagnostics": []},
    }
    action = editor.ask("textDocument/codeAction", asked)[-1]
    assert list(action["edit"]["changes"]) == ["untitled:Untitled-1"]


def test_an_editor_that_crashed_leaves_no_server_behind(editor: Editor) -> None:
    editor.open("train.py", BROKEN)
    code, complaint = editor.drop()
    assert code == 1
    assert "Traceback" not in complaint


@pytest.mark.parametrize("missing", ["pygls", "pygls.lsp.server", "lsprotocol"])
def test_without_pygls_it_is_one_sentence(missing: str) -> None:
    program = f"import sys\nsys.modules['{missing}'] = None\nfrom unstuck.cli import main\nsys.exit(main(['lsp']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stderr == ("unstuck: lsp needs pygls 2 or newer, which is not installed here: pip install 'pygls>=2'\n")
