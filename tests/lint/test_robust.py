"""Whatever a file holds: findings, silence or one sentence; never an exception, never a hang."""

from __future__ import annotations

import os
import random
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from unstuck.findings.result import Result
from unstuck.lint import engine
from unstuck.lint.settings import Settings

HEAD = """import torch
from torch import nn
import torch.nn.functional as F
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = "optimizer.zero_grad()\nloss = F.cross_entropy(model(x), y)\nloss.backward()\noptimizer.step()\n"


def linted(path: Path, text: str | bytes) -> Result:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = engine.lint([str(path)], Settings())
    assert result.verdict.failures == ()
    return result


def indented(text: str, depth: int) -> str:
    return "".join("    " * depth + line + "\n" for line in text.splitlines())


PATHOLOGICAL = {
    "20,000 statements in a loop": HEAD
    + "for x, y in data:\n"
    + "".join(f"    h{n} = torch.relu(x + {n})\n" for n in range(20_000))
    + indented(STEP, 1),
    "20,000 lines of loops": HEAD + ("for x, y in data:\n" + indented(STEP, 1)) * 4_000,
    "20,000 lines of functions": HEAD
    + "".join(f"def f{n}(x, y):\n" + indented(STEP, 1) + f"    return f{n + 1}(loss)\n" for n in range(3_300))
    + "f0(1, 2)\n",
    "20,000 lines of classes": HEAD
    + "".join(
        f"class C{n}(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.a(x).softmax(1)\n"
        for n in range(3_300)
    ),
    "20 loops inside each other": HEAD
    + "".join("    " * n + f"for i{n} in range(9):\n" for n in range(19))
    + indented("for x, y in data:\n" + indented(STEP, 1), 19),
    "99 branches inside each other": HEAD
    + "for x, y in data:\n"
    + "".join("    " * (n + 1) + f"if a{n}:\n" for n in range(98))
    + indented(STEP, 99),
    "200 blocks inside each other": HEAD
    + "".join(" " * n + f"if a{n}:\n" for n in range(200))
    + "".join(" " * 200 + line + "\n" for line in STEP.splitlines()),
    "200 brackets inside each other": HEAD + "loss = " + "(" * 190 + "x" + ")" * 190 + "\nloss.backward()\n",
    "200 calls inside each other": HEAD + "loss = " + "torch.relu(" * 190 + "x" + ")" * 190 + "\nloss.backward()\n",
    "200 functions inside each other": HEAD
    + "".join(" " * n + f"def f{n}(x):\n" for n in range(90))
    + " " * 90
    + "loss.backward()\n",
    "5,000 terms": HEAD + "loss = " + " + ".join(f"F.mse_loss(a{n}, b)" for n in range(5_000)) + "\nloss.backward()\n",
    "5,000 terms that are and-ed": HEAD + "ok = " + " and ".join(f"a{n}" for n in range(5_000)) + "\nloss.backward()\n",
    "5,000 comparisons": HEAD + "ok = " + " < ".join(f"a{n}" for n in range(5_000)) + "\nloss.backward()\n",
    "5,000 attributes": HEAD + "loss = a" + ".b" * 5_000 + "\nloss.backward()\n",
    "5,000 calls in a chain": HEAD + "loss = x" + ".relu()" * 5_000 + "\nloss.backward()\n",
    "5,000 minus signs": HEAD + "loss = " + "-" * 5_000 + "x\nloss.backward()\n",
    "5,000 elifs": HEAD + "if a:\n    pass\n" + "elif b:\n    optimizer.step()\n" * 5_000 + "loss.backward()\n",
    "5,000 conditional expressions": HEAD + "loss = " + "x if a else " * 5_000 + "y\nloss.backward()\n",
    "5,000 lambdas": HEAD + "f = " + "lambda: " * 5_000 + "x\nloss.backward()\n",
    "layers by the thousand": HEAD + "net = nn.Sequential(" + "nn.Linear(2, 2), " * 5_000 + ")\nnet(x).backward()\n",
    "a line of a million characters": HEAD + "names = '" + "x" * 1_000_000 + "'\nloss.backward()\n",
    "a million-character list": HEAD + "data = [" + "1, " * 330_000 + "]\nloss.backward()\n",
    "a bracket that never closes": HEAD + "x = (" * 300,
    "sixty conditions in one loop": HEAD
    + "for x, y in data:\n"
    + "".join(f"    if a{n}:\n        optimizer.zero_grad()\n        loss.backward()\n" for n in range(60))
    + "    optimizer.step()\n",
    "functions that call each other twice": HEAD
    + "".join(f"def f{n}(x):\n    return f{n + 1}(x) + f{n + 1}(x)\n" for n in range(60))
    + "for x, y in data:\n    f0(x).backward()\n    optimizer.step()\n",
    "try inside try": HEAD
    + "for x, y in data:\n"
    + "".join("    " * (n + 1) + "try:\n" for n in range(15))
    + indented(STEP, 16)
    + "".join(
        "    " * (n + 1) + "except E:\n" + "    " * (n + 2) + "optimizer.zero_grad()\n" for n in reversed(range(15))
    ),
}


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_pathological_file_ends_soon(name: str, tmp_path: Path) -> None:
    started = sum(os.times()[:4])  # with the process that reads it
    result = linted(tmp_path / "odd.py", PATHOLOGICAL[name])
    assert sum(os.times()[:4]) - started < 20
    for problem in result.problems:
        assert str(tmp_path / "odd.py") in problem.message
        assert problem.message.endswith(".")
        assert "\n" not in problem.message


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", None),
        (b"\xef\xbb\xbfimport torch\r\nx = 1\r\n", None),
        (b"# -*- coding: latin-1 -*-\nname = '\xe9'\n", None),
        ("# coding: shift_jis\nname = '日本'\n".encode("shift_jis"), None),
        (b"import torch\n\x0cdef f():\n\x0c    pass\n", None),
        (b"x = 1\rimport torch\r", None),
        ("import torch\nx = '\u2028 \x85'\n".encode(), None),
        (b"import torch\x00\n", "is not text (it contains null bytes)"),
        ("import torch\n".encode("utf-16"), "is not text (it contains null bytes)"),
        (b"x = '\xff\xfe'\n", "cannot be decoded"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "cannot be decoded"),
        (b"# coding: rot13\nvzcbeg gbepu\n", "cannot be decoded"),
        (b"# coding: punycode\nx-\n", "cannot be decoded"),
        (b"print 'hello'\n", "is not valid Python"),
        (b"exec 'x' in {}\ntry:\n    pass\nexcept E, e:\n    pass\n", "is not valid Python"),
        (b"if x:\n\ty = 1\n        z = 2\n", "is not valid Python"),
        (b"x = 1" + b"0" * 5000 + b"\n", None),
        (b"def f(:\n", "is not valid Python"),
        (b"x = '''\n", "is not valid Python"),
        (b"\\", "is not valid Python"),
    ],
)
def test_an_odd_file_gets_one_sentence_or_none(raw: bytes, sentence: str | None, tmp_path: Path) -> None:
    result = linted(tmp_path / "odd.py", raw)
    if sentence is None:
        assert result.problems == () or "is not valid Python" in result.problems[0].message
    else:
        (problem,) = result.problems
        assert sentence in problem.message


def python_files() -> list[Path]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))


def lint_all(paths: Iterable[Path]) -> None:
    for path in paths:
        result = engine.lint([str(path)], Settings())
        assert result.verdict.failures == (), path
        assert all(str(path) in problem.message for problem in result.problems), path


@pytest.mark.slow
def test_a_sample_of_the_installed_code_is_read() -> None:
    small = [path for path in python_files() if path.is_file() and path.stat().st_size < 100_000]
    lint_all(random.Random(0).sample(small, min(150, len(small))))


@pytest.mark.slow
def test_all_installed_code_is_read() -> None:
    lint_all(python_files())


NAMES = st.sampled_from("model optimizer loss x y F nn torch self scaler scheduler data net f Net".split())
NUMBERS = st.sampled_from(["0", "1", "0.5", "None", "True", "'a'", "...", "-1"])
ATTRIBUTES = st.sampled_from(
    "backward step zero_grad item detach softmax parameters train eval no_grad grad data Linear CrossEntropyLoss optim "
    "SGD Adam functional cross_entropy softmax Module Sequential clip_grad_norm_ utils requires_grad_ scale unscale_ "
    "update get_lr log_softmax sigmoid BCELoss to cuda weight append keys items".split()
)


def expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(inner, max_size=3).map(", ".join)
    return st.one_of(
        st.builds("{}.{}".format, inner, ATTRIBUTES),
        st.builds("{}.{}({})".format, inner, ATTRIBUTES, listed),
        st.builds("{}({})".format, NAMES, listed),
        st.builds("{}({}={}, **{})".format, NAMES, NAMES, inner, NAMES),
        st.builds("{}(*{})".format, NAMES, inner),
        st.builds(
            "({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "@", "and", "%", "==", "in"]), inner
        ),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("[{} for {} in {} if {}]".format, inner, NAMES, inner, inner),
        st.builds("{{{}: {} for {} in {}}}".format, inner, inner, NAMES, inner),
        st.builds("[{}]".format, listed),
        st.builds("({},)".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(lambda {}: {})".format, NAMES, inner),
        st.builds("(yield {})".format, inner),
        st.builds("(z := {})".format, inner),
        st.builds("f'{{{}}}'".format, NAMES),
        st.builds("not {}".format, inner),
    )


EXPRESSIONS = st.recursive(st.one_of(NAMES, NUMBERS), expressions, max_leaves=8)
SIMPLE = st.one_of(
    EXPRESSIONS,
    st.builds("{} = {}".format, NAMES, EXPRESSIONS),
    st.builds("self.{} = {}".format, NAMES, EXPRESSIONS),
    st.builds("{}, {} = {}".format, NAMES, NAMES, EXPRESSIONS),
    st.builds("{}, *{} = {}".format, NAMES, NAMES, EXPRESSIONS),
    st.builds("{} += {}".format, NAMES, EXPRESSIONS),
    st.builds("{}: int = {}".format, NAMES, EXPRESSIONS),
    st.builds("{}[{}] = {}".format, NAMES, EXPRESSIONS, EXPRESSIONS),
    st.builds("del {}".format, NAMES),
    st.builds("return {}".format, EXPRESSIONS),
    st.builds("global {}".format, NAMES),
    st.builds("assert {}, {}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("from {} import {}".format, NAMES, NAMES),
    st.builds("import {} as {}".format, NAMES, NAMES),
    st.sampled_from(
        ["pass", "break", "continue", "raise", STEP.strip(), "super().__init__()", "optimizer.zero_grad()"]
    ),
)


def blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=4).map(lambda items: indented("\n".join(items), 1).rstrip("\n"))
    return st.one_of(
        st.builds("if {}:\n{}\nelse:\n{}".format, EXPRESSIONS, body, body),
        st.builds("for {} in {}:\n{}".format, NAMES, EXPRESSIONS, body),
        st.builds("while {}:\n{}\nelse:\n{}".format, EXPRESSIONS, body, body),
        st.builds("with {} as {}:\n{}".format, EXPRESSIONS, NAMES, body),
        st.builds("try:\n{}\nexcept {} as {}:\n{}\nfinally:\n{}".format, body, NAMES, NAMES, body, body),
        st.builds("def {}({}, *a, {}=1, **k):\n{}".format, NAMES, NAMES, st.just("q"), body),
        st.builds("async def {}():\n{}".format, NAMES, body),
        st.builds("@{}\ndef {}(self, x):\n{}".format, EXPRESSIONS, st.sampled_from(["forward", "training_step"]), body),
        st.builds("class {}({}):\n{}".format, NAMES, EXPRESSIONS, body),
        st.builds("match {}:\n  case {{'a': {}}}:\n{}\n  case _:\n{}".format, EXPRESSIONS, NAMES, body, body),
    )


PROGRAMS = st.lists(st.recursive(SIMPLE, blocks, max_leaves=10), min_size=1, max_size=6).map("\n".join)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(PROGRAMS)
def test_any_program_is_read(tmp_path_factory: pytest.TempPathFactory, program: str) -> None:
    linted(tmp_path_factory.getbasetemp() / "program.py", HEAD + program + "\n")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    linted(tmp_path_factory.getbasetemp() / "bytes.py", HEAD.encode() + raw)
