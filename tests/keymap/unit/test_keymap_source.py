"""An external key map is read whole from a file or a web server, or the reason is reported."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dsort.errors import KeyMapError
from tests.support.internals import read_text

TEXT = "cat\tone-%d\ncaf\udce9\ttwo-%d\n"
DATA = TEXT.encode("utf-8", "surrogateescape")


class Server(BaseHTTPRequestHandler):
    """Serves ``DATA`` in several ways."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/map.txt":
            self.answer(200, DATA, len(DATA))
        elif path == "/secret":
            known = self.headers["Authorization"] == "Basic dXNlcjpwQHNz"  # user:p@ss
            self.answer(200 if known else 401, DATA, len(DATA))
        elif path == "/short":
            self.answer(200, DATA, len(DATA) + 5)
        elif path in ("/to-map", "/to-ftp", "/to-file"):
            target = {"/to-map": "/map.txt", "/to-ftp": "ftp://localhost/x"}
            self.send_response(302)
            self.send_header("Location", target.get(path, "file:///etc/hostname"))
            self.end_headers()
        else:
            self.answer(404, b"", 0)

    def answer(self, status: int, data: bytes, announced: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(announced))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "*")
    http_server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=http_server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{http_server.server_port}"
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def test_a_file_is_read_by_path_and_by_url(tmp_path: Path) -> None:
    file = tmp_path / "my map.txt"
    file.write_bytes(DATA)
    assert read_text(str(file)) == TEXT
    assert read_text(file.as_uri()) == TEXT
    assert read_text(str(file), bytes_max=len(DATA)) == TEXT
    with pytest.raises(KeyMapError, match=rf"map.txt is larger than {len(DATA) - 1} bytes"):
        read_text(str(file), bytes_max=len(DATA) - 1)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(KeyMapError, match=f"cannot read external key map {tmp_path}"):
            read_text(str(path))


def test_a_url_is_fetched(server: str) -> None:
    assert read_text(f"http://{server}/map.txt?token=secret") == TEXT
    assert read_text(f"HTTP://{server}/to-map") == TEXT


def test_a_user_and_password_in_a_url_are_sent(server: str) -> None:
    assert read_text(f"http://user:p%40ss@{server}/secret") == TEXT
    with pytest.raises(KeyMapError, match="answered 401"):
        read_text(f"http://{server}/secret")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nothing", r"answered 404 \(Not Found\)"),
        ("/short", rf"broke off after {len(DATA)} of {len(DATA) + 5} bytes"),
        ("/to-ftp", "answered 302|unknown url type: ftp|not allowed"),
        ("/to-file", "answered 302|not allowed"),
    ],
)
def test_what_a_server_does_wrong_is_reported(server: str, path: str, message: str) -> None:
    with pytest.raises(KeyMapError, match=message) as caught:
        read_text(f"http://user:secret@{server}{path}?token=secret")
    assert f"http://{server}{path}" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_large_answer_is_not_read_to_its_end(server: str) -> None:
    with pytest.raises(KeyMapError, match="is larger than 5 bytes"):
        read_text(f"http://{server}/map.txt", bytes_max=5)


def test_an_answer_that_takes_too_long_is_given_up(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyMapError, match="it took longer than"):
        read_text(f"http://{server}/map.txt", fetch_seconds_max=-1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/map.txt"
        with pytest.raises(KeyMapError, match="timed out"):
            read_text(url, answer_seconds_max=0.05)


def test_a_server_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(KeyMapError, match="Connection refused"):
        read_text(f"http://127.0.0.1:{port}/map.txt")
    for url in ("http://", "http://[::1/map", "http://host:port/map"):
        with pytest.raises(KeyMapError, match="cannot fetch external key map"):
            read_text(url)
