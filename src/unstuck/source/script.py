"""A script as the rules see it: its events as loops and paths, and what its values came from."""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from unstuck.events import Backward
from unstuck.lazy import pattern
from unstuck.source.documents.comments import IGNORE
from unstuck.source.documents.files import SourceError, read_text
from unstuck.source.facts import Facts
from unstuck.source.reader.project import Project, parse
from unstuck.source.reader.scope import SourceFile
from unstuck.source.reader.whole_script import read_facts
from unstuck.source.trace import Loop, events_in, loops_in

TORCH_TEXT = pattern(r"torch|backward|optimizer|nn\.Module")


class Script:
    """One file, read. Build it with `read_script`."""

    def __init__(self, path: str, text: str, tree: ast.Module, project: Project) -> None:
        self.path = path
        self.text = text
        self.lines = text.split("\n")
        self.tree = tree
        self._project = project

    @cached_property
    def facts(self) -> Facts:
        """What following the script's statements, functions and classes found."""
        if not TORCH_TEXT.search(self.text):
            return Facts()
        return read_facts(self.tree, self.text, SourceFile(self.path, self.lines), self._project)

    @cached_property
    def training_loops(self) -> tuple[Loop, ...]:
        """Loops that run a backward pass in each iteration, outside of inner loops; each once."""
        found: dict[object, Loop] = {}
        for loop in loops_in(self.facts.trace):
            if any(isinstance(item.event, Backward) for item in events_in(loop.body, nested_loops=False)):
                # A function that is called twice has its loop twice in the trace, with the same events.
                events = tuple(f"{type(item.event).__name__} {item.event.place}" for item in events_in(loop.body))
                found.setdefault((loop.node, events), loop)
        return tuple(found.values())

    def ignored(self, line: int, code: str, name: str) -> bool:
        """Does a `# unstuck: ignore` comment on this line silence the rule?"""
        if not 0 < line <= len(self.lines):
            return False
        comment = IGNORE.search(self.lines[line - 1])
        if comment is None:
            return False
        listed = comment.group(1)
        words = {word.strip().lower().replace("_", "-") for word in (listed or "").split(",")}
        # A comment for all rules does not silence the rule about unused comments.
        return (listed is None and name != "unused-ignore") or code.lower() in words or name in words


def read_script(
    path: Path, project: Project | None = None, text: str | None = None, tree: ast.Module | None = None
) -> Script:
    """Read one file, or raise a SourceError that says what is wrong with it.

    `text` replaces the content of the file, and `tree` is that text parsed, if the caller has it.
    """
    text = read_text(path) if text is None else text
    script = Script(str(path), text, tree or parse(text, str(path)), project or Project())
    try:
        _ = script.facts
    except RecursionError:
        raise SourceError(f"{path} nests too deeply to be followed; it was skipped.") from None
    return script
