"""What keeps a service from starting: what is not safe, and what somebody else has."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from dsort.errors import SpecError, StorageError
from dsort.service.server import run_service
from tests.support.service_here import config_for


def refusal(tmp_path: Path, kind: type[Exception], **more: object) -> str:
    said: list[str] = []
    (tmp_path / "state").mkdir(exist_ok=True)
    with pytest.raises(kind) as caught:
        run_service(config_for(tmp_path, **{"port": 0, **more}), say=said.append)
    assert not [line for line in said if "serves" in line]
    return str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "dsort.example", "::"])
def test_without_tokens_only_this_machine_is_served(tmp_path: Path, host: str) -> None:
    assert host in refusal(tmp_path, SpecError, host=host, no_auth=True)


def test_other_addresses_want_a_token_first(tmp_path: Path) -> None:
    message = refusal(tmp_path, SpecError, host="0.0.0.0", no_auth=False, insecure=True)
    assert "no token yet" in message


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "dsort.example", "::"])
def test_tokens_are_not_sent_in_the_clear_by_mistake(tmp_path: Path, host: str) -> None:
    (tmp_path / "state").mkdir()
    config = config_for(tmp_path, port=0, host=host, no_auth=False)
    with pytest.raises(SpecError, match="without TLS") as caught:
        run_service(config, say=lambda text: None)
    assert "--insecure" in caught.value.hint
    assert "--ssl-certfile" in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_certificate_wants_its_key(tmp_path: Path) -> None:
    certificate = tmp_path / "cert.pem"
    assert "--ssl-keyfile" in refusal(tmp_path, SpecError, ssl_certfile=certificate)


@pytest.mark.parametrize("host", ["https://hooks.example.com/", "hooks.example.com:", "me@host"])
def test_what_names_no_host_is_none_for_webhooks(tmp_path: Path, host: str) -> None:
    assert host in refusal(tmp_path, SpecError, webhook_allow_hosts=(host,))


def test_the_data_root_has_to_be_there(tmp_path: Path) -> None:
    assert "no directory" in refusal(tmp_path, SpecError, root=tmp_path / "nowhere")


def test_an_address_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refusal(tmp_path, StorageError, port=port)


def test_a_state_directory_has_one_service(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another service" in refusal(tmp_path, StorageError)


def test_answers_are_not_held_back_for_more_to_send(tmp_path: Path) -> None:
    from dsort.service.server import _socket

    with _socket(config_for(tmp_path, port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # what asyncio looks at, for TCP_NODELAY


def test_connections_of_clients_that_have_disappeared_end(tmp_path: Path) -> None:
    from dsort.service.server import _socket

    with (
        _socket(config_for(tmp_path, port=0)) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        after_s, each_s, count = (accepted.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        assert after_s + each_s * count <= 120


def test_a_service_that_has_ended_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    loggers = [logging.getLogger(name) for name in ("", "dsort")]
    before = [([*each.handlers], each.level) for each in loggers]
    refusal(tmp_path, SpecError, host="0.0.0.0", no_auth=False, insecure=True)
    assert [([*each.handlers], each.level) for each in loggers] == before
