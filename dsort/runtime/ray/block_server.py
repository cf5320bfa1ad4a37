"""The server for blocks of spill, which are sent from its files directly to workers of other nodes.

A server belongs to the agent of a scratch node. It listens on one address of that node, and accepts
only tickets of its job (``block_stream.BlockKey``). It sends bytes of spill files, and no other
data of the machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import select
import socket
import threading
import time
from collections.abc import Iterator

import psutil
from msgspec import Struct

from dsort.errors import DsortError
from dsort.runtime.ray.block_stream import (
    BATCH_BYTES,
    FAILURE,
    FORGED,
    LENGTH,
    REASON_BYTES_MAX,
    TICKET_BYTES_MAX,
    BlockKey,
    CutError,
    ForgedTicketError,
    NoBlocksError,
    TicketError,
    fill,
    location,
    tls_of_ray,
    tune,
)
from dsort.scratch.directory import Scratch
from dsort.scratch.spill import SpillBlock, SpillFiles

STREAMS_MAX = 32
"""The most blocks that are sent at the same time; others wait. Each takes at most a chunk of
memory."""
CONNECTIONS_MAX = 1024
"""Each connection has a thread, which waits for the next ticket. Further connections are refused;
their processes then request blocks through Ray."""
HELLO_S_MAX = 10.0
"""A client has to send a ticket within this time."""
IDLE_S_MAX = 120.0
"""The time for which an idle connection is kept open after its last block."""
SEND_S_MAX = 60.0
"""The time limit for sending one block; the client does not wait longer."""
SENDFILE_BYTES_MIN = 64 << 10
"""Shorter ranges are read into a buffer and sent together, because each system call costs more."""
TURN_BYTES_MIN = 64 << 10
"""While a longer ticket is read, it counts as one of the ``STREAMS_MAX`` blocks, so that strangers
cannot fill the memory with tickets."""
ACCEPT_AGAIN_S = 0.1
BACKLOG = 128

Part = tuple[int, int, int]
"""(worker, start, size) of bytes in a spill file."""


class BlockPlace(Struct, frozen=True):
    """Where servers may listen. ``ports``: first and last; (0, 0): any free port. ``network``:
    listen on the node's address in this network; "": on the address that Ray uses for the node."""

    ports: tuple[int, int] = (0, 0)
    network: str = ""

    def address(self, ray_address: str) -> str:
        """The address on which the node at ``ray_address`` listens."""
        if not self.network:
            return ray_address
        network = ipaddress.ip_network(self.network)
        for found in psutil.net_if_addrs().values():
            for each in found:
                if each.family in (socket.AF_INET, socket.AF_INET6):
                    text = each.address.partition("%")[0]
                    if ipaddress.ip_address(text) in network:
                        return text
        raise NoBlocksError(f"it has no address in {self.network}")

    def numbers(self) -> Iterator[int]:
        """Yield the ports to try, 0 for any."""
        first, last = self.ports
        numbers = range(first, last + 1)
        begin = random.randrange(len(numbers))  # agents of other jobs try the same ports
        for at in range(len(numbers)):
            yield numbers[(begin + at) % len(numbers)]


class BlockServer:
    """Listens from its creation on. ``location``: its address. ``NoBlocksError`` if it cannot
    listen."""

    def __init__(
        self,
        scratch: Scratch,
        scratch_node: str,
        key: BlockKey,
        place: BlockPlace,
        ray_address: str,
    ) -> None:
        self._scratch = scratch
        self._scratch_node = scratch_node
        self._key = key
        self._turns = threading.BoundedSemaphore(STREAMS_MAX)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        self._context = tls_of_ray(listens=True)
        address = place.address(ray_address)
        self._listening = _listening(address, place)
        port = self._listening.getsockname()[1]
        self.location = location(address, port, tls=self._context is not None)
        threading.Thread(target=self._accept, name="dsort-blocks", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes up a thread that waits in accept()
        self._listening.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed; or out of descriptors, or the peer has left
                self._closed.wait(ACCEPT_AGAIN_S)
                continue
            with self._lock:
                is_one_too_many = len(self._connections) >= CONNECTIONS_MAX or self._closed.is_set()
                if not is_one_too_many:
                    self._connections.add(connection)
            if is_one_too_many:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer the tickets that come on a connection, until it ends. The client notices the end
        by itself."""
        try:
            tune(connection)
            connection.settimeout(HELLO_S_MAX)
            if self._context is not None:
                # The handshake waits for the client: in the accepting thread, it would delay other
                # clients.
                plain, connection = (
                    connection,
                    self._context.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    ),
                )
                with self._lock:
                    self._connections.discard(plain)
                    self._connections.add(connection)
                connection.do_handshake()
            wait_s = HELLO_S_MAX
            while self._answer(connection, self._ticket(connection, time.monotonic() + wait_s)):
                wait_s = IDLE_S_MAX
        except (OSError, TicketError):
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _ticket(self, connection: socket.socket, end_s: float) -> bytes:
        length = bytearray(LENGTH.size)
        fill(connection, memoryview(length), end_s)
        (size,) = LENGTH.unpack(length)
        if size > TICKET_BYTES_MAX:
            raise TicketError("it has a length that no ticket has")
        with self._turns if size > TURN_BYTES_MIN else contextlib.nullcontext():
            ticket = bytearray(size)
            fill(connection, memoryview(ticket), time.monotonic() + HELLO_S_MAX)
            return bytes(ticket)

    def _answer(self, connection: socket.socket, ticket: bytes) -> bool:
        """Answer one ticket; return whether the connection may be used for the next one."""
        connection.settimeout(SEND_S_MAX)
        try:
            block = self.open(ticket)
        except ForgedTicketError:
            connection.sendall(FORGED)
            return False
        except (TicketError, DsortError) as wrong:
            connection.sendall(self.proof(ticket) + _failure(f"a ticket is refused: {wrong}"))
            return True
        connection.sendall(self.proof(ticket))
        end_s = time.monotonic() + SEND_S_MAX
        with self._turns, contextlib.closing(SpillFiles(self._scratch, block.partition)) as files:
            try:
                for parts in self.chunks(block):
                    self._send(connection, files, parts, end_s)
            except DsortError as failed:
                connection.sendall(_failure(str(failed)))
                return True
        connection.sendall(LENGTH.pack(0))
        return True

    def open(self, ticket: bytes) -> SpillBlock:
        """The block that a ticket requests. ``TicketError`` if the ticket is invalid;
        ``DsortError`` if a range of the block does not exist."""
        scratch_node, block = self._key.open(ticket)
        if scratch_node != self._scratch_node:
            raise TicketError("it is for other scratch")
        # Checked before the first byte is sent, as a failure can no longer be explained afterwards.
        ends: dict[int, int] = {}
        for worker, start, size in zip(block.workers, block.starts, block.sizes, strict=True):
            ends[worker] = max(ends.get(worker, 0), start + size)
        with contextlib.closing(SpillFiles(self._scratch, block.partition)) as files:
            for worker, end in ends.items():
                if end > files.of(worker).size_bytes():
                    raise TicketError(f"it asks for more than worker {worker} has spilled")
        return block

    def proof(self, ticket: bytes) -> bytes:
        """The bytes that prove to the client that this is a server of its job."""
        return self._key.proof(ticket)

    def chunks(self, block: SpillBlock) -> Iterator[list[Part]]:
        """Yield the parts of files in each chunk of a block. Adjacent ranges of a file are one
        part."""
        parts: list[Part] = []
        size_bytes = 0
        for worker, start, size in zip(block.workers, block.starts, block.sizes, strict=True):
            stop = start + size
            while start < stop:
                part = min(stop - start, BATCH_BYTES - size_bytes)
                if parts and parts[-1][0] == worker and sum(parts[-1][1:]) == start:
                    parts[-1] = (worker, parts[-1][1], parts[-1][2] + part)
                else:
                    parts.append((worker, start, part))
                start += part
                size_bytes += part
                if size_bytes == BATCH_BYTES:
                    yield parts
                    parts, size_bytes = [], 0
        if parts:
            yield parts

    def _send(
        self, connection: socket.socket, files: SpillFiles, parts: list[Part], end_s: float
    ) -> None:
        """Send one chunk."""
        connection.settimeout(max(end_s - time.monotonic(), 0.001))
        size_bytes = sum(size for _, _, size in parts)
        length = LENGTH.pack(size_bytes)
        if self._context is not None or size_bytes < len(parts) * SENDFILE_BYTES_MIN:
            chunk, at = memoryview(bytearray(size_bytes)), 0
            for worker, start, size in parts:
                files.of(worker).read(chunk[at : at + size], start, size)
                at += size
            connection.sendall(length)
            connection.sendall(chunk)
            return
        # MSG_MORE: the length leaves in one packet with the first bytes of the file.
        connection.sendall(length, socket.MSG_MORE)
        for worker, start, size in parts:
            _send_file(connection, files.of(worker).fd, start, size, end_s)


def _send_file(connection: socket.socket, file: int, start: int, size: int, end_s: float) -> None:
    """Let the kernel send a range of ``file``. If the file has become shorter, more bytes were
    announced than exist; ``CutError`` then ends the connection."""
    can_send = select.poll()
    can_send.register(connection, select.POLLOUT)
    while size:
        try:
            sent = os.sendfile(connection.fileno(), file, start, size)
        except BlockingIOError:  # a socket with a timeout does not block in sendfile
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not can_send.poll(left_s * 1000):
                raise TimeoutError from None
            continue
        if not sent:
            raise CutError("a spill file has become shorter")
        start, size = start + sent, size - sent


def _failure(reason: str) -> bytes:
    text = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX]
    return LENGTH.pack(FAILURE + len(text)) + text


def _listening(address: str, place: BlockPlace) -> socket.socket:
    """A socket that listens on a port that no other process uses."""
    reason = ""
    for port in place.numbers():
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after ended connections
            made.bind((address, port))
            made.listen(BACKLOG)
        except OSError as error:
            made.close()
            reason = error.strerror or str(error)
            continue
        return made
    first, last = place.ports
    ports = f"no port of {first} to {last}: " if last else ""
    raise NoBlocksError(f"it cannot listen on {address}: {ports}{reason}")
