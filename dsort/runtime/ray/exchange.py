"""How a worker on Ray gets data of other nodes: answers to requests through Ray, blocks of spill
directly from their node."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dsort.errors import InvariantError, WorkerLostError
from dsort.log_lines import logger_of
from dsort.runtime.base import given
from dsort.runtime.ray.block_server import BlockPlace
from dsort.runtime.ray.block_stream import (
    FAILURE,
    FORGED,
    LENGTH,
    REASON_BYTES_MAX,
    BlockKey,
    CutError,
    NoBlocksError,
    connected,
    fill,
    tls_of_ray,
)
from dsort.runtime.ray.library import (
    LOST_ERRORS,
    GetTimeoutError,
    RayError,
    RayTaskError,
    first_line,
    ray,
)
from dsort.runtime.ray.scratch_nodes import (
    ANSWER_SECONDS_MAX,
    NAMESPACE,
    agent_name,
    late_scratch,
    lost_scratch,
    node_slot_of,
)
from dsort.scratch.nodes import Request
from dsort.scratch.spill import BLOCKS_IN_FLIGHT_MAX, Payload, SpillBlock

log = logger_of("runtime")
CALL_S_MAX = 60.0
"""The time limit for one block: a stream of less than 280 KB/s counts as stopped. Ray, which is
used next, waits five times as long."""
THREADS = 2 * BLOCKS_IN_FLIGHT_MAX
"""Enough for reading one partition while the first blocks of the next one arrive."""
IDLE_MAX = 8
"""The most idle connections that are kept for later blocks; there may be hundreds of nodes."""


class BlockRules(Struct, frozen=True):
    """How blocks of one job travel. If ``key`` is None, they travel through Ray, like all other
    data."""

    key: BlockKey | None
    place: BlockPlace


# Only Ray can decide whether a node is lost. So every request that fails without Ray is repeated
# through Ray, which detects a node that is lost, slow or without the file. If Ray delivers the
# block nevertheless, the node cannot be reached from here, and its other blocks come through Ray.
class RayExchange:
    """The :class:`~dsort.scratch.nodes.Exchange` of a worker on Ray. ``prefix``: the prefix of the
    names of agents.

    An answer that Ray delivers stays in the object stores of both nodes until the requester
    releases it.
    """

    def __init__(self, prefix: str, rules: BlockRules) -> None:
        self._prefix = prefix
        self._key = rules.key
        self._place = rules.place
        self._agents: dict[str, Any] = {}
        self._locations: dict[str, str] = {}  # "": blocks of this node come through Ray
        self._unreachable: list[tuple[str, str]] = []

    def begin(self, scratch_node: str, request: Request) -> Callable[[], Any]:
        """See :class:`~dsort.scratch.nodes.Exchange`."""
        if self._key is not None and isinstance(request, SpillBlock):
            location = self._location(scratch_node)
            if location:
                coming = self._client.begin(location, scratch_node, request)
                return partial(self._finish_block, scratch_node, request, location, coming)
        return self._begin_by_ray(scratch_node, request)

    def unreachable(self) -> tuple[tuple[str, str], ...]:
        """(scratch node, reason) of the nodes that were found to be unreachable since the last
        call."""
        found, self._unreachable = tuple(self._unreachable), []
        return found

    # -- from the node directly ------------------------------------------------------------------

    def _location(self, scratch_node: str) -> str:
        """The address of a node's server; "" if there is none."""
        if scratch_node not in self._locations:
            self._locations[scratch_node] = self._ask_location(scratch_node)
        return self._locations[scratch_node]

    @cached_property
    def _client(self) -> BlockClient:
        assert self._key is not None, "blocks come from nodes directly"
        return BlockClient(self._key)

    def _ask_location(self, scratch_node: str) -> str:
        try:
            key = self._client.key
        except NoBlocksError as none:
            self._key = None  # holds for all nodes, so it is reported once
            self._unreachable.append((scratch_node, f"this worker cannot ask for blocks: {none}"))
            return ""
        asked = self._agent(scratch_node).blocks_at.remote(key, self._place)
        location, reason = self._answer(scratch_node, asked)
        log.debug("blocks of node %s come from %s", scratch_node, location or f"Ray: {reason}")
        if reason:
            self._unreachable.append((scratch_node, str(reason)))
        return str(location)

    def _finish_block(
        self, scratch_node: str, block: SpillBlock, location: str, coming: Future[Payload]
    ) -> Payload:
        try:
            return coming.result()
        except BlockError as failed:
            log.debug("a block of node %s did not come: %s; Ray is asked", scratch_node, failed)
            payload: Payload = self._begin_by_ray(scratch_node, block)()
            # Ray has delivered the block, so the direct connection does not work; unless the agent
            # is another process by now, or another block of this node has failed before.
            if isinstance(failed, UnreachableError) and self._locations[scratch_node] == location:
                self._locations[scratch_node] = self._ask_location(scratch_node)
                if self._locations[scratch_node] == location:
                    self._locations[scratch_node] = ""
                    self._unreachable.append((scratch_node, f"{location}: {failed}"))
            return payload

    # -- through Ray -----------------------------------------------------------------------------

    def _begin_by_ray(self, scratch_node: str, request: Request) -> Callable[[], Any]:
        log.debug("the worker asks scratch %s: %s", scratch_node, type(request).__name__)
        reference = self._agent(scratch_node).answer.remote(scratch_node, request)
        return partial(self._finish, scratch_node, reference)

    def _agent(self, scratch_node: str) -> Any:
        if scratch_node not in self._agents:
            name = agent_name(self._prefix, node_slot_of(scratch_node))
            try:
                self._agents[scratch_node] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError as unknown:
                raise lost_scratch(scratch_node) from unknown
        return self._agents[scratch_node]

    def _finish(self, scratch_node: str, reference: Any) -> Any:
        return given(self._answer(scratch_node, reference))

    def _answer(self, scratch_node: str, reference: Any) -> Any:
        """The answer of an agent."""
        try:
            return ray.get(reference, timeout=ANSWER_SECONDS_MAX)
        except LOST_ERRORS as lost:
            raise lost_scratch(scratch_node) from lost
        except GetTimeoutError as late:
            raise late_scratch(node_slot_of(scratch_node)) from late
        except RayTaskError as raised:
            raise InvariantError(f"node {node_slot_of(scratch_node)} failed:\n{raised}") from raised
        except RayError as failed:
            raise WorkerLostError(
                f"Ray failed to bring an answer of node {node_slot_of(scratch_node)}: "
                f"{first_line(failed)}",
                hint="look at Ray's own logs",
            ) from failed


class BlockError(Exception):
    """A block was not delivered; the text has the reason."""


class UnreachableError(BlockError):
    """The server cannot be reached, stopped in the middle, or does not belong to this job: the next
    block would fail, too."""


class BlockClient:
    """Fetches blocks in threads. ``NoBlocksError`` if this process cannot fetch blocks."""

    def __init__(self, key: BlockKey) -> None:
        self.key = key
        self._context = tls_of_ray(listens=False)
        self._threads = ThreadPoolExecutor(THREADS, "dsort-blocks")
        self._lock = threading.Lock()
        self._idle: deque[tuple[str, socket.socket]] = deque()

    def begin(self, location: str, scratch_node: str, block: SpillBlock) -> Future[Payload]:
        """Request a block from the server at ``location``. The result of the future: all bytes of
        the block, or ``BlockError``."""
        return self._threads.submit(self._fetch, location, scratch_node, block)

    def close(self) -> None:
        """End all connections; pending requests fail with ``BlockError``."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            while self._idle:
                self._idle.popleft()[1].close()

    def _fetch(self, location: str, scratch_node: str, block: SpillBlock) -> Payload:
        ticket = self.key.ticket(scratch_node, block)
        end_s = time.monotonic() + CALL_S_MAX
        try:
            connection = self._asked(location, ticket, end_s)
            with contextlib.ExitStack() as closed:
                # After an error, bytes of this answer may still come: no other block may use the
                # connection.
                closed.callback(connection.close)
                found = _block(connection, sum(block.sizes), end_s)
                closed.pop_all()  # the answer is complete: keep the connection for the next block
        except TimeoutError:
            raise UnreachableError(f"no block came within {CALL_S_MAX:g} s") from None
        except (OSError, ValueError) as error:
            raise UnreachableError(_words(error)) from None
        self._keep(location, connection)
        return [found]

    def _asked(self, location: str, ticket: bytes, end_s: float) -> socket.socket:
        """A connection on which the server has begun to answer, and has proved its identity."""
        proof = bytearray(len(FORGED))
        question = LENGTH.pack(len(ticket)) + ticket
        while True:
            kept = self._taken(location)
            if not kept:
                log.debug("a connection to %s is made", location)
            connection = kept or connected(location, self._context, end_s)
            try:
                connection.settimeout(max(end_s - time.monotonic(), 0.001))
                connection.sendall(question)
                fill(connection, memoryview(proof), end_s)
            # The server closes idle connections, and may do so just now: the next try uses another
            # one.
            except ConnectionError:
                connection.close()
                if not kept:
                    raise
                continue  # the server has closed the kept connection
            except BaseException:
                connection.close()
                raise
            if self.key.proves(bytes(proof), ticket):
                return connection
            connection.close()
            if proof == FORGED:
                raise UnreachableError("a ticket is refused: it was not signed with this job's key")
            raise UnreachableError("the server there does not belong to this job")

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
    """Receive all bytes of a block."""
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
        raise UnreachableError(f"the connection ended after {size_bytes:,} {sent}") from None
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
