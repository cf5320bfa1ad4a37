"""Blocks of spill for workers of other nodes, by Arrow Flight: the side that has the files.

A server belongs to the agent of a scratch node. It listens on one address of that node, and takes
tickets of its job alone (``block_tickets``). What it sends are the bytes of spill files; nothing
else of the machine can be asked for.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from dsort.errors import DsortError
from dsort.runtime.ray.block_tickets import BlockKey, ForgedTicketError, TicketError
from dsort.scratch.directory import Scratch
from dsort.scratch.spill import SpillBlock, SpillFiles

__all__ = ["PROOF", "BlockPlace", "BlockServer", "Certificates", "NoBlocksError", "location"]

BATCH_BYTES = 2 << 20
"""What is read and sent at a time. Smaller ones cost gRPC more, larger ones leave the processor's
cache before they are sent."""
STREAMS_MAX = 32
"""So many blocks are sent at the same time; others wait. Each takes two batches of memory."""
PROOF = b"dsort"
"""The key of a stream's metadata that has the server's proof."""


class NoBlocksError(Exception):
    """There can be no server, and why."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Those of a Ray cluster with TLS: each end has one, and asks for the other's."""

    certificate: bytes
    key: bytes
    authority: bytes

    @classmethod
    def of_ray(cls) -> Certificates | None:
        """What this process has for Ray's own connections; None: Ray has no TLS. ``NoBlocksError``
        for files that cannot be read."""
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            return None
        names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
        try:
            return cls(*(Path(os.environ[name]).read_bytes() for name in names))
        except KeyError as missing:
            raise NoBlocksError(f"RAY_USE_TLS is set, and {missing.args[0]} is not") from None
        except OSError as error:
            raise NoBlocksError(f"cannot read {error.filename}: {error.strerror}") from None


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where servers may listen. ``ports``: first and last; None: any that is free. ``network``: on
    the address of the node that is in it; "": on the one that Ray knows the node by."""

    ports: tuple[int, int] | None = None
    network: str = ""

    def address(self, ray_address: str) -> str:
        """The address to listen on, of a node that Ray knows by ``ray_address``."""
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
        """The ports to try, 0 for any."""
        if self.ports is None:
            yield 0
            return
        first, last = self.ports
        numbers = range(first, last + 1)
        begin = random.randrange(len(numbers))  # agents of other jobs try the same ones
        for at in range(len(numbers)):
            yield numbers[(begin + at) % len(numbers)]


def location(address: str, port: int, *, tls: bool) -> str:
    """Where a server listens, as Flight names it."""
    host = f"[{address}]" if ":" in address else address
    return f"{'grpc+tls' if tls else 'grpc'}://{host}:{port}"


class BlockServer:
    """Listens from when it is made. ``location``: where. ``NoBlocksError`` if it cannot."""

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
        self._held: socket.socket | None = None
        certificates = Certificates.of_ray()
        address = place.address(ray_address)
        self._server = self._listening(address, place, certificates)
        self.location = location(address, self._server.port, tls=certificates is not None)

    def close(self) -> None:
        """Listen no more. Streams that have begun are ended first."""
        self._server.shutdown()
        if self._held is not None:
            self._held.close()

    def _listening(self, address: str, place: BlockPlace, certificates: Certificates | None) -> Any:
        library, server_class = _server_class()
        pairs = None if certificates is None else [(certificates.certificate, certificates.key)]
        reason = ""
        for port in place.numbers():
            with contextlib.ExitStack() as held:
                try:
                    lock = held.enter_context(_held_port(address, port))
                    server = server_class(
                        self,
                        location(address, port, tls=certificates is not None),
                        tls_certificates=pairs,
                        verify_client=certificates is not None,
                        root_certificates=certificates and certificates.authority,
                    )
                except (OSError, library.ArrowException) as error:
                    reason = str(error).splitlines()[0]
                    continue
                held.pop_all()
                self._held = lock
                return server
        ports = "" if place.ports is None else f"no port of {place.ports[0]} to {place.ports[1]}: "
        raise NoBlocksError(f"it cannot listen on {address}: {ports}{reason}")

    def open(self, ticket: bytes) -> SpillBlock:
        """The block that a ticket asks for. ``TicketError``; ``DsortError`` if a range of it is not
        there."""
        scratch_node, block = self._key.open(ticket)
        if scratch_node != self._scratch_node:
            raise TicketError("it is for other scratch")
        ends: dict[int, int] = {}
        for worker, start, size in zip(block.workers, block.starts, block.sizes, strict=True):
            ends[worker] = max(ends.get(worker, 0), start + size)
        with contextlib.closing(SpillFiles(self._scratch, block.partition)) as files:
            for worker, end in ends.items():
                if end > files.size_bytes(worker):
                    raise TicketError(f"it asks for more than worker {worker} has spilled")
        return block

    def proof(self, ticket: bytes) -> bytes:
        """What tells the client that this is a server of its job."""
        return self._key.proof(ticket)

    def batches(self, block: SpillBlock) -> Iterator[NDArray[np.uint8]]:
        """The bytes of a block, some at a time."""
        with self._turns, contextlib.closing(SpillFiles(self._scratch, block.partition)) as files:
            parts, size_bytes = [], 0
            for worker, start, size in zip(block.workers, block.starts, block.sizes, strict=True):
                stop = start + size
                while start < stop:
                    part = min(stop - start, BATCH_BYTES - size_bytes)
                    parts.append((worker, start, part))
                    start += part
                    size_bytes += part
                    if size_bytes == BATCH_BYTES:
                        yield self._read(files, parts, size_bytes)
                        parts, size_bytes = [], 0
            if parts:
                yield self._read(files, parts, size_bytes)

    def _read(
        self, files: SpillFiles, parts: list[tuple[int, int, int]], size_bytes: int
    ) -> NDArray[np.uint8]:
        """One batch, in memory of its own: gRPC reads what it was given for as long as it likes."""
        batch, at = np.empty(size_bytes, np.uint8), 0
        for worker, start, size in parts:
            files.read_into(batch.data[at : at + size], worker, start)
            at += size
        return batch


@contextlib.contextmanager
def _held_port(address: str, port: int) -> Iterator[socket.socket | None]:
    """Have a port for this process alone (0: the kernel chooses one that nobody has). gRPC lets
    processes of one user listen on the same port, and the kernel would deal connections out to
    them: so a plain socket asks for it first, and a name without a file keeps other agents away
    as long as the server is there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as closed:
        lock = closed.enter_context(socket.socket(socket.AF_UNIX)) if port else None
        if lock is not None:
            lock.bind(f"\0dsort-blocks-{address}-{port}")
        with socket.socket(family) as asked:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            asked.bind((address, port))
        yield lock


def _server_class() -> tuple[Any, Any]:
    """(pyarrow, the class of servers). Flight takes a tenth of a second and 30 MB:
    it is loaded where another node asks for blocks. ``NoBlocksError``: there is none."""
    try:
        import pyarrow
        from pyarrow import flight
    except ImportError as missing:
        raise NoBlocksError(f"its pyarrow has no Flight: {missing}") from None

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def __init__(self, blocks: BlockServer, where: str, **options: Any) -> None:
            self._blocks = blocks
            super().__init__(where, **options)

        def do_get(self, context: Any, ticket: Any) -> Any:
            """Flight's own name for it."""
            try:
                block = self._blocks.open(ticket.ticket)
            except ForgedTicketError as forged:
                raise flight.FlightUnauthenticatedError(f"a ticket is refused: {forged}") from None
            except (TicketError, DsortError) as wrong:
                raise flight.FlightServerError(f"a ticket is refused: {wrong}") from None
            proof = {PROOF: self._blocks.proof(ticket.ticket)}
            schema = pyarrow.schema([("bytes", pyarrow.uint8())], proof)
            arrays = (
                pyarrow.Array.from_buffers(
                    pyarrow.uint8(), len(each), [None, pyarrow.py_buffer(each)]
                )
                for each in self._blocks.batches(block)
            )
            batches = (pyarrow.RecordBatch.from_arrays([each], schema=schema) for each in arrays)
            return flight.RecordBatchStream(pyarrow.RecordBatchReader.from_batches(schema, batches))

    return pyarrow, Server
