"""An editor, as far as the server can tell: a client that speaks the protocol over the pipes of a process."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PATIENCE = 30
Json = dict[str, Any]


class Editor:
    """Starts `unstuck lsp` and talks to it."""

    def __init__(self, *encodings: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "unstuck", "lsp", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUTF8": "1"},
        )
        self._inbox: queue.Queue[Json] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._asked = 0
        self.told: list[int | None] = []
        """Versions of which diagnostics came."""
        general = {"general": {"positionEncodings": list(encodings)}} if encodings else {}
        root = Path.cwd().as_uri()
        self.greeting = self.ask("initialize", {"processId": None, "rootUri": root, "capabilities": general})
        self.tell("initialized", {})

    def _listen(self) -> None:
        assert self._server.stdout
        while header := self._server.stdout.readline():
            length = int(header.split(b":")[1]) if header.lower().startswith(b"content-length") else 0
            while self._server.stdout.readline().strip():
                pass
            self._inbox.put(json.loads(self._server.stdout.read(length)))

    def _send(self, message: Json) -> None:
        assert self._server.stdin
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._server.stdin.flush()

    def tell(self, method: str, params: Json | None = None) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Json | None = None) -> Any:
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        while True:
            answer = self._inbox.get(timeout=PATIENCE)
            if answer.get("id") == self._asked and "method" not in answer:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: str, text: str) -> list[Json]:
        document = {"uri": Path(path).absolute().as_uri(), "languageId": "python", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return self.diagnostics(path)

    def type(self, path: str, text: str, version: int) -> None:
        document = {"uri": Path(path).absolute().as_uri(), "version": version}
        self.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def diagnostics(self, path: str, version: int | None = None) -> list[Json]:
        """The next diagnostics of a file (and of a version of it)."""
        uri = Path(path).absolute().as_uri()
        while True:
            message = self._inbox.get(timeout=PATIENCE)
            params = message.get("params") or {}
            is_told = message.get("method") == "textDocument/publishDiagnostics" and params["uri"] == uri
            self.told += [params.get("version")] if is_told else []
            if is_told and version in (None, params.get("version")):
                found: list[Json] = params["diagnostics"]
                return found

    def hover(self, path: str, line: int, character: int = 0) -> Any:
        document = {"uri": Path(path).absolute().as_uri()}
        return self.ask("textDocument/hover", {"textDocument": document, "position": position(line, character)})

    def actions(self, path: str, line: int, **context: object) -> list[Json]:
        spot = {"start": position(line, 0), "end": position(line, 0)}
        document = {"uri": Path(path).absolute().as_uri()}
        asked = {"textDocument": document, "range": spot, "context": {"diagnostics": [], **context}}
        found: list[Json] = self.ask("textDocument/codeAction", asked)
        return found

    def leave(self) -> tuple[int, str]:
        """Say goodbye; the exit code of the server and what it wrote to stderr."""
        assert self.ask("shutdown") is None
        self.tell("exit")
        return self.wait()

    def drop(self) -> tuple[int, str]:
        """Be gone without a word, as after a crash."""
        assert self._server.stdin
        self._server.stdin.close()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        assert self._server.stderr
        code = self._server.wait(timeout=PATIENCE)
        return code, self._server.stderr.read().decode()

    def end(self) -> None:
        if self._server.poll() is None:
            self._server.kill()
            self._server.wait(timeout=PATIENCE)
        for stream in (self._server.stdin, self._server.stdout, self._server.stderr):
            if stream:
                stream.close()


def position(line: int, character: int) -> Json:
    """As the protocol counts, from 0."""
    return {"line": line, "character": character}


def edited(text: str, edits: list[Json], encoding: str = "utf-16-le") -> str:
    """The text after edits whose columns count code units, made by the rules of the protocol."""
    unit = len("a".encode(encoding))
    lines = text.split("\n")
    starts = [sum(len((line + "\n").encode(encoding)) for line in lines[:number]) for number in range(len(lines))]
    raw = text.encode(encoding)

    def offset(spot: Json) -> int:
        return starts[spot["line"]] + spot["character"] * unit

    for edit in sorted(edits, key=lambda edit: offset(edit["range"]["start"]), reverse=True):
        first, last = offset(edit["range"]["start"]), offset(edit["range"]["end"])
        raw = raw[:first] + edit["newText"].encode(encoding) + raw[last:]
    return raw.decode(encoding)
