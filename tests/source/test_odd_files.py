"""Whatever a file holds, reading it ends: with findings, in silence, or with one sentence."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from unstuck.judge import judge
from unstuck.source import SourceError, find_files, read_script

ODD = {
    "empty": "",
    "a long sum": "import torch\nloss = " + " + ".join(["x"] * 5000) + "\nloss.backward()\n",
    "deep branches": "import torch\n"
    + "".join("    " * i + f"if a{i}:\n" for i in range(90))
    + "    " * 90
    + "loss.backward()",
    "deep calls": "import torch\nloss.backward()\nx = " + "f(" * 150 + "1" + ")" * 150,
    "a long chain": "import torch\nloss.backward()\nx = a" + ".b()" * 2000,
    "many conditions": "import torch\nfor i in range(9):\n"
    + "".join(f"    if i % {n} == 0:\n        opt.zero_grad()\n" for n in range(2, 40))
    + "    loss.backward()\n    opt.step()\n",
    "functions that call each other": "import torch\ndef a(x):\n    return b(x)\ndef b(x):\n    return a(x)\n"
    "a(1).backward()\n",
    "classes that inherit in a circle": "import torch\nclass A(B): pass\nclass B(A):\n"
    "    def forward(self, x): return x.loss\nA()(1).backward()\n",
    "calls that double at every level": "import torch\n"
    + "".join(f"def f{i}(x):\n    return f{i + 1}(x) + f{i + 1}(x)\n" for i in range(30))
    + "f0(1).backward()\n",
    "a long elif": "import torch\nloss.backward()\nif a == 0:\n    pass\n"
    + "".join(f"elif a == {i}:\n    opt.step()\n" for i in range(1500)),
    "a value with a long history": "import torch\nx = torch.relu(y)\n"
    + "x = x + x\n" * 2000
    + "x.sum().item().backward()\n",
    "form feeds and tabs": "import torch\n\x0c\nif x:\n\tloss.backward()\n",
    "a huge literal": "import torch\nd = {" + ",".join(f'"{i}": [{i}]' for i in range(20000)) + "}\nloss.backward()\n",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_an_odd_script_is_read_or_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(text, encoding="utf-8")
    said = _judged(path)
    assert not said or (said.startswith(str(path)) and said.endswith("skipped."))


def _judged(path: Path) -> str:
    """What went wrong: nothing, a sentence for the user, or the failure of a rule."""
    try:
        return "; ".join(judge(scripts=(read_script(path),)).failures)
    except SourceError as refusal:
        return str(refusal)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"\0\1\2", "is not text"),
        (b"x = '\xff'\n", "cannot be decoded"),
        (b"# -*- coding: nonsense -*-\n", "cannot be decoded"),
        (b"print 'hello'\n", "is not valid Python"),
    ],
)
def test_a_file_that_is_not_python_says_why(raw: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=sentence):
        read_script(path)


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbfimport torch\r\n", b"# coding: latin-1\nname = '\xe9'\n", b"x = 1\r"])
def test_other_encodings_and_line_ends_are_read(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes(raw)
    assert not judge(scripts=(read_script(path),)).diagnoses


def test_a_column_counts_characters_and_not_bytes(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = (
        "import torch\nimport torch.nn.functional as F\nmodel = torch.nn.Linear(2, 2)\n"
        "étiquettes, loss = 1, F.cross_entropy(F.softmax(model(x), 1), y)\nloss.backward()\n"
    )
    path.write_text(text, encoding="utf-8")
    (diagnosis,) = judge(scripts=(read_script(path),)).diagnoses
    assert diagnosis.lead.place is not None
    assert diagnosis.lead.place.column == text.split("\n")[3].index("F.softmax") + 1


def test_the_standard_library_is_read_in_silence() -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    for package in ("asyncio", "email", "json", "concurrent"):
        for path in find_files([str(folder / package)]):
            verdict = judge(scripts=(read_script(path),))
            assert not verdict.diagnoses
            assert not verdict.failures


STATEMENTS = st.sampled_from(
    [
        "optimizer.zero_grad()",
        "loss = criterion(model(x), y)",
        "loss.backward()",
        "optimizer.step()",
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "scaler.scale(loss).backward()",
        "scaler.step(optimizer)",
        "loss = loss / 4",
        "total = loss.item()",
        "continue",
        "model.head = nn.Linear(2, 2)",
    ]
)
BLOCKS = st.recursive(
    STATEMENTS,
    lambda inner: st.tuples(
        st.sampled_from(["if i % 4 == 0:", "if flag:", "for j in range(2):", "with torch.no_grad():"]),
        st.lists(inner, min_size=1, max_size=4),
    ),
    max_leaves=12,
)
HEAD = """import torch
from torch import nn
model = nn.Linear(2, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
"""


def _lines(block: object, depth: int) -> list[str]:
    if isinstance(block, str):
        return ["    " * depth + block]
    head, body = block  # type: ignore[misc]
    return ["    " * depth + head, *(line for item in body for line in _lines(item, depth + 1))]


@settings(max_examples=150, deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=8))
@example(
    [
        "optimizer.zero_grad()",
        ("if i % 4 == 0:", [("with torch.no_grad():", ["continue"])]),
        ("if i % 4 == 0:", ["loss.backward()", "optimizer.step()"]),
    ]
)
def test_any_loop_is_read(tmp_path_factory: pytest.TempPathFactory, blocks: list[object]) -> None:
    path = tmp_path_factory.mktemp("loops") / "train.py"
    path.write_text(HEAD + "\n".join(line for block in blocks for line in _lines(block, 1)) + "\n", encoding="utf-8")
    assert not judge(scripts=(read_script(path),)).failures
