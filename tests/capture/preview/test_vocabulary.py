"""Token ids are read by what the program holds at its top level, without running its code."""

from __future__ import annotations

import sys

import pytest
from torch import nn

from unstuck.capture.preview.vocabulary import words_for


class Held:
    pass


def words_known(monkeypatch: pytest.MonkeyPatch, **names: object) -> None:
    for name, value in names.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)


LETTERS = "abcdefghijkl"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"itos": dict(enumerate(LETTERS))}, "bad"),
        ({"stoi": {letter: index for index, letter in enumerate(LETTERS)}}, "bad"),
        ({"stoi": {letter: index for index, letter in enumerate(LETTERS)}, "itos": dict(enumerate(LETTERS))}, "bad"),
        ({"vocab": [f"w{letter}" for letter in LETTERS]}, "wb wa wd"),
        ({"colours": [f"w{letter}" for letter in LETTERS]}, ""),
        ({"words": [*LETTERS[:-1], "a"]}, ""),
        ({"itos": dict(enumerate(LETTERS)), "vocab": [f"w{letter}" for letter in LETTERS]}, ""),
        ({"frequencies": {letter: 3 * index for index, letter in enumerate(LETTERS)}}, ""),
        ({"id2label": dict(enumerate(LETTERS))}, ""),
        ({"itos": dict(enumerate(LETTERS * 9))}, ""),
        ({"itos": dict(enumerate("abc"))}, ""),
    ],
)
def test_ids_are_read_with_a_table(monkeypatch: pytest.MonkeyPatch, names: dict[str, object], text: str) -> None:
    words_known(monkeypatch, **names)
    model = nn.Sequential(nn.Embedding(12, 4))
    assert words_for([[1, 0, 3]], model) == ([text] if text else [])
    assert words_for([[1, 0, 99]], model) == []
    assert words_for([[1, 0, 3]], nn.Linear(3, 1)) == []


def test_a_table_may_be_held_by_the_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Held()
    data.__dict__["itos"] = dict(enumerate(LETTERS))
    words_known(monkeypatch, dataset=data)
    assert words_for([[1, 0, 3]], nn.Sequential(nn.Embedding(12, 4))) == ["bad"]
