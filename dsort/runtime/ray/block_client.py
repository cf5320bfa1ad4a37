"""Blocks of spill of other nodes, by Arrow Flight: the side that asks for them.

Each block is a call of its own, on a connection of its own as long as it lasts: so two blocks that
come at the same time do not wait for each other where packets are lost. A call has an end, by which
it has brought all bytes or failed. What to do then is for whoever asked (``exchange``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from dsort.runtime.ray.block_server import PROOF, Certificates, NoBlocksError
from dsort.runtime.ray.block_tickets import BlockKey
from dsort.scratch.spill import BLOCK_BYTES, BLOCKS_IN_FLIGHT_MAX, Payload, SpillBlock

__all__ = ["BlockClient", "BlockError", "UnreachableError"]

CALL_S_MAX = 60.0
"""Of one block: less than 280 KB/s is taken for a stream that stands still. Ray, which is asked
next, waits five times as long."""
SILENCE_S_MAX = 20
"""A connection on which nothing came for so long is asked whether it is there, and given half as
long to answer: a machine that lost its power ends no call."""
THREADS = 2 * BLOCKS_IN_FLIGHT_MAX
"""One partition is read while the first blocks of the next one come."""
IDLE_MAX = 8
"""So many connections are kept for the next blocks; there may be hundreds of nodes."""
MESSAGE_BYTES_MAX = BLOCK_BYTES + (1 << 20)


class BlockError(Exception):
    """A block did not come, and why."""


class UnreachableError(BlockError):
    """Whoever should have sent it cannot be reached, stopped in the middle, or is another one: the
    next block would not come either."""


class BlockClient:
    """Fetches blocks in threads. ``NoBlocksError`` where this process can have none."""

    def __init__(self, key: BlockKey) -> None:
        try:
            import pyarrow  # with Flight, a tenth of a second: only who needs blocks loads it
            from pyarrow import flight
        except ImportError as missing:
            raise NoBlocksError(f"pyarrow has no Flight here: {missing}") from None
        self._arrow, self._flight = pyarrow, flight
        self._key = key
        self._certificates = Certificates.of_ray()
        self._threads = ThreadPoolExecutor(THREADS, "dsort-blocks")
        self._lock = threading.Lock()
        self._idle: deque[tuple[str, Any]] = deque()

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
        with self._failures(), self._connection(location) as client:
            options = self._flight.FlightCallOptions(timeout=CALL_S_MAX)
            reader = client.do_get(self._flight.Ticket(ticket), options)
            try:
                return self._payload(reader, ticket, sum(block.sizes))
            except BaseException:
                reader.cancel()
                raise

    def _payload(self, reader: Any, ticket: bytes, wanted_bytes: int) -> Payload:
        """All bytes of a stream."""
        proof = (reader.schema.metadata or {}).get(PROOF, b"")
        if not self._key.proves(proof, ticket):
            raise UnreachableError("what answers there is not of this job")
        if reader.schema.types != [self._arrow.uint8()]:
            raise UnreachableError("it answers with other columns than blocks have")
        pieces, size_bytes = [], 0
        for chunk in reader:
            column = chunk.data.column(0)
            if column.null_count or column.offset or size_bytes + len(column) > wanted_bytes:
                raise UnreachableError("it sent other bytes than were asked for")
            pieces.append(np.frombuffer(column.buffers()[1], np.uint8, len(column)))
            size_bytes += len(column)
        if size_bytes != wanted_bytes:
            raise UnreachableError(f"it sent {size_bytes:,} of {wanted_bytes:,} bytes")
        return pieces

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Errors of Flight as ours."""
        flight = self._flight
        unreachable = (
            flight.FlightUnavailableError,
            flight.FlightTimedOutError,
            flight.FlightCancelledError,
            flight.FlightUnauthenticatedError,
        )
        try:
            yield
        except unreachable as error:
            raise UnreachableError(_words(error)) from None
        except (flight.FlightError, self._arrow.ArrowException, OSError, ValueError) as error:
            raise BlockError(_words(error)) from None

    @contextlib.contextmanager
    def _connection(self, location: str) -> Iterator[Any]:
        """A connection that nobody else uses. One on which something failed is not used again."""
        client = self._taken(location) or self._connected(location)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        with self._lock:
            self._idle.append((location, client))
            oldest = self._idle.popleft()[1] if len(self._idle) > IDLE_MAX else None
        if oldest is not None:
            oldest.close()

    def _taken(self, location: str) -> Any:
        with self._lock:
            for at, (where, client) in enumerate(self._idle):
                if where == location:
                    del self._idle[at]
                    return client
        return None

    def _connected(self, location: str) -> Any:
        known = self._certificates
        tls: dict[str, bytes] = {}
        if known is not None:
            tls = {
                "tls_root_certs": known.authority,
                "cert_chain": known.certificate,
                "private_key": known.key,
            }
        return self._flight.FlightClient(
            location,
            generic_options=[
                ("grpc.use_local_subchannel_pool", 1),  # else all calls share one connection
                ("grpc.enable_http_proxy", 0),  # what the environment says is for the web
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.keepalive_time_ms", SILENCE_S_MAX * 1000),
                ("grpc.keepalive_timeout_ms", SILENCE_S_MAX * 500),
            ],
            **tls,
        )


def _words(error: Exception) -> str:
    """What Flight says, without what gRPC adds for those who debug it."""
    text = str(error).partition(". gRPC client debug context")[0].partition(". Detail:")[0]
    return next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)
