"""The words users read: help, messages, docstrings, pages and documentation are plain English.

A word list cannot write well, but it keeps the worst from coming back. Each entry says what to write instead.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "unstuck"
CODE = r"[`\w.]*\w\(\)`?"
INSTEAD = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\btold\b|\btells? (of|more)\b": "reported, shows, recorded for",
    r"\bturns? of (a|the|its|one|each|every) loops?\b|\b(next|every|each|all|one|same) turns?\b": "iteration",
    rf"\bbehind {CODE}": "after",
    rf"\bin front of {CODE}": "before",
    r"(?<!there )\b(is|are|was|were) no (?!(longer|more|other|such|need|\w+ than)\b)(?=\w)": "is not a, are not",
    r"\bso-manieth\b|\beach [Nn]-th\b|\bN-th\b": "every Nth",
    r"\bby heart\b": "memorize, overfit",
    r"\b(is|was|are) hurt\b|\bsuffers?\b": "diverges, spikes or stalls: say which",
    r"\bleave\w* \S+ (\S+ )?away\b|\bleft away\b": "drop",
    r"\bwhatever it costs\b|\bas far as that goes\b": "say the number, or cut it",
    r"\banew\b": "again",
    r"\bbeside\b": "next to, besides, in addition to",
    r"\bwherefore\b": "so",
    r"\bthereby\b|\btherein\b|\bthereof\b": "cut it",
    r"\bnothing of (yours|the user's)\b": "does not touch your files",
    r"\b(made|makes?|making) (an|the|one) experiments?\b|\bexperiments? (was|were|is|are) made\b": "run an experiment",
    r"\bstands? (after|before|in(?! for)|on|there|where|below|above|behind)\b": "comes, is",
    r"\bto and fro\b|\bin vain\b|\bas ever\b": "back and forth, for nothing, as usual",
}
PATTERNS = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in INSTEAD.items()}
NOT_YET: dict[str, int] = {}
"""Rooms that are still being rewritten, with how many words are left there. A count only ever goes down."""


GENERATED = re.compile("(?s)<!-- rules:begin -->.*?<!-- rules:end -->")
"""A table in README.md and docs/rules.md whose words are those of the rules."""


def texts() -> Iterator[tuple[str, str, int, str]]:
    """Everything somebody reads: its room, file, line and text."""
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield room, str(file.relative_to(ROOT)), node.lineno, node.value
    for file in sorted((PACKAGE / "rules").rglob("*.md")):
        yield "rules", str(file.relative_to(ROOT)), 1, file.read_text(encoding="utf-8")
    for file in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"):
        room = "docs" if file.parent.name == "docs" and file.stem != "architecture" else file.name
        text = GENERATED.sub(lambda table: "\n" * table[0].count("\n"), file.read_text(encoding="utf-8"))
        yield room, str(file.relative_to(ROOT)), 1, text


@functools.cache
def findings() -> dict[str, list[str]]:
    """For each room a line for each word on the list."""
    found: dict[str, list[str]] = {}
    for room, file, first, text in texts():
        for pattern, instead in PATTERNS.items():
            for match in pattern.finditer(text):
                line = first + text.count("\n", 0, match.start())
                where = f"{file}:{line}: {' '.join(match[0].split())!r}; write instead: {instead}"
                found.setdefault(room, []).append(where)
    return found


ROOMS = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix in ("", ".py")} - {"__pycache__"}


@pytest.mark.parametrize("room", sorted(ROOMS | NOT_YET.keys() | {"docs", "README.md", "architecture.md"}))
def test_the_words_are_plain_english(room: str) -> None:
    words, allowed = findings().get(room, []), NOT_YET.get(room, 0)
    assert len(words) <= allowed, f"{len(words)} in {room}, {allowed} allowed:\n" + "\n".join(words)
    assert len(words) == allowed, f"fewer words are left in {room}: lower its count in NOT_YET to {len(words)}"


@pytest.mark.parametrize(
    ("sentence", "is_plain"),
    [
        ("x is no number", False),
        ("there is no rule 'O99'", True),
        ("move zero_grad() in front of backward()", False),
        ("move `step()` after `loss.backward()`", True),
        ("the batch is drawn anew in every turn of the loop", False),
        ("measure each N-th step", False),
        ("it is no longer needed", True),
        ("turn gradients off", True),
    ],
)
def test_the_list_knows_what_it_is_after(sentence: str, is_plain: bool) -> None:
    assert is_plain is not any(pattern.search(sentence) for pattern in PATTERNS)


if __name__ == "__main__":
    for name, words in sorted(findings().items()):
        print(f'    "{name}": {len(words)},')
