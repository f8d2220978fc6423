"""Any combination of broken loops, however they are laid out: fixed they parse, are clean, and stay as they are."""

from __future__ import annotations

import ast
import contextlib
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from unstuck.cli import main
from unstuck.lint.engine import lint
from unstuck.lint.settings import Settings

HEAD = ["import torch", "import torch.nn.functional as F", "from torch import nn", "clip = nn.utils.clip_grad_norm_"]
LOOPS = [
    ["loss.backward()", "opt{n}.zero_grad()", "opt{n}.step()"],
    ["opt{n}.zero_grad()", "opt{n}.step()", "loss.backward()"],
    ["opt{n}.zero_grad()", "loss.backward()", "opt{n}.step()", "clip(net{n}.parameters(), 1.0)"],
    ["opt{n}.zero_grad()", "clip(net{n}.parameters(), 1.0)", "loss.backward()", "opt{n}.step()"],
    ["opt{n}.zero_grad()", "F.cross_entropy(F.softmax(net{n}(x), dim=1), y).backward()", "opt{n}.step()"],
    ["opt{n}.zero_grad()", "F.cross_entropy((net{n}(x) * 2).softmax(1).view(-1, 3), y).backward()", "opt{n}.step()"],
    [
        "opt{n}.zero_grad(",
        "\tset_to_none=True)",
        "loss.backward()",
        "norm = clip(",
        "  net{n}.parameters(),",
        "  1.0,",
        ")",
    ],
    ["opt{n}.zero_grad()", "loss.backward()", "opt{n}.step()", "norm = clip(", "  net{n}.parameters(),", "  1.0,", ")"],
    ["loss.backward()", "opt{n}.step()"],
    ["opt{n}.zero_grad()", "loss.backward()"],
]
COMMENTS = st.sampled_from(["# größe", "# 重み", "# then: step()", "#", '# a "quoted" word', "# tab\there"])
CODES = ("O04", "G01", "O12")


@st.composite
def loops(draw: st.DrawFn, number: int) -> list[str]:
    """One loop over data, at a random depth, with comments and blank lines strewn in."""
    unit = draw(st.sampled_from(["    ", "  ", "\t"]))
    outer = draw(
        st.sampled_from([[], ["for epoch in range(3):"], ["if torch.cuda.is_available():", "for epoch in range(3):"]])
    )
    lines = [f"net{number} = nn.Linear(8, 3)", f"opt{number} = torch.optim.SGD(net{number}.parameters(), lr=0.1)"]
    for depth, opening in enumerate(outer):
        lines.append(unit * depth + opening)
    inside = unit * len(outer)
    body = ["loss = F.mse_loss(net{n}(x), y)", *draw(st.sampled_from(LOOPS))]
    lines.append(f"{inside}for x, y in data:")
    for line in body:
        continued = line[0] in "\t )"
        if not continued and draw(st.integers(0, 3)) == 0:
            lines.append(draw(st.sampled_from(["", inside + unit + draw(COMMENTS)])))
        text = inside + unit + line.replace("{n}", str(number))
        opens = line.endswith(("(", ","))
        lines.append(text + ("  " + draw(COMMENTS) if not opens and draw(st.integers(0, 3)) == 0 else ""))
    return lines


@st.composite
def scripts(draw: st.DrawFn) -> bytes:
    """A file of several loops, in a random dress."""
    amount = draw(st.integers(1, 3))
    lines = [*HEAD, *(line for number in range(amount) for line in draw(loops(number)))]
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = end.join(lines) + (end if draw(st.booleans()) else "")
    mark = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    return mark + text.encode()


@pytest.mark.slow
@given(raw=scripts())
@settings(max_examples=60, deadline=None)
def test_fixed_files_parse_are_clean_and_keep_the_rest(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_bytes(raw)
        found = _codes(path)
        _fix(path)
        once = path.read_bytes()
        ast.parse(once)
        assert _codes(path) == set(), once.decode()
        assert (once != raw) == bool(found)
        _fix(path)
        assert path.read_bytes() == once
    assert _untouched(once) == _untouched(raw)
    assert sorted(_comments(once)) == sorted(_comments(raw))


def _fix(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        main(["lint", "--isolated", "--no-cache", "--unsafe-fixes", "--select", ",".join(CODES), str(path)])


def _codes(path: Path) -> set[str]:
    result = lint([str(path)], Settings(select=CODES))
    assert not result.errors
    return {diagnosis.lead.code for diagnosis in result.verdict.diagnoses}


def _untouched(raw: bytes) -> list[bytes]:
    """Lines with their ends, in order, without those that a fix may move, add or change, and without comments.

    The last line of the file may be any, and the end it has says nothing.
    """
    lines = raw.splitlines(keepends=True)
    lines[-1] = lines[-1].rstrip(b"\r\n")
    words = (b"zero_grad", b".step()", b"backward", b"clip(", b"set_to_none", b".parameters(),", b"  1.0,")
    kept = [line for line in lines if not any(word in line for word in words)]
    return [
        line.rstrip(b"\r\n") for line in kept if line.strip() not in (b"", b")") and not line.strip().startswith(b"#")
    ]


def _comments(raw: bytes) -> list[str]:
    return [line.partition("#")[2] for line in raw.decode("utf-8-sig").splitlines() if "#" in line]
