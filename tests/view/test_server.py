"""The live view's server: what it answers, and all that it refuses."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.view.records import events_of_a_run, written
from unstuck.view.live import Runs
from unstuck.view.server import MOST_STREAMS, Server

RUN = "20260101-120000-train"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / ".unstuck" / "runs" / RUN, *events_of_a_run(60, 2))
    yield from serving(Runs())


def serving(runs: Runs, host: str = "127.0.0.1") -> Iterator[Server]:
    server = Server(runs, host)
    runs.look()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    threading.Thread(target=server.work, daemon=True).start()
    yield server
    server.stop()
    server.shutdown()
    server.server_close()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def raw(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_page_its_script_and_its_style(server: Server) -> None:
    for name, kind in (("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")):
        status, headers, body = ask(server, f"/{server.token}/{name}")
        assert (status, headers["Content-Type"], len(body)) == (200, f"{kind}; charset=utf-8", len(body))
        assert body


def test_a_run_and_the_list_of_runs(server: Server) -> None:
    assert json.loads(ask(server, f"/{server.token}/runs.json")[2])[0]["name"] == RUN
    status, _, body = ask(server, f"/{server.token}/run.json?run={RUN}")
    assert status == 200
    assert json.loads(body)["run"]["script"] == "train.py"


def test_it_listens_on_this_machine_only(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/")


def test_ports_and_tokens_are_new_each_time(server: Server) -> None:
    other = Server(Runs())
    other.server_close()
    assert other.token != server.token
    assert other.port != server.port
    assert len(server.token) >= 32


@pytest.mark.parametrize("path", ["/", "/page.js", "/runs.json", "/x/", "//", "/{half}/", "/{token}", "/{token}x/"])
def test_without_the_token_there_is_nothing(server: Server, path: str) -> None:
    status, _, body = ask(server, path.format(token=server.token, half=server.token[:16]))
    assert status == 403
    assert b"unstuck view" in body


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_a_name_that_leads_here_by_a_trick_is_refused(server: Server, host: str) -> None:
    assert ask(server, f"/{server.token}/", Host=host.format(port=server.port))[0] == 421


def test_two_hosts_are_refused(server: Server) -> None:
    request = f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nHost: evil.example\r\n\r\n"
    assert raw(server, request.encode()).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_requests_of_other_sites_are_refused(server: Server, origin: str) -> None:
    assert ask(server, f"/{server.token}/runs.json", Origin=origin.format(port=server.port))[0] == 403


def test_its_own_origin_may_ask(server: Server) -> None:
    assert ask(server, f"/{server.token}/runs.json", Origin=f"http://127.0.0.1:{server.port}")[0] == 200
    assert ask(server, f"/{server.token}/runs.json", Sec_Fetch_Site="same-origin")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_the_browser_says_of_another_site_counts(server: Server, site: str) -> None:
    assert ask(server, f"/{server.token}/runs.json", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_it_can_only_be_read(server: Server, method: str) -> None:
    assert ask(server, f"/{server.token}/", method)[0] == 405


def test_an_unknown_method_or_a_broken_request_gets_no_echo(server: Server) -> None:
    for request in (b"BREW /<script> HTTP/1.1\r\nHost: x\r\n\r\n", b"<script>\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        answer = raw(server, request)
        assert b"<script>" not in answer
        assert b"Content-Security-Policy" in answer


def test_every_answer_has_a_strict_policy(server: Server) -> None:
    for path in ("/", f"/{server.token}/", f"/{server.token}/runs.json", f"/{server.token}/nothing"):
        headers = ask(server, path)[1]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src data:;")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(server: Server) -> None:
    page = ask(server, f"/{server.token}/")[2].decode()
    assert "<style" not in page
    assert page.count("<script") == 2, "its file, and the empty place for data"
    assert "http" not in page


@pytest.mark.parametrize(
    "name",
    ["../secret", "..%2Fsecret", "%2e%2e/secret", "/etc/passwd", "secret", f"{RUN}/../../../secret", f"{RUN}%00", "."],
)
def test_no_name_leads_out_of_the_folder_of_runs(server: Server, tmp_path: Path, name: str) -> None:
    written(tmp_path / "secret", *events_of_a_run(20, 1), script="secret.py")
    status, _, body = ask(server, f"/{server.token}/run.json?run={name}")
    assert status == 404
    assert b"secret.py" not in body


@pytest.mark.parametrize("path", ["../page.js", "..%2f..%2fpyproject.toml", "page/../html.py", ".unstuck/runs"])
def test_no_path_leads_to_a_file(server: Server, path: str) -> None:
    assert ask(server, f"/{server.token}/{path}")[0] == 404


def test_links_among_runs_are_not_followed(server: Server, tmp_path: Path) -> None:
    written(tmp_path / "secret", *events_of_a_run(20, 1), script="secret.py")
    runs = tmp_path / ".unstuck" / "runs"
    (runs / "20260102-120000-link").symlink_to(tmp_path / "secret")
    (runs / "20260103-120000-file").mkdir()
    (runs / "20260103-120000-file" / "events.jsonl").symlink_to(tmp_path / "secret" / "events.jsonl")
    server.runs.look()
    assert list(server.runs.folders) == [RUN]


def test_names_in_a_record_are_only_ever_data(server: Server, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\x1b[31m javascript:alert(1)"
    name = "20260104-120000-hostile"
    written(tmp_path / ".unstuck" / "runs" / name, *events_of_a_run(20, 1), script=hostile)
    server.runs.look()
    status, headers, body = ask(server, f"/{server.token}/run.json?run={name}")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(body)["run"]["script"] == hostile
    assert b"\x1b" not in body


def test_news_come_as_a_stream(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(
            f"GET /{server.token}/events?run={RUN} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
        )
        seen = b""
        while b'"versions":{"20260101-120000-train":1}' not in seen:
            part = connection.recv(4096)
            assert part
            seen += part
    assert b"Content-Type: text/event-stream" in seen


def test_there_is_an_end_to_open_streams(server: Server) -> None:
    request = f"GET /{server.token}/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    streams = []
    for _ in range(MOST_STREAMS):
        streams.append(socket.create_connection(("127.0.0.1", server.port), timeout=20))
        streams[-1].sendall(request)
        assert streams[-1].recv(4096).startswith(b"HTTP/1.1 200")
    assert raw(server, request).startswith(b"HTTP/1.1 503")
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("192.168.1.7:{port}", True),
        ("[fe80::1]:{port}", True),
        ("localhost:{port}", True),
        ("rebound.example:{port}", False),
        ("192.168.1.7:1", False),
    ],
)
def test_open_to_other_machines_it_still_refuses_names(host: str, is_ours: bool) -> None:
    server = Server(Runs(), "0.0.0.0")
    server.server_close()
    assert server.is_ours(host.format(port=server.port)) is is_ours
