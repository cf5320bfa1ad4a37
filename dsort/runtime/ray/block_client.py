"""Blocks of spill of other nodes, straight from there: the side that asks for them.

Each block is asked for on a connection of its own as long as it lasts, so two blocks that come at
the same time do not wait for each other where packets are lost. Each has a time by which all of its
bytes came, or it failed. What to do then is for whoever asked (``exchange``).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dsort.log_lines import logger_of
from dsort.runtime.ray.block_stream import (
    FAILURE,
    FORGED,
    LENGTH,
    REASON_BYTES_MAX,
    Certificates,
    CutError,
    connected,
    fill,
)
from dsort.runtime.ray.block_tickets import BlockKey
from dsort.scratch.spill import BLOCKS_IN_FLIGHT_MAX, Payload, SpillBlock

CALL_S_MAX = 60.0
"""Of one block: less than 280 KB/s is taken for a stream that stands still. Ray, which is asked
next, waits five times as long."""
THREADS = 2 * BLOCKS_IN_FLIGHT_MAX
"""One partition is read while the first blocks of the next one come."""
IDLE_MAX = 8
"""So many connections are kept for the next blocks; there may be hundreds of nodes."""

log = logger_of("runtime")


class BlockError(Exception):
    """A block did not come, and why."""


class UnreachableError(BlockError):
    """Whoever should have sent it cannot be reached, stopped in the middle, or is another one: the
    next block would not come either."""


class BlockClient:
    """Fetches blocks in threads. ``NoBlocksError`` where this process can have none."""

    def __init__(self, key: BlockKey) -> None:
        self._key = key
        certificates = Certificates.of_ray()
        self._context = None if certificates is None else certificates.context(listens=False)
        self._threads = ThreadPoolExecutor(THREADS, "dsort-blocks")
        self._lock = threading.Lock()
        self._idle: deque[tuple[str, socket.socket]] = deque()

    def begin(self, location: str, scratch_node: str, block: SpillBlock) -> Future[Payload]:
        """Ask the server at ``location`` for a block. The result: all of its bytes, or
        ``BlockError``."""
        return self._threads.submit(self._fetch, location, scratch_node, block)

    def close(self) -> None:
        """End all connections; who waits for a block gets ``BlockError``."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            while self._idle:
                self._idle.popleft()[1].close()

    def _fetch(self, location: str, scratch_node: str, block: SpillBlock) -> Payload:
        ticket = self._key.ticket(scratch_node, block)
        end_s = time.monotonic() + CALL_S_MAX
        try:
            connection = self._asked(location, ticket, end_s)
            with contextlib.ExitStack() as closed:
                closed.callback(connection.close)
                found = _block(connection, sum(block.sizes), end_s)
                closed.pop_all()  # it is at the end of an answer: kept for the next block
        except TimeoutError:
            raise UnreachableError(f"no block came within {CALL_S_MAX:g} s") from None
        except (OSError, ValueError) as error:
            raise UnreachableError(_words(error)) from None
        self._keep(location, connection)
        return [found]

    def _asked(self, location: str, ticket: bytes, end_s: float) -> socket.socket:
        """A connection on which the server has begun to answer, and has proved who it is."""
        proof = bytearray(len(FORGED))
        question = LENGTH.pack(len(ticket)) + ticket
        while True:
            kept = self._taken(location)
            if kept is None:
                log.debug("a connection to %s is made", location)
            connection = kept or connected(location, self._context, end_s)
            try:
                connection.settimeout(max(end_s - time.monotonic(), 0.001))
                connection.sendall(question)
                fill(connection, memoryview(proof), end_s)
            except ConnectionError:
                connection.close()
                if kept is None:
                    raise
                continue  # the server has closed it since
            except BaseException:
                connection.close()
                raise
            if self._key.proves(bytes(proof), ticket):
                return connection
            connection.close()
            if proof == FORGED:
                raise UnreachableError("a ticket is refused: it was not signed with this job's key")
            raise UnreachableError("what answers there is not of this job")

    def _taken(self, location: str) -> socket.socket | None:
        with self._lock:
            for at, (where, connection) in enumerate(self._idle):
                if where == location:
                    del self._idle[at]
                    return connection
        return None

    def _keep(self, location: str, connection: socket.socket) -> None:
        with self._lock:
            self._idle.append((location, connection))
            oldest = self._idle.popleft()[1] if len(self._idle) > IDLE_MAX else None
        if oldest is not None:
            oldest.close()


def _block(connection: socket.socket, wanted_bytes: int, end_s: float) -> NDArray[np.uint8]:
    """All bytes of a block."""
    block = np.empty(wanted_bytes, np.uint8)
    view, size_bytes, length = memoryview(block.data), 0, bytearray(LENGTH.size)
    sent = f"of {wanted_bytes:,} bytes"
    try:
        while True:
            fill(connection, memoryview(length), end_s)
            (chunk_bytes,) = LENGTH.unpack(length)
            if chunk_bytes >= FAILURE:
                raise BlockError(_reason(connection, chunk_bytes - FAILURE, end_s))
            if chunk_bytes > wanted_bytes - size_bytes:
                raise UnreachableError("it sent other bytes than were asked for")
            if not chunk_bytes:
                break
            fill(connection, view[size_bytes : size_bytes + chunk_bytes], end_s)
            size_bytes += chunk_bytes
    except CutError:
        raise UnreachableError(f"the connection ended behind {size_bytes:,} {sent}") from None
    if size_bytes != wanted_bytes:
        raise UnreachableError(f"it sent {size_bytes:,} {sent}")
    return block


def _reason(connection: socket.socket, length: int, end_s: float) -> str:
    if length > REASON_BYTES_MAX:
        raise UnreachableError("it sent other bytes than were asked for")
    text = bytearray(length)
    fill(connection, memoryview(text), end_s)
    said = bytes(text).decode("utf-8", "replace")
    return "".join(each if each.isprintable() else "\ufffd" for each in said)


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
