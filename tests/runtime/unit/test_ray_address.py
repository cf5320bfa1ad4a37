"""Addresses and versions of Ray: which are taken, what answers and listens there, and what a user
is shown if Ray cannot be had. All of it without Ray, and at once."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement

from dsort.errors import DsortError, InputError, SpecError, WorkerLostError
from tests.support.cluster_files import project
from tests.support.commands import ROOT, CommandLine
from tests.support.internals import (
    RAY_VERSION_MIN,
    check_form,
    check_listener,
    check_loopback,
    check_ray_version,
    explain,
    is_only_on_loopback,
    listed,
    listeners,
    listening_words,
)
from tests.support.internals import cluster as ray_address
from tests.support.refusals import raises

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
    """The address of something that says ``answer`` to each connection; None: nothing."""
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
    with raises(SpecError, hint="HOST:PORT", paths=["--ray-address"]):
        check_form(address)


def test_a_server_of_http2_is_taken_for_a_cluster() -> None:
    with listener(HTTP2_SETTINGS) as address:
        check_listener(address)
    with listener(HTTP2_SETTINGS) as address:
        check_listener(f"ray://{address}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"-ERR\r\n", b"\0"])
def test_another_server_is_no_cluster(answer: bytes) -> None:
    with (
        listener(answer) as address,
        raises(WorkerLostError, address),
    ):
        check_listener(address)


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "ANSWER_SECONDS_MAX", 0.01)
    with (
        listener(None) as address,
        raises(WorkerLostError, address),
    ):
        check_listener(address)


def test_where_nothing_listens_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with raises(WorkerLostError, address, hint="6379"):
        check_listener(address)
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
    ("error", "address", "named", "hint"),
    [
        (RuntimeError(VERSIONS), "h:1", "Ray: 2.9.0 Python", "versions"),
        (
            chained(ConnectionError("Failed to connect"), RuntimeError("InvalidAuthToken: wrong")),
            "h:1",
            "h:1",
            "RAY_AUTH_MODE=token",
        ),
        (ValueError("requires pip package `ray[client]`"), "ray://h:1", "", "pip"),
        (ConnectionError("Could not find any"), "auto", "", "PORT"),
        (ConnectionError("Failed\nto connect"), "h:1", "h:1", "6379"),
        (TimeoutError("no answer in 9 seconds"), "h:1", "h:1: no answer in 9 seconds", "PORT"),
        (RuntimeError("\n  raylet died \n\nstack"), None, "raylet died", "--ray"),
        (RuntimeError(), None, "RuntimeError", "--ray"),
    ],
)
def test_why_ray_cannot_be_had_is_reported_in_one_line(
    error: Exception, address: str | None, named: str, hint: str
) -> None:
    explained = explain(error, address)
    assert type(explained) is WorkerLostError
    assert named in explained.message
    assert "stack" not in explained.message
    assert hint in explained.hint
    assert "\n" not in explained.message


def test_an_error_of_dsort_is_passed_on_unchanged() -> None:
    error: DsortError = InputError("as it is")
    assert explain(error, "h:1") is error


def test_of_many_names_the_first_are_shown() -> None:
    assert listed(["a", "b", "c"]) == "a, b, c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "::1", "127.3.2.1"])
def test_loopback_is_for_this_machine(address: str) -> None:
    check_loopback([(address, 6379)])


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "10.0.0.5", "::ffff:10.0.0.5", "fe80::1%eth0"]
)
def test_an_address_that_other_machines_reach_is_refused_and_named(address: str) -> None:
    with pytest.raises(WorkerLostError, match="6380") as caught:
        check_loopback([("127.0.0.1", 6379), (address, 6380)])
    assert "6379" not in caught.value.message


def test_a_user_sees_each_address_once() -> None:
    found = [("127.0.0.1", 9), ("::ffff:127.0.0.1", 7), ("::1", 8), ("127.0.0.1", 9)]
    assert listening_words(found) == "127.0.0.1 (ports 7, 9); ::1 (ports 8)"


def test_what_a_process_listens_on_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname() in listeners([psutil.Process()])
    assert server.fileno() == -1


def test_an_address_of_loopback_that_others_reach_as_well_is_left_to_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_only_on_loopback(f"127.0.0.1:{port}", "127.0.0.2")
        assert is_only_on_loopback(f"localhost:{port}", "127.0.0.2")
        assert not is_only_on_loopback(f"127.0.0.1:{port}", "127.0.0.1")
        assert not is_only_on_loopback(f"10.0.0.5:{port}", "127.0.0.2")
        assert not is_only_on_loopback("auto", "127.0.0.2")


OLD_RAY = """
import sys
import ray
from dsort.cli.main import main

def never(*given, **named):
    raise AssertionError("an old Ray was used")

ray.__version__, ray.init = sys.argv.pop(1), never
sys.exit(main())
"""


@pytest.mark.parametrize("found", ["2.40.0", "2.49.2", "2.51.2", "2.55.1", "1.99", "nightly"])
def test_a_ray_without_tokens_is_refused(found: str) -> None:
    with raises(WorkerLostError, f"Ray {found} ", hint="pip install 'ray>=2.56'"):
        check_ray_version(found)


@pytest.mark.parametrize("found", ["2.56.0", "2.60.0", "2.100.1", "3.0.0.dev0", ""])
def test_a_ray_with_tokens_is_taken(found: str) -> None:
    check_ray_version(found)


def test_what_is_checked_is_what_is_required() -> None:
    required = {each.name: each for each in map(Requirement, project()["project"]["dependencies"])}
    least = ".".join(map(str, RAY_VERSION_MIN))
    assert str(required["ray"].specifier) == f">={least}"


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("options", [["--ray"], ["--ray-address", "127.0.0.1:1"]], ids=str)
def test_a_ray_that_is_too_old_is_neither_started_nor_joined(
    tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.tar").write_bytes(bytes(10240))
    spec = '{"input_bck": "images", "output_bck": "out", "output_format": "o-%d", ' \
        '"output_shard_size": "1MB"}'  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", OLD_RAY, "2.49.2", "start", "-f", spec, *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "error: Ray 2.49.2 is too old" in ended.stderr
    assert "hint: pip install 'ray>=2.56'" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.glob("dsort-ray-*")) == []


def test_a_service_does_not_start_with_a_ray_that_is_too_old(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsort.runtime.ray.cluster.version", lambda name: "2.49.2")
    state = str(tmp_path / "state")
    ended = cli("serve", "--no-auth", "--ray", "--state-dir", state, "--port", "0")
    assert ended.code == 5
    assert "Ray 2.49.2 is too old" in ended.err
