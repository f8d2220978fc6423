"""A rule's Markdown page, read as documentation and as tests."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from unstuck.findings import Witness

HEADINGS = ("What happens", "Why", "Fix", "Sources", "Broken", "Fixed")
VARIANTS = "Variants"
"""The section, after `What happens`, that a rule with variants may have: one `### id` for each."""

_HEADING = re.compile(r"^## +(.+?)\s*$")
_VARIANT = re.compile(r"^### +(.+?)\s*$")
_FENCE = re.compile(r"^```(\w*)\s*(.*?)\s*$")
_EXPERIMENT = re.compile(r"(?<=^experiment)=\w+$")
_MARK = re.compile(r"#\s*finding:\s*([a-z0-9-]+(?:\s*,\s*[a-z0-9-]+)*)")
_RUN_MARK = re.compile(r"#\s*(not )?in run$")
_RUN_REASON = re.compile(r"^Without the text, a run (.+)$", re.MULTILINE)


class PageError(Exception):
    """A page that is not written as pages are; its text says what to change."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One runnable script of a page."""

    section: str
    """`Broken` or `Fixed`."""
    variant: str
    code: str
    line: int
    """Line of the page on which the code begins."""
    witnesses: frozenset[Witness] = frozenset()
    """Who is to look at it, where the page says so; empty for all."""
    crashes: bool = False
    experiment: str = ""
    """The experiment that is to be made on it, for the experiment witness."""

    @property
    def is_setup(self) -> bool:
        """It defines `objects()` instead of being a script."""
        return Witness.SETUP in self.witnesses

    def marked_lines(self, name: str) -> set[int]:
        """Lines of the code, from 1, that carry `# finding: name`."""
        marks = ((number, _MARK.search(line)) for number, line in enumerate(self.code.split("\n"), 1))
        return {number for number, mark in marks if mark and name in re.split(r"\s*,\s*", mark.group(1))}

    @property
    def lines_in_run(self) -> set[int] | None:
        """Where the record alone, judged without the text, names other lines than the marked ones: these lines.

        They end with `# in run`; where it names no line, any line ends with `# not in run`. None where the example
        declares no difference.
        """
        marks = ((number, _RUN_MARK.search(line)) for number, line in enumerate(self.code.split("\n"), 1))
        own = [(number, mark) for number, mark in marks if mark]
        return {number for number, mark in own if not mark.group(1)} if own else None


class Page(msgspec.Struct, frozen=True):
    """What a page says: its first line, the text of each section, its examples."""

    title: str
    sections: dict[str, str]
    examples: tuple[Example, ...]

    @property
    def run_reason(self) -> str:
        """Why a run without the text names other lines: the line `Without the text, a run ...` under `## Broken`."""
        found = _RUN_REASON.search(self.sections.get("Broken", ""))
        return found.group(1) if found else ""

    @property
    def variants(self) -> dict[str, str]:
        """What the page says of each variant, by its id."""
        _, *parts = re.split(r"^### +(.+?)\s*$", self.sections.get(VARIANTS, ""), flags=re.MULTILINE)
        return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def page_name(path: Path) -> str:
    """What to call a page: `step_order.md`, or `step_order/page.md` where the rule is a folder."""
    return f"{path.parent.name}/{path.name}" if path.name == "page.md" else path.name


def read_page(path: Path) -> Page:
    """Read a page, or raise `PageError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise PageError(f"{page_name(path)} is missing: every rule has a page next to it.") from None
    lines = text.split("\n")
    if not lines[0].startswith("# "):
        raise PageError(f"{page_name(path)} must begin with `# CODE name: title`.")
    return Page(lines[0][2:].strip(), _sections(lines), tuple(_examples(lines, page_name(path))))


def _sections(lines: list[str]) -> dict[str, str]:
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    fenced = False
    for line in lines[1:]:
        fenced ^= line.startswith("```")
        heading = None if fenced else _HEADING.match(line)
        if heading:
            current = sections.setdefault(heading.group(1), [])
        else:
            current.append(line)
    return {name: "\n".join(body).strip() for name, body in sections.items()}


def _examples(lines: list[str], name: str) -> list[Example]:
    examples = []
    section = variant = ""
    opened: int | None = None
    for number, line in enumerate(lines, 1):
        if opened is not None:
            if line.rstrip() == "```":
                language, info = _fence(lines[opened - 1])
                if language == "python" and section in ("Broken", "Fixed"):
                    code = "\n".join(lines[opened : number - 1]) + "\n"
                    examples.append(_example(section, variant, code, opened + 1, info, name))
                opened = None
        elif line.startswith("```"):
            opened = number
        elif heading := _HEADING.match(line):
            section, variant = heading.group(1), ""
        elif title := _VARIANT.match(line):
            variant = title.group(1)
    if opened is not None:
        raise PageError(f"{name}:{opened}: the code block is never closed.")
    return examples


def _fence(line: str) -> tuple[str, str]:
    match = _FENCE.match(line)
    return (match.group(1), match.group(2)) if match else ("", "")


def _example(section: str, variant: str, code: str, line: int, info: str, page: str) -> Example:
    words = [word for word in re.split(r"[,\s]+", info) if word]
    try:
        witnesses = frozenset(Witness(_EXPERIMENT.sub("", word).removesuffix("=crash")) for word in words)
    except ValueError:
        known = ", ".join(witness.value for witness in Witness)
        hint = f"write {known}, run=crash, or experiment=overfit"
        raise PageError(f"{page}:{line - 1}: {info!r} is not a witness; {hint}.") from None
    return Example(
        section=section,
        variant=variant,
        code=code,
        line=line,
        witnesses=witnesses,
        crashes="run=crash" in words,
        experiment=next((word.partition("=")[2] for word in words if _EXPERIMENT.search(word)), ""),
    )
