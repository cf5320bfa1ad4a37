"""Between network namespaces, over a link with delay and loss: blocks come whole, and a link that
is cut ends within its time. By root alone, and where the kernel has namespaces and TUN devices."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.internals import (
    BlockClient,
    BlockError,
    BlockKey,
    BlockPlace,
    BlockServer,
    Scratch,
    SpillBlock,
    SpillWriter,
    exchange,
)
from tests.support.shaped_links import Link, LinkError, shaped_links

pytestmark = pytest.mark.exhaustive

NODE, KEY = "token@node", BlockKey(bytes(32))
DATA = bytes(range(256)) * (16 << 12)


@pytest.fixture
def link() -> Iterator[Link]:
    try:
        with shaped_links(rate_mbit=1000, delay_ms=5, loss=0.001) as link:
            yield link
    except LinkError as none:
        pytest.skip(f"there are no shaped links here: {none}")


def serve(link: Link, scratch: Path, pipe: Any) -> None:
    link.near.enter()
    with Scratch(scratch, make=True) as opened:
        writer = SpillWriter(opened, 0, 1, to_disk=False)
        writer.append(0, [DATA], len(DATA))
        writer.close()
        server = BlockServer(opened, NODE, KEY, BlockPlace(), link.near.address)
        pipe.send(server.location)
        pipe.recv()


def take(link: Link, location: str, pipe: Any) -> None:
    """Take a block, and one more once the link is cut."""
    link.far.enter()
    exchange.CALL_S_MAX = 3.0
    client, block = BlockClient(KEY), SpillBlock(0, (0,), (0,), (len(DATA),))
    found = client.begin(location, NODE, block).result()
    pipe.send(b"".join(piece.tobytes() for piece in found) == DATA)
    pipe.recv()
    try:
        client.begin(location, NODE, block).result()
    except BlockError as error:
        pipe.send(type(error).__name__)


def test_a_lossy_link_brings_blocks_whole_and_a_cut_one_ends_in_time(
    link: Link, tmp_path: Path
) -> None:
    context = get_context("spawn")
    (ours, theirs), (other, taking) = context.Pipe(), context.Pipe()
    server = context.Process(target=serve, args=(link, tmp_path / "scratch", theirs))
    server.start()
    theirs.close()  # so that its death is heard
    taker = context.Process(target=take, args=(link, ours.recv(), taking))
    taker.start()
    taking.close()
    try:
        assert other.recv() is True
        psutil.Process(link.process).suspend()
        other.send("go on")
        assert other.poll(30)
        assert other.recv() == "UnreachableError"
    finally:
        for each in (server, taker):
            each.kill()
            each.join()
