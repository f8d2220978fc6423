"""The user's files as the editor has them: open ones with their unsaved text, the others from disk."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pygls.uris import to_fs_path
from pygls.workspace import TextDocument, Workspace

from unstuck.source import SourceError
from unstuck.source.documents.files import read_text

LINE_END = re.compile(r"\r\n|\r|\n")


class OpenFiles:
    """Looks files up in the editor's workspace, and on disk where it has none."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def lines_of(self, path: str) -> Sequence[str]:
        """The lines of a file; none if it cannot be read."""
        uri = self._open_uri(path)
        if uri is not None:
            return lines_in(self._workspace.text_documents[uri])
        try:
            return read_text(Path(path)).split("\n")
        except SourceError:
            return []

    def uri_of(self, path: str) -> str:
        """The address of a file, spelled as the editor spells it."""
        return self._open_uri(path) or Path(os.path.abspath(path)).as_uri()

    def _open_uri(self, path: str) -> str | None:
        wanted = os.path.abspath(path)
        return next((uri for uri in self._workspace.text_documents if path_of(uri) == wanted), None)


def lines_in(document: TextDocument) -> list[str]:
    """The lines as the protocol counts them; Python would end lines at form feeds, too."""
    return LINE_END.split(document.source)


def path_of(uri: str) -> str | None:
    """Where a document lies or would lie; None for what is not a file of the user, such as a cell of a notebook."""
    scheme, _, rest = uri.partition(":")
    if scheme == "untitled":
        return os.path.abspath(os.path.basename(rest) or "untitled")
    path = to_fs_path(uri) if scheme == "file" else None
    return os.path.abspath(path) if path else None


def is_python(document: TextDocument) -> bool:
    """Is it a text that we can look at?"""
    path = path_of(document.uri)
    return path is not None and (document.language_id == "python" or path.endswith((".py", ".pyi")))
