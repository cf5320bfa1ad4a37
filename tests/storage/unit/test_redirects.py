"""Redirections of web requests: followed a few times, to TLS or to where the request began, and
without the headers that are for the first server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest

from dsort.errors import StorageError, TransientStorageError
from dsort.storage.limit import StoreLimits
from dsort.storage.redirects import REDIRECTS_MAX, RuledWeb, WebErrors, is_safe_place, origin_of
from tests.support.local_servers import LocalServer, QuietHandler, serving
from tests.support.refusals import raises

OWN = {"Authorization": "Bearer secret"}


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Authorization", "")))
        self.server.connections.add(self.client_address)
        self.server.logins.append(self.headers.get("Proxy-Authorization", ""))
        target = self.server.targets.get(self.path)
        body = b"x" * self.server.body_bytes if target else self.server.url.encode()
        self.send_response(302 if target else 200)
        self.send_header("X-Of", str(self.server.server_port))
        self.send_header("Content-Length", str(len(body)))
        if target:
            self.send_header("Location", target)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


class _Server(LocalServer):
    """``targets``: of redirections, by path."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.targets: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.logins: list[str] = []
        self.connections: set[tuple[str, int]] = set()
        self.body_bytes = 5


@pytest.fixture
def servers() -> Iterator[tuple[_Server, _Server]]:
    with serving(_Server()) as home, serving(_Server()) as other:
        yield home, other


def web_of(server: _Server) -> RuledWeb:
    return RuledWeb(server.url, StoreLimits(), OWN)


def test_the_headers_of_the_first_server_are_for_it_alone(
    servers: tuple[_Server, _Server],
) -> None:
    home, other = servers
    home.targets = {"/a": "/b?q", "/b?q": f"{other.url}/c"}
    other.targets = {"/c": f"{home.url}/d"}
    reply = web_of(home).ask("GET", f"{home.url}/a", {})
    assert reply.text(100).decode() == home.url
    assert [path for path, _ in home.requests] == ["/a", "/b?q", "/d"]
    assert {secret for _, secret in home.requests} == {"Bearer secret"}
    assert other.requests == [("/c", "")]


def test_a_reply_says_what_the_first_server_said_and_where_it_came_from(
    servers: tuple[_Server, _Server],
) -> None:
    home, other = servers
    home.targets = {"/a": f"{other.url}/c?signed"}
    reply = web_of(home).ask("GET", f"{home.url}/a", {})
    assert reply.said["x-of"] == str(home.server_port)
    assert reply.headers["X-Of"] == str(other.server_port)
    assert reply.moved_to == f"{other.url}/c?signed"
    reply.close()
    assert web_of(home).ask("GET", f"{home.url}/d", {}).moved_to == ""


def test_a_request_that_must_not_leave_ends_at_the_last_reply(
    servers: tuple[_Server, _Server],
) -> None:
    home, other = servers
    home.targets = {"/a": "/b", "/b": f"{other.url}/c"}
    reply = web_of(home).ask("HEAD", f"{home.url}/a", {}, leaves=False)
    assert (reply.status, reply.moved_to, other.requests) == (302, "", [])


def test_a_loop_ends(servers: tuple[_Server, _Server]) -> None:
    home, _ = servers
    home.targets = {"/a": "/a"}
    with raises(StorageError, str(REDIRECTS_MAX)):
        web_of(home).ask("GET", f"{home.url}/a", {})
    assert len(home.requests) == REDIRECTS_MAX + 1


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("http://203.0.113.7/x?sig", "http://203.0.113.7"),
        ("//203.0.113.7/x?sig", "http://203.0.113.7"),
        ("ftp://127.0.0.1/x?sig", "read a"),
        ("file:///etc/passwd", "read a"),
        ("https://user:pw@127.0.0.1/x?sig", "read a"),
        ("https://[/x?sig", "read a"),
        ("https://127.0.0.1:99999/x?sig", "read a"),
    ],
)
def test_a_place_without_tls_or_sense_is_not_gone_to(
    servers: tuple[_Server, _Server], target: str, named: str
) -> None:
    home, _ = servers
    home.targets = {"/a": target}
    with raises(StorageError, named) as caught, WebErrors("read a"):
        web_of(home).ask("GET", f"{home.url}/a", {})
    assert "sig" not in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(("body_bytes", "connections"), [(0, 1), (5, 1), (1 << 20, 2)])
def test_a_connection_is_kept_unless_a_needless_body_is_long(
    servers: tuple[_Server, _Server], body_bytes: int, connections: int
) -> None:
    home, _ = servers
    home.targets, home.body_bytes = {"/a": "/b"}, body_bytes
    assert web_of(home).ask("GET", f"{home.url}/a", {}).text(100)
    assert len(home.connections) == connections


def test_a_text_has_a_bound(servers: tuple[_Server, _Server]) -> None:
    home, _ = servers
    reply = web_of(home).ask("GET", f"{home.url}/a", {})
    with raises(ValueError, "3 bytes"):
        reply.text(3)


FAR = "http://hub.example"


def far_web() -> RuledWeb:
    return RuledWeb(FAR, StoreLimits(), OWN)


def test_the_proxy_of_the_environment_is_used(
    servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, proxy = servers
    monkeypatch.setenv("no_proxy", "other.example")
    monkeypatch.setenv("http_proxy", proxy.url)
    far_web().ask("GET", f"{FAR}/a", {}).close()
    monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://me:p%40ss@"))
    far_web().ask("GET", f"{FAR}/a", {}).close()
    monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://"))
    far_web().ask("GET", f"{FAR}/a", {}).close()
    assert proxy.requests == [(f"{FAR}/a", "Bearer secret")] * 3
    assert proxy.logins == ["", f"Basic {b64encode(b'me:p@ss').decode()}", ""]


def test_a_server_that_needs_no_proxy_is_reached_without_it(
    servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, proxy = servers
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "hub.invalid")
    with pytest.raises(TransientStorageError), WebErrors("read a"):
        RuledWeb("http://hub.invalid", StoreLimits(), OWN).ask("GET", "http://hub.invalid/a", {})
    assert proxy.requests == []


def test_headers_for_this_machine_are_sent_to_no_proxy(
    servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, proxy = servers
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "")
    web_of(home).ask("GET", f"{home.url}/a", {}).close()
    assert (home.requests, proxy.requests) == ([("/a", "Bearer secret")], [])


@pytest.mark.parametrize("proxy", ["socks5://me:pw@127.0.0.1:9", "http://me:pw@[::1"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "other.example")
    with raises(StorageError, "http_proxy") as caught, WebErrors("read a"):
        far_web().ask("GET", f"{FAR}/a", {})
    assert "pw" not in str(caught.value)


def test_a_connection_that_fails_may_succeed_later() -> None:
    web = RuledWeb("http://127.0.0.1:9", StoreLimits(), OWN)
    with raises(TransientStorageError, "read a"), WebErrors("read a"):
        web.ask("GET", "http://127.0.0.1:9/a", {})


def test_safe_places_have_tls_or_are_this_machine() -> None:
    assert is_safe_place("https://host/x")
    assert is_safe_place("http://127.0.0.1:80")
    assert is_safe_place("http://[::1]")
    assert is_safe_place("http://localhost")
    assert not is_safe_place("http://host")
    assert not is_safe_place("http://127.0.0.1.example")
    assert origin_of("HTTPS://Host/x") == ("https", "host", 443)
