"""Blocks of spill go straight from node to node: whole and byte for byte, to processes of
the same job alone, and from its spill files alone. What goes wrong is an error within a bound."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from msgspec.structs import replace

from dsort.errors import StorageError
from tests.support.certificates import make_certificate
from tests.support.internals import (
    BATCH_BYTES,
    BLOCK_BYTES,
    FAILURE,
    LENGTH,
    BlockClient,
    BlockError,
    BlockKey,
    BlockPlace,
    BlockServer,
    ForgedTicketError,
    NoBlocksError,
    Part,
    Payload,
    Scratch,
    SpillBlock,
    SpillWriter,
    TicketError,
    UnreachableError,
    block_server,
    exchange,
)
from tests.support.ports import free_port
from tests.support.refusals import raises
from tests.support.service_process import await_that

NODE = "token@node"
WORKER, PARTITION = 3, 1
SPILLED = np.random.default_rng(7).bytes(3 * BATCH_BYTES)
KEY = BlockKey.new()
WHOLE = SpillBlock(PARTITION, (WORKER,), (0,), (len(SPILLED),))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    with Scratch(tmp_path_factory.mktemp("node") / "scratch", make=True) as scratch:
        writer = SpillWriter(scratch, WORKER, 2, to_disk=False)
        writer.append(PARTITION, [SPILLED], len(SPILLED))
        writer.close()
        scratch.write("secret", b"of the job, and no spill")
        yield scratch


@pytest.fixture
def serve(scratch: Scratch) -> Iterator[Callable[..., BlockServer]]:
    begun: list[BlockServer] = []

    def serve(
        kind: type[BlockServer] = BlockServer, place: BlockPlace | None = None
    ) -> BlockServer:
        begun.append(kind(scratch, NODE, KEY, place or BlockPlace(), "127.0.0.1"))
        return begun[-1]

    yield serve
    for server in begun:
        server.close()


@pytest.fixture
def client() -> Iterator[BlockClient]:
    client = BlockClient(KEY)
    yield client
    client.close()


def bytes_of(coming: Future[Payload]) -> bytes:
    return b"".join(piece.tobytes() for piece in coming.result())


# --- what comes ---------------------------------------------------------------------------------


def test_a_block_is_the_ranges_one_after_the_other(
    serve: Callable[..., BlockServer], client: BlockClient
) -> None:
    place = serve().location
    ranges = [(5, 10), (BATCH_BYTES - 3, BATCH_BYTES + 6), (0, 1), (len(SPILLED) - 2, 2)]
    block = SpillBlock(
        PARTITION, (WORKER,) * 4, tuple(at for at, _ in ranges), tuple(n for _, n in ranges)
    )
    expected = b"".join(SPILLED[at : at + size] for at, size in ranges)
    several = [client.begin(place, NODE, block) for _ in range(9)]
    assert [bytes_of(each) for each in several] == [expected] * 9
    assert bytes_of(client.begin(place, NODE, WHOLE)) == SPILLED


def test_a_server_listens_on_one_address_and_on_a_port_of_its_range(
    serve: Callable[..., BlockServer], client: BlockClient
) -> None:
    port = free_port()
    with socket.socket() as held:
        held.bind(("127.0.0.1", port))
        with raises(NoBlocksError, f"{port} to {port}"):
            serve(place=BlockPlace((port, port)))
    place = BlockPlace((port, port))
    server = serve(place=place)
    assert server.location == f"tcp://127.0.0.1:{port}"
    with raises(NoBlocksError, "127.0.0.1", f"{port} to {port}"):
        serve(place=place)
    with pytest.raises(OSError), socket.socket() as other:
        other.connect(("127.0.0.2", port))
    assert bytes_of(client.begin(server.location, NODE, WHOLE)) == SPILLED


def test_the_address_of_a_node_is_the_one_in_the_network_that_is_set() -> None:
    assert BlockPlace().address("192.0.2.7") == "192.0.2.7"
    assert BlockPlace(network="127.0.0.0/8").address("192.0.2.7") == "127.0.0.1"
    with raises(NoBlocksError, "203.0.113.0/24"):
        BlockPlace(network="203.0.113.0/24").address("127.0.0.1")


def test_where_ray_has_certificates_both_ends_show_them(
    serve: Callable[..., BlockServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(certificate))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(key))
    with raises(NoBlocksError, "RAY_TLS_CA_CERT"):
        serve()
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(certificate))
    server, known = serve(), BlockClient(KEY)
    place = server.location
    assert place.startswith("tls://")
    assert bytes_of(known.begin(place, NODE, WHOLE)) == SPILLED
    monkeypatch.setenv("RAY_USE_TLS", "0")
    stranger = BlockClient(KEY)
    for where in (place, place.replace("tls", "tcp")):
        with pytest.raises(UnreachableError):
            stranger.begin(where, NODE, WHOLE).result()
    stranger.close()
    ((_, kept),) = known._idle
    server.close()
    kept.settimeout(30)
    with contextlib.suppress(OSError):  # TLS may say that it was cut
        assert kept.recv(1) == b""
    known.close()


# --- what is refused ----------------------------------------------------------------------------


def test_who_has_not_the_key_of_the_job_gets_nothing(serve: Callable[..., BlockServer]) -> None:
    stranger = BlockClient(BlockKey.new())
    with raises(UnreachableError):
        stranger.begin(serve().location, NODE, WHOLE).result()
    stranger.close()


def test_the_key_shows_in_no_text_and_tells_a_ticket_from_a_changed_one() -> None:
    assert KEY.secret.hex() not in repr(KEY) + str(KEY)
    assert str(KEY.secret) not in f"{KEY!r} {KEY}"
    ticket = KEY.ticket(NODE, WHOLE)
    assert KEY.secret not in ticket
    assert KEY.open(ticket) == (NODE, WHOLE)
    assert KEY.ticket(NODE, WHOLE) != ticket
    for at in (0, 31, 32, len(ticket) - 2):
        changed = bytearray(ticket)
        changed[at] ^= 1
        with pytest.raises(ForgedTicketError):
            KEY.open(bytes(changed))
    assert KEY.proves(KEY.proof(ticket), ticket)
    assert not KEY.proves(KEY.proof(KEY.ticket(NODE, WHOLE)), ticket)


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"node": NODE},
        ["n", NODE, "../secret", [3], [0], [1]],
        ["n", NODE, 1, ["secret"], [0], [1]],
        ["n", NODE, 1, [3], [-1], [1]],
        ["n", NODE, 1, [3], [0], [True]],
        ["n", NODE, 1, [3], [0.5], [1]],
        ["n", NODE, 1, [3], [1 << 63], [1]],
        ["n", NODE, 1, [3, 3], [0], [1]],
        ["n", NODE, 1, [3], [0], [BLOCK_BYTES + 1]],
        ["n", NODE, 1, [], [], []],
    ],
    ids=str,
)
def test_a_ticket_of_the_job_that_no_worker_makes_is_refused(said: object) -> None:
    text = orjson.dumps(said)
    with pytest.raises(TicketError) as caught:
        KEY.open(KEY._mac(b"dsort asks ", text) + text)
    assert not isinstance(caught.value, ForgedTicketError)


def test_ranges_outside_of_the_files_and_other_files_are_refused(
    serve: Callable[..., BlockServer], client: BlockClient, scratch: Scratch
) -> None:
    place = serve().location
    for block in [
        SpillBlock(PARTITION, (WORKER,), (len(SPILLED),), (1,)),
        SpillBlock(PARTITION, (8,), (0,), (1,)),
        SpillBlock(7, (WORKER,), (0,), (1,)),
    ]:
        with raises(BlockError):  # it is no UnreachableError: Ray is asked, and says why
            client.begin(place, NODE, block).result()
    with raises(BlockError):
        client.begin(place, "another@node", WHOLE).result()
    (scratch.path / f"spill-9-{PARTITION}").symlink_to("secret")
    with pytest.raises(BlockError):
        client.begin(place, NODE, SpillBlock(PARTITION, (9,), (0,), (1,))).result()


# --- what goes wrong ----------------------------------------------------------------------------


class Stalling(BlockServer):
    """Sends one chunk, and then nothing until it is closed."""

    sent = 0

    def _send(self, *arguments: Any) -> None:
        if self.sent:
            self.on = threading.Event()
            self.on.wait()
        self.sent += 1
        super()._send(*arguments)

    def close(self) -> None:
        self.on.set()
        super().close()


def test_a_stream_that_stands_still_ends_in_time(
    serve: Callable[..., BlockServer], client: BlockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "CALL_S_MAX", 1.0)
    server = serve(Stalling)
    with raises(UnreachableError, "1 s"):
        client.begin(server.location, NODE, WHOLE).result(timeout=30)
    assert isinstance(server, Stalling)
    assert server.sent == 1


class Short(BlockServer):
    """Leaves out the last chunk."""

    def chunks(self, block: SpillBlock) -> Iterator[list[Part]]:
        yield from list(super().chunks(block))[:-1]


class Long(BlockServer):
    """Repeats the last one."""

    def chunks(self, block: SpillBlock) -> Iterator[list[Part]]:
        found = list(super().chunks(block))
        yield from [*found, found[-1]]


class Strange(BlockServer):
    """Is of another job, and says yes to everything."""

    def proof(self, ticket: bytes) -> bytes:
        return BlockKey.new().proof(ticket)


class Failing(BlockServer):
    """Cannot read what it has begun to send."""

    sent = 0

    def _send(self, *arguments: Any) -> None:
        self.sent += 1
        if self.sent > 1:
            raise StorageError("cannot read it: Input/output error\n\x1b[31m")
        super()._send(*arguments)


class Shrinking(BlockServer):
    """Its file becomes shorter than it was when the ticket came."""

    def open(self, ticket: bytes) -> SpillBlock:
        block = super().open(ticket)
        return replace(block, starts=(BATCH_BYTES + 5,))


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Short, f"{2 * BATCH_BYTES:,} of {3 * BATCH_BYTES:,} bytes"),
        (Long, ""),
        (Strange, ""),
        (Failing, "Input/output error\ufffd\ufffd[31m"),
        (Shrinking, f"{BATCH_BYTES:,} of {3 * BATCH_BYTES:,} bytes"),
    ],
)
def test_what_is_not_the_whole_block_is_no_answer(
    serve: Callable[..., BlockServer], client: BlockClient, kind: type[BlockServer], named: str
) -> None:
    server = serve(kind)
    with pytest.raises(BlockError) as caught:
        client.begin(server.location, NODE, WHOLE).result()
    assert named in str(caught.value)


def test_a_server_that_is_gone_is_unreachable_and_another_one_is_asked_anew(
    serve: Callable[..., BlockServer], client: BlockClient
) -> None:
    gone = serve()
    assert bytes_of(client.begin(gone.location, NODE, WHOLE)) == SPILLED
    gone.close()
    with pytest.raises(UnreachableError):
        client.begin(gone.location, NODE, WHOLE).result()
    assert bytes_of(client.begin(serve().location, NODE, WHOLE)) == SPILLED


def test_a_connection_that_was_kept_and_has_ended_is_made_anew(
    serve: Callable[..., BlockServer], client: BlockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "IDLE_S_MAX", 0.01)
    place = serve().location
    for _ in range(3):
        assert bytes_of(client.begin(place, NODE, WHOLE)) == SPILLED
        ((_, kept),) = client._idle
        kept.settimeout(30)
        assert kept.recv(1, socket.MSG_PEEK) == b"", "the server has ended it"


def test_who_says_nothing_or_nonsense_is_cut_off_and_others_are_served(
    serve: Callable[..., BlockServer], client: BlockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_server, "CONNECTIONS_MAX", 3)
    server = serve()
    usual_s = block_server.HELLO_S_MAX
    monkeypatch.setattr(block_server, "HELLO_S_MAX", 0.05)
    port = int(server.location.rpartition(":")[2])
    for said in (b"", b"\1\0\0\0", LENGTH.pack(FAILURE), b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
            stranger.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b"", said
    await_that(lambda: not server._connections)
    monkeypatch.setattr(block_server, "HELLO_S_MAX", usual_s)  # a busy machine may make us late
    assert bytes_of(client.begin(server.location, NODE, WHOLE)) == SPILLED
    held = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(3)]
    try:
        with contextlib.suppress(ConnectionResetError):
            assert held[-1].recv(1) == b"", "one too many"
    finally:
        for each in held:
            each.close()


def test_what_no_server_of_blocks_says_is_unreachable(client: BlockClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as strange:
        place = f"tcp://127.0.0.1:{strange.getsockname()[1]}"

        def answer(said: bytes) -> None:
            taken, _ = strange.accept()
            with taken:
                taken.recv(1 << 16)
                taken.sendall(said)

        for said in (b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3):
            thread = threading.Thread(target=answer, args=(said,))
            thread.start()
            with pytest.raises(UnreachableError):
                client.begin(place, NODE, WHOLE).result(timeout=30)
            thread.join()
    for place in ("", "tcp://", "http://127.0.0.1:80", "tcp://127.0.0.1:x"):
        with pytest.raises(UnreachableError):
            client.begin(place, NODE, WHOLE).result(timeout=30)
