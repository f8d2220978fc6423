"""The live view's server: this machine only, reading only, and nothing but the runs that are listed.

Every address begins with a secret token. A page of another origin cannot guess it, a name that another machine
resolves to this one is refused by its Host, and a request that another site caused by its Origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from unstuck.view import html
from unstuck.view.document import encoded
from unstuck.view.live import Runs

LOOPBACK = "127.0.0.1"
MOST_CONNECTIONS = 48
MOST_STREAMS = 16
MOST_WATCHED = 8
"""Runs that one page may look at."""
KEPT_FOR = 20.0
"""Seconds for which a run is kept in memory after the last page has left it."""
PULSE = 15.0
"""Seconds after which a stream without news says that it is still there."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Serves the page and its data. `serve` returns when `stop` is called."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, runs: Runs, host: str = LOOPBACK, port: int = 0) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        self.runs = runs
        self.token = secrets.token_urlsafe(24)
        self.host = host
        self.port: int = self.server_address[1]
        self.news = threading.Condition()
        self.watched: Counter[str] = Counter()
        self._left: dict[str, float] = {}
        self.streams = 0
        self.last_left = time.monotonic()
        """When the last page was closed, or when nobody had come yet."""
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._stopping = threading.Event()

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = LOOPBACK if self.host in ("0.0.0.0", "") else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{self.token}/"

    def is_ours(self, host: str) -> bool:
        """Is this the Host of a request that was meant for this server? A name that somebody else may have pointed at
        this machine is not; the number of a machine is, if other machines may connect."""
        name, _, port = host.rpartition(":")
        if port != str(self.port):
            return False
        if name in (LOOPBACK, "localhost", self.host):
            return True
        if self.host == LOOPBACK:
            return False
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread for each connection, and so many at most."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then give the place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Browsers hang up all the time."""

    def work(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look after the runs that pages look at, until `stop` is called or it is over. Without a page nothing is
        read."""
        listed = 0.0
        while not self._stopping.is_set() and not is_over():
            changed = False
            if self.streams:
                if time.monotonic() - listed > 1.5:
                    changed = self.runs.look()
                    listed = time.monotonic()
                for name in [name for name, pages in self.watched.items() if pages > 0]:
                    followed = self.runs.follow(name)
                    changed = (followed is not None and followed.refresh()) or changed
                version = self.runs.version
                busy = self.runs.summarise_one()
                changed = changed or self.runs.version != version
            else:
                busy = False
            self._forget()
            if changed:
                with self.news:
                    self.news.notify_all()
            self._stopping.wait(0.01 if busy else 0.3)
        self.stop()

    def _forget(self) -> None:
        now = time.monotonic()
        for name in list(self.runs.followed):
            if self.watched[name] > 0:
                self._left.pop(name, None)
            else:
                self._left.setdefault(name, now)
        gone = {name for name, since in self._left.items() if now - since > KEPT_FOR}
        if gone:
            self.runs.forget(set(self.runs.followed) - gone)
            for name in gone:
                self._left.pop(name, None)

    def stop(self) -> None:
        """End all streams and the server."""
        self._stopping.set()
        with self.news:
            self.news.notify_all()

    @property
    def is_stopping(self) -> bool:
        """Is it about to end?"""
        return self._stopping.is_set()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "unstuck"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """One of a handful of addresses."""
        trouble = self._refusal()
        if trouble is not None:
            self._send(trouble[0], "text/plain", trouble[1].encode())
            return
        path, _, query = self.path.partition("?")
        page = path.removeprefix(f"/{self.server.token}/")
        match page:
            case "":
                self._send(200, "text/html", html.live_page().encode())
            case "page.js":
                self._send(200, "text/javascript", html.script().encode())
            case "page.css":
                self._send(200, "text/css", html.style().encode())
            case "runs.json":
                self._send(200, "application/json", encoded(self.server.runs.summaries()))
            case "run.json":
                self._run(parse_qs(query, max_num_fields=MOST_WATCHED).get("run", [""])[0])
            case "events":
                self._stream(parse_qs(query, max_num_fields=MOST_WATCHED).get("run", []))
            case _:
                self._send(404, "text/plain", b"There is nothing here.")

    def _refused(self) -> None:
        self._send(405, "text/plain", b"This page is read only.")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_HEAD = do_TRACE = do_CONNECT = _refused

    def _refusal(self) -> tuple[int, str] | None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.is_ours(hosts[0]):
            return 421, "This server answers requests for its own address only."
        origin = self.headers.get("Origin")
        if origin is not None and (urlsplit(origin).scheme != "http" or urlsplit(origin).netloc != hosts[0]):
            return 403, "Requests of other sites are refused."
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return 403, "Requests of other sites are refused."
        token = self.path.split("?")[0].split("/")[1] if self.path.startswith("/") else ""
        if not hmac.compare_digest(token.encode(), self.server.token.encode()) or self.path.count("/") < 2:
            return 403, "Open the address that `unstuck view` printed, with its token."
        return None

    def _run(self, name: str) -> None:
        followed = self.server.runs.follow(name)
        if followed is not None and not followed.version:
            followed.refresh()
        if followed is None:
            self._send(404, "text/plain", b"There is no run of this name.")
        elif not followed.version:
            self._send(404, "text/plain", b"This run has no record yet.")
        else:
            self._send(200, "application/json", followed.body)

    def _stream(self, names: list[str]) -> None:
        """News as they come: which runs there are, and which of those that are looked at have changed."""
        server = self.server
        with server.news:
            is_full = server.streams >= MOST_STREAMS
            if not is_full:
                server.streams += 1
                server.watched.update(names)
        if is_full:
            self._send(503, "text/plain", b"Too many pages are open.")
            return
        try:
            self.close_connection = True
            self._head(200, "text/event-stream")
            self._tell(names)
        except OSError:
            return
        finally:
            with server.news:
                server.streams -= 1
                server.watched.subtract(names)
                server.last_left = time.monotonic()

    def _tell(self, names: list[str]) -> None:
        told: object = None
        while not self.server.is_stopping:
            followed = {name: self.server.runs.followed.get(name) for name in names}
            news = {
                "runs": self.server.runs.version,
                "versions": {name: one.version for name, one in followed.items() if one is not None and one.version},
            }
            self.wfile.write(b"data: " + encoded(news) + b"\n\n" if news != told else b": here\n\n")
            self.wfile.flush()
            told = news
            with self.server.news:
                self.server.news.wait(PULSE)

    def _head(self, code: int, kind: str, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, code: int, kind: str, body: bytes) -> None:
        if code >= 400:
            self.close_connection = True
        self._head(code, kind, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A request that is none: no part of it is repeated."""
        self.close_connection = True
        self.request_version = "HTTP/1.1"  # else an answer would have no headers
        self.command = getattr(self, "command", None) or "GET"
        self._send(code, "text/plain", b"This is not a request that this server understands.")

    def log_message(self, format: str, *words: Any) -> None:
        """Nothing is logged: the token would be in it."""
