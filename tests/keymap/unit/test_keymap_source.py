"""An external key map is read whole from a file or a web server, or the reason is reported; that
of a spec from the network comes from where the policy allows, judged by the file that is opened
and the address that is connected to, at every hop."""

from __future__ import annotations

import json
import os
import pickle
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import KeyMapError, TransformError
from dsort.spec.load import parse_spec
from dsort.storage.network_policy import FetchPolicy, address_kind
from tests.support.certificates import make_certificate
from tests.support.internals import Tally, TextKind, load_keymap, read_text
from tests.support.local_servers import LocalServer, QuietHandler, serving
from tests.support.refusals import raises

TEXT = "cat\tone-%d\ncaf\udce9\ttwo-%d\n"
DATA = TEXT.encode("utf-8", "surrogateescape")


class Server(QuietHandler):
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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "*")
    with serving(LocalServer(Server)) as http_server:
        yield http_server.host


def test_a_file_is_read_by_path_and_by_url(tmp_path: Path) -> None:
    file = tmp_path / "my map.txt"
    file.write_bytes(DATA)
    assert read_text(str(file)) == TEXT
    assert read_text(file.as_uri()) == TEXT
    assert read_text(str(file), bytes_max=len(DATA)) == TEXT
    with raises(KeyMapError, "map.txt", f"{len(DATA) - 1} bytes"):
        read_text(str(file), bytes_max=len(DATA) - 1)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "a\0b"):
        with raises(KeyMapError, str(tmp_path)):
            read_text(str(path))


def test_a_url_is_fetched(server: str) -> None:
    assert read_text(f"http://{server}/map.txt?token=secret") == TEXT
    assert read_text(f"HTTP://{server}/to-map") == TEXT


def test_a_user_and_password_in_a_url_are_sent(server: str) -> None:
    assert read_text(f"http://user:p%40ss@{server}/secret") == TEXT
    with raises(KeyMapError, "401"):
        read_text(f"http://{server}/secret")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/nothing", "404"),
        ("/short", f"{len(DATA)} of {len(DATA) + 5} bytes"),
        ("/to-ftp", ""),
        ("/to-file", ""),
    ],
)
def test_what_a_server_does_wrong_is_reported(server: str, path: str, named: str) -> None:
    with raises(KeyMapError, f"http://{server}{path}", named) as caught:
        read_text(f"http://user:secret@{server}{path}?token=secret")
    assert "secret" not in str(caught.value)


def test_a_large_answer_is_not_read_to_its_end(server: str) -> None:
    with raises(KeyMapError, "5 bytes"):
        read_text(f"http://{server}/map.txt", bytes_max=5)


def test_an_answer_that_takes_too_long_is_given_up(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises(KeyMapError, "-1 s"):
        read_text(f"http://{server}/map.txt", fetch_seconds_max=-1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/map.txt"
        with raises(KeyMapError, url):
            read_text(url, answer_seconds_max=0.05)


def test_a_server_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with raises(KeyMapError, f"127.0.0.1:{port}"):
        read_text(f"http://127.0.0.1:{port}/map.txt")
    for url in ("http://", "http://[::1/map", "http://host:port/map"):
        with raises(KeyMapError, url):
            read_text(url)


LINES = "cat\tone-%d\n"


class Redirecting(QuietHandler):
    """Serves ``LINES``, and redirections to wherever the query says."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"{self.headers['Host']}{self.path}")
        path, _, query = self.path.partition("?")
        self.send_response(302 if path == "/to" else 200)
        if path == "/to":
            self.send_header("Location", query)
        self.send_header("Content-Length", str(0 if path == "/to" else len(LINES)))
        self.end_headers()
        if path != "/to":
            self.wfile.write(LINES.encode())


def redirecting(asked: list[str]) -> LocalServer:
    # Each request has a handler of its own: what all of them know is of their class.
    return LocalServer(type("Asked", (Redirecting,), {"asked": asked}))


@pytest.fixture
def asked() -> list[str]:
    """What the server was asked for."""
    return []


@pytest.fixture
def port(asked: list[str]) -> Iterator[int]:
    """The port of a web server on 127.0.0.1."""
    with serving(redirecting(asked)) as server:
        yield server.server_port


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A name service of our own: the addresses of each name."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        found = [
            each for address in known.get(host, [host]) for each in real(address, port, **more)
        ]
        known.setdefault("looked up", []).append(host)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


OURS = FetchPolicy(hosts=("127.0.0.1:*", "maps.test:*"), allow_private=True)
PUBLIC = FetchPolicy(hosts=("127.0.0.1:*", "maps.test:*", "*.test:*"))


def test_an_allowed_host_is_asked(port: int, names: dict[str, list[str]]) -> None:
    names["maps.test"] = ["127.0.0.1"]
    for host in ("127.0.0.1", "maps.test", "MAPS.test"):
        names.setdefault(host, ["127.0.0.1"])
        assert read_text(f"http://{host}:{port}/map", policy=OURS) == LINES


@pytest.mark.parametrize(
    "policy", [FetchPolicy(), FetchPolicy(hosts=("other.test:*", "maps.test"))]
)
def test_a_host_that_is_not_allowed_is_not_even_looked_up(
    policy: FetchPolicy, port: int, names: dict[str, list[str]], asked: list[str]
) -> None:
    names["maps.test"] = ["127.0.0.1"]
    with raises(KeyMapError, f"maps.test:{port}"):
        read_text(f"http://maps.test:{port}/map?token=secret", policy=policy)
    assert "looked up" not in names
    assert not asked


def test_a_name_that_leads_to_a_private_address_is_refused(
    port: int, names: dict[str, list[str]], asked: list[str]
) -> None:
    for address in (
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "10.1.2.3",
        "fd00:ec2::254",
    ):
        names["maps.test"] = [address]
        with raises(KeyMapError, f"maps.test:{port}"):
            read_text(f"http://maps.test:{port}/map", policy=PUBLIC)
    for literal in ("127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::ffff:7f00:1]"):
        policy = FetchPolicy(hosts=("*:*",))
        with raises(KeyMapError, f":{port}"):
            read_text(f"http://{literal}:{port}/map", policy=policy)
    assert not asked


def test_an_address_without_an_owner_is_refused_whatever_is_allowed(
    port: int, names: dict[str, list[str]]
) -> None:
    for address in ("169.254.169.254", "0.0.0.0", "224.0.0.1", "::", "64:ff9b::a9fe:a9fe"):
        names["maps.test"] = [address]
        with raises(KeyMapError, f"maps.test:{port}"):
            read_text(f"http://maps.test:{port}/map", policy=OURS)


def test_the_address_that_was_judged_is_the_one_that_is_asked(
    port: int,
    names: dict[str, list[str]],
    asked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name is looked up once, and what the socket says of its other end counts."""
    names["maps.test"] = ["127.0.0.1"]
    assert read_text(f"http://maps.test:{port}/map", policy=OURS) == LINES
    assert names["looked up"] == ["maps.test"]
    asked.clear()
    peers = []

    class Misled(socket.socket):
        def connect(self, address: Any) -> None:
            super().connect(("127.0.0.1", port))
            peers.append(self)

    names["maps.test"] = ["8.8.8.8"]
    monkeypatch.setattr(socket, "socket", Misled)
    with raises(KeyMapError, "127.0.0.1"):
        read_text(f"http://maps.test:{port}/map", policy=PUBLIC)
    assert not asked
    assert [peer.fileno() for peer in peers] == [-1]


@pytest.mark.parametrize(
    "target",
    [
        "http://other.example/map",
        "http://169.254.169.254/latest/meta-data",
        "https://127.0.0.1/map",
        "http://inside.test/map",
        "file:///etc/passwd",
        "ftp://maps.test/map",
        "//evil.example/map",
    ],
)
def test_each_hop_of_a_redirection_is_judged(
    target: str, port: int, names: dict[str, list[str]], asked: list[str]
) -> None:
    names["inside.test"] = ["10.0.0.1"]
    policy = FetchPolicy(hosts=("127.0.0.1:*", "inside.test"), allow_private=False)
    with pytest.raises(KeyMapError):
        read_text(f"http://127.0.0.1:{port}/to?{target}", policy=policy)
    assert not asked  # loopback itself was refused
    policy = FetchPolicy(hosts=(f"127.0.0.1:{port}", "maps.test"), allow_private=True)
    with pytest.raises(KeyMapError):
        read_text(f"http://127.0.0.1:{port}/to?{target}", policy=policy)
    assert len(asked) == 1
    assert read_text(f"http://127.0.0.1:{port}/to?/map", policy=policy) == LINES


def test_proxies_of_the_environment_are_not_asked(
    port: int, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    policy = FetchPolicy(hosts=("10.255.255.1:9",))
    with raises(KeyMapError, "10.255.255.1"):
        read_text("http://10.255.255.1:9/map", policy=policy)
    assert not asked


def test_a_key_map_has_a_size_that_the_policy_sets(port: int) -> None:
    policy = FetchPolicy(hosts=("127.0.0.1:*",), allow_private=True, bytes_max=len(LINES) - 1)
    with raises(KeyMapError, f"{len(LINES) - 1} bytes"):
        read_text(f"http://127.0.0.1:{port}/map", policy=policy)


def test_files_are_read_under_the_roots_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for each in (root / "state", root / ".dsort", outside):
        each.mkdir(parents=True)
        (each / "map").write_text(LINES)
    (root / "map").write_text(LINES)
    (root / "link").symlink_to(outside / "map")
    (root / "within").symlink_to(root / "map")
    os.mkfifo(root / "pipe")
    policy = FetchPolicy(roots=(str(root),), denied=(str(root / "state"),))
    for good in ("map", str(root / "map"), (root / "map").as_uri(), "within", "state/../map"):
        assert read_text(good, policy=policy) == LINES
    for bad in (
        outside / "map",
        "../outside/map",
        "link",
        "state/map",
        ".dsort/map",
        "/dev/zero",
        f"file://{root}/%2e%2e/outside/map",
    ):
        with raises(KeyMapError, Path(bad).name):
            read_text(str(bad), policy=policy)
    for odd in ("pipe", "nothing", "state/..", "a\0b"):
        with raises(KeyMapError, hint="ekm_file"):
            read_text(odd, policy=policy)
    with raises(KeyMapError):
        read_text("map", policy=FetchPolicy())
    lists = TextKind("list of keys", "transform.steps", "give the keys", TransformError)
    with raises(TransformError, "list of keys", hint="give the keys"):
        read_text("keys", lists, policy=FetchPolicy())


def test_a_link_that_is_put_there_after_the_look_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "root" / "map").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(os.path, "realpath", lambda path: str(path))  # as if it were a file still
    policy = FetchPolicy(roots=(str(tmp_path / "root"),))
    with raises(KeyMapError, str(tmp_path / "root" / "map")):
        read_text("map", policy=policy)


def test_the_job_is_held_to_the_policy_and_tells_no_token(port: int, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{port}/map?token=secret"
    fields = {"input_bck": "in", "ekm_file": url, "ekm_file_sep": ";", "output_shard_size": 1}
    spec = parse_spec(fields).spec
    with raises(KeyMapError, f"127.0.0.1:{port}"):
        load_keymap(spec, Tally(), fetch=FetchPolicy())
    with raises(
        KeyMapError, f"127.0.0.1:{port}", "cat\tone-%d", hint="ekm_malformed_line"
    ) as caught:
        load_keymap(spec, Tally(), fetch=OURS)
    assert "secret" not in str(caught.value)


def test_a_policy_travels_to_other_processes() -> None:
    policy = FetchPolicy(("/r",), ("/m/*",), ("/r/s",), ("a:*", "b"), True, 7)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert FetchPolicy.of(json.loads(json.dumps(policy.to_json()))) == policy


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", ""),
        ("2606:4700::1111", ""),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("10.0.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("198.18.0.1", "private"),
        ("fec0::1", "private"),
        ("64:ff9b:1::1", "private"),
        ("100.64.0.1", "shared"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("100.100.100.200", "reserved"),
        ("fd00:ec2::254", "reserved"),
        ("fd20:ce::254", "reserved"),
        ("2002:6464:64c8::1", "reserved"),
        ("168.63.129.16", "reserved"),
        ("192.0.0.192", "reserved"),
        ("255.255.255.255", "reserved"),
        ("2001:db8::1", "reserved"),
        ("4000::1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:8.8.8.8", ""),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::8.8.8.8", ""),
        ("2002:a00:1::", "private"),
        ("2002:808:808::", ""),
        ("2001:0:808:808::f5ff:fffe", "private"),  # the client of Teredo, inverted
        ("2001:0:a00:1::f7f7:f7f7", "private"),  # its server
        ("2606:4700::5efe:a9fe:a9fe", "link-local"),
        ("2606:4700::200:5efe:7f00:1", "loopback"),
    ],
)
def test_kinds_of_addresses(address: str, kind: str) -> None:
    assert address_kind(address) == kind


@pytest.mark.parametrize(
    ("glob", "host", "port", "is_allowed"),
    [
        ("data.example.com", "data.example.com", 443, True),
        ("data.example.com", "DATA.example.com.", 443, True),
        ("data.example.com", "data.example.com", 8443, False),
        ("data.example.com:8443", "data.example.com", 8443, True),
        ("data.example.com:8443", "data.example.com", 443, False),
        ("data.example.com:*", "data.example.com", 1, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evil-example.com", 443, False),
        ("[::1]:*", "::1", 80, True),
        ("2606:4700::1111", "2606:4700::1111", 443, True),
        ("", "x", 443, False),
    ],
)
def test_patterns_of_hosts(glob: str, host: str, port: int, is_allowed: bool) -> None:
    assert FetchPolicy(hosts=(glob,)).allows_host("https", host, port) is is_allowed


@pytest.fixture
def tls_port(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a web server on 127.0.0.1 that speaks TLS, and is trusted."""
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = redirecting(asked)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server.server_port


def test_a_certificate_has_to_be_the_hosts(
    tls_port: int, names: dict[str, list[str]], asked: list[str]
) -> None:
    names["maps.test"] = ["127.0.0.1"]
    policy = FetchPolicy(hosts=("maps.test:*", "127.0.0.1:*"), allow_private=True)
    assert read_text(f"https://127.0.0.1:{tls_port}/map", policy=policy) == LINES
    asked.clear()
    with raises(KeyMapError, "https://maps.test", "SSL"):
        read_text(f"https://maps.test:{tls_port}/map", policy=policy)
    with raises(KeyMapError, f"127.0.0.1:{tls_port}"):
        read_text(f"https://127.0.0.1:{tls_port}/map", policy=FetchPolicy(hosts=("*:*",)))
    assert not asked
