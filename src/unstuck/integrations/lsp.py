"""The editor server: diagnostics while one types, the page of a rule on hover, and quick fixes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from unstuck._version import __version__
from unstuck.findings.result import Problem
from unstuck.integrations.here import seen_in
from unstuck.integrations.lsp_answers import Answers, Look
from unstuck.integrations.lsp_files import OpenFiles, is_python, lines_in, path_of
from unstuck.lint.engine import lint_text
from unstuck.lint.settings import SettingsError, settings_for
from unstuck.lint.workers import Reader

PAUSE = 0.2
"""Seconds without a keystroke before the text is looked at."""


class Server(LanguageServer):
    """Keeps, for every open document, what was last seen in it."""

    def __init__(self) -> None:
        # Whole texts: pygls applies changes of parts to lines that end at form feeds, which no editor agrees with.
        super().__init__("unstuck", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
        self.was_shut_down = False
        self._looks: dict[str, Look] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1)
        self._reader = Reader()

    @property
    def answers(self) -> Answers:
        """How to say things to this client."""
        return Answers(self.workspace.position_codec, OpenFiles(self.workspace))

    def look_soon(self, uri: str, pause: float = 0.0) -> None:
        """Look at a document after a pause, unless it changes again before that."""
        if uri in self._waiting:
            self._waiting[uri].cancel()
        self._waiting[uri] = asyncio.get_running_loop().create_task(self._look_and_tell(uri, pause))

    async def _look_and_tell(self, uri: str, pause: float) -> None:
        await asyncio.sleep(pause)
        try:
            look = await self.look(uri, again=True)
        except Exception as error:
            # A bug of ours must neither stop the server nor interrupt whoever types.
            message = types.LogMessageParams(types.MessageType.Error, f"unstuck: {type(error).__name__}: {error}")
            self.window_log_message(message)
            return
        if look is not None:
            diagnostics = [self.answers.diagnostic(seen) for seen in look.seen]
            diagnostics += [self.answers.problem(look.problem)] if look.problem else []
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics, look.version))

    async def look(self, uri: str, *, again: bool = False) -> Look | None:
        """What is seen in the document as it is now; None if it is none of ours, or changes meanwhile."""
        document = self.workspace.text_documents.get(uri)
        if document is None or not is_python(document):
            return None
        version, text = document.version, "\n".join(lines_in(document))
        known = self._looks.get(uri)
        if known and known.text == text and not again:
            return known
        loop = asyncio.get_running_loop()
        look = await loop.run_in_executor(self._thread, _look, self._reader, path_of(uri) or "", text, version, known)
        now = self.workspace.text_documents.get(uri)
        if now is None or now.version != version:
            return None
        self._looks[uri] = look
        return look

    def forget(self, uri: str) -> None:
        """The document was closed: nothing is shown for it any more."""
        self._looks.pop(uri, None)
        waiting = self._waiting.pop(uri, None)
        if waiting:
            waiting.cancel()
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def _look(reader: Reader, path: str, text: str, version: int | None, before: Look | None) -> Look:
    """A text that is being typed is often no Python for a moment; what was seen before that stays."""
    try:
        result = lint_text(path, text, settings_for([path]), reader)
    except SettingsError as error:
        return Look(version, text, problem=Problem(str(error)))
    if result.problems:
        return Look(version, text, before.seen if before else (), result.problems[0])
    return Look(version, text, tuple(seen_in(path, result)))


def build() -> Server:
    """The server, ready to be started."""
    server = Server()

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(message: types.DidOpenTextDocumentParams) -> None:
        server.look_soon(message.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(message: types.DidChangeTextDocumentParams) -> None:
        server.look_soon(message.text_document.uri, PAUSE)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(message: types.DidSaveTextDocumentParams) -> None:
        # Other open files may import this one, or it may hold the settings of them all.
        for uri in list(server.workspace.text_documents):
            server.look_soon(uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(message: types.DidCloseTextDocumentParams) -> None:
        server.forget(message.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(asked: types.HoverParams) -> types.Hover | None:
        look = await server.look(asked.text_document.uri)
        line = asked.position.line
        return server.answers.hover(look.on_lines(line, line)) if look and not look.problem else None

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions([types.CodeActionKind.QuickFix]))
    async def actions(asked: types.CodeActionParams) -> list[types.CodeAction]:
        look = await server.look(asked.text_document.uri)
        only = asked.context.only
        if look is None or look.problem or (only and types.CodeActionKind.QuickFix not in only):
            return []
        found = look.on_lines(asked.range.start.line, asked.range.end.line)
        return list(server.answers.actions(look, found))

    @server.feature(types.SHUTDOWN)
    def shut_down(_: None) -> None:
        server.was_shut_down = True

    return server


def serve() -> bool:
    """Serve over stdin and stdout until the editor leaves. Did it say goodbye?"""
    server = build()
    server.start_io()
    return server.was_shut_down
