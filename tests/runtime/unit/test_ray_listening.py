"""Where a Ray listens: which addresses others reach, and what a user is told."""

from __future__ import annotations

import socket

import psutil
import pytest

from dsort.errors import WorkerLostError
from tests.support.internals import check_loopback, is_only_on_loopback, listeners, listening_words


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "::1", "127.3.2.1"])
def test_loopback_is_for_this_machine(address: str) -> None:
    check_loopback([(address, 6379)])


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "::", "10.0.0.5", "::ffff:10.0.0.5", "fe80::1%eth0"]
)
def test_all_else_is_refused_and_named(address: str) -> None:
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
