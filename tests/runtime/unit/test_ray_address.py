"""Addresses of Ray: what is one, what answers there, and what a user is told if Ray cannot be had.
All of it without Ray, and at once: Ray itself would try for minutes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from dsort.errors import DsortError, InputError, SpecError, WorkerLostError
from tests.support.internals import check_form, check_listener, explain, listed
from tests.support.internals import cluster as ray_address

HTTP2_SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100])
GOOD = [
    "auto",
    "localhost:6379",
    "10.0.0.7:6379",
    "ray-head.svc:1",
    "ray://head:10001",
    "[::1]:65535",
]
BAD = [
    "",
    "local",
    "head",
    "head:",
    "head:0",
    "head:65536",
    "http://head:1",
    ":6379",
    "a b:1",
    "auto:",
]


@contextlib.contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """The address of something that says ``answer`` to whoever comes; None: nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(ConnectionResetError):
                if answer is not None:
                    connection.sendall(answer)
                connection.recv(4096)
                while connection.recv(4096):  # until it is left
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("address", GOOD)
def test_addresses_of_all_forms_are_taken(address: str) -> None:
    check_form(address)


@pytest.mark.parametrize("address", BAD)
def test_what_is_no_address_is_reported_with_the_forms(address: str) -> None:
    with pytest.raises(SpecError, match="--ray-address") as caught:
        check_form(address)
    assert "HOST:PORT" in caught.value.hint


def test_a_server_of_http2_is_taken_for_a_cluster() -> None:
    with listener(HTTP2_SETTINGS) as address:
        check_listener(address)
    with listener(HTTP2_SETTINGS) as address:
        check_listener(f"ray://{address}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"-ERR\r\n", b"\0"])
def test_another_server_is_no_cluster(answer: bytes) -> None:
    with (
        listener(answer) as address,
        pytest.raises(WorkerLostError, match=f"what answers at {address} is no Ray"),
    ):
        check_listener(address)


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "ANSWER_SECONDS_MAX", 0.01)
    with (
        listener(None) as address,
        pytest.raises(WorkerLostError, match=f"no Ray cluster answers at {address}: timed out"),
    ):
        check_listener(address)


def test_where_nothing_listens_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(WorkerLostError, match=f"{address}: Connection refused") as caught:
        check_listener(address)
    assert "6379" in caught.value.hint
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(WorkerLostError, match=address):
        check_listener("auto")


def test_what_auto_means_is_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    check_listener("auto")


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


VERSIONS = (
    "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.10.1\n"
    "This process on node 10.0.0.7 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
)


@pytest.mark.parametrize(
    ("error", "address", "message", "hint"),
    [
        (RuntimeError(VERSIONS), "h:1", "h:1 has other versions.*Ray: 2.9.0 Python", "versions"),
        (
            chained(ConnectionError("Failed to connect"), RuntimeError("InvalidAuthToken: wrong")),
            "h:1",
            "h:1 wants a token",
            "RAY_AUTH_MODE=token",
        ),
        (ValueError("requires pip package `ray[client]`"), "ray://h:1", "is not installed", "pip"),
        (ConnectionError("Could not find any"), "auto", "no Ray cluster was found on this", "PORT"),
        (
            ConnectionError("Failed\nto connect"),
            "h:1",
            "no Ray cluster can be joined at h:1",
            "6379",
        ),
        (TimeoutError("no answer in 9 seconds"), "h:1", "at h:1: no answer in 9 seconds", "PORT"),
        (
            RuntimeError("\n  raylet died \n\nstack"),
            None,
            r"on this machine: raylet died(\nhint|$)",
            "--ray",
        ),
        (RuntimeError(), None, r"on this machine: RuntimeError(\nhint|$)", "--ray"),
    ],
)
def test_why_ray_cannot_be_had_is_reported_in_one_line(
    error: Exception, address: str | None, message: str, hint: str
) -> None:
    explained = explain(error, address)
    with pytest.raises(WorkerLostError, match=message):
        raise explained
    assert hint in explained.hint
    assert "\n" not in explained.message


def test_an_error_of_ours_needs_no_explanation() -> None:
    error: DsortError = InputError("as it is")
    assert explain(error, "h:1") is error


def test_of_many_names_the_first_are_shown() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
