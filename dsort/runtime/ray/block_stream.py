"""How blocks of spill travel between nodes: what is said on a connection, and how long either end
waits for it.

A worker connects to the agent of a node and sends tickets (``block_tickets``), one after the other.
Each is answered before the next one is sent. Numbers are little-endian::

    question   4 bytes length, ticket
    answer     32 bytes proof, of a ticket that this job has not signed zeros; then chunks
    chunk      4 bytes length, so many bytes; 4 zeros are the end of the block
    failure    in place of a chunk: 4 bytes length with the highest bit set, a text that says why

It is a protocol of our own, for what it carries is files: the kernel sends them from its cache, and
receives them where they are wanted. That takes 0.4 to 0.6 processor seconds a GiB on both ends, by
Arrow Flight it was 1.2 to 1.5 (``python -m benchmarks.exchange``).
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dsort.runtime.ray.block_tickets import MAC_BYTES

BATCH_BYTES = 2 << 20
"""The most of a chunk."""
LENGTH = struct.Struct("<I")
FAILURE = 1 << 31
REASON_BYTES_MAX = 1 << 10
FORGED = bytes(MAC_BYTES)
SILENCE_S_MAX = 20
"""A connection on which nothing came for so long is asked whether it is there, and given half as
long to answer: a machine that lost its power ends no connection."""
PROBES, PROBE_S = 2, 5
SCHEMES = ("tcp", "tls")


class NoBlocksError(Exception):
    """Blocks can be neither sent nor asked for, and why."""


class CutError(ConnectionError):
    """The other end has closed the connection."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of a Ray cluster with TLS: each end has a certificate, and asks for the other's."""

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def of_ray(cls) -> Certificates | None:
        """What this process has for Ray's own connections; None: Ray has no TLS."""
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            return None
        names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
        try:
            return cls(*(Path(os.environ[name]) for name in names))
        except KeyError as missing:
            raise NoBlocksError(f"RAY_USE_TLS is set, and {missing.args[0]} is not") from None

    def context(self, *, listens: bool) -> ssl.SSLContext:
        """What either end of a connection needs. ``NoBlocksError`` for files that are of no use."""
        purpose = ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except OSError as error:  # SSLError is one
            names = ", ".join(map(str, (self.certificate, self.key, self.authority)))
            raise NoBlocksError(f"cannot load {names}: {error.strerror or error}") from None
        return context


def location(address: str, port: int, *, tls: bool) -> str:
    """Where a server listens, in one text."""
    host = f"[{address}]" if ":" in address else address
    return f"{SCHEMES[tls]}://{host}:{port}"


def connected(where: str, context: ssl.SSLContext | None, end_s: float) -> socket.socket:
    """A connection to the server at ``where``, made before ``end_s`` of the monotonic clock.
    ``OSError``, or ``ValueError`` for what no server is at."""
    parts = urlsplit(where)
    if parts.scheme not in SCHEMES or not parts.hostname or not parts.port:
        raise ValueError(f"{where} is not the place of a server")
    if (parts.scheme == "tls") != (context is not None):
        raise ConnectionError("one end has certificates for its connections, the other has none")
    made = socket.create_connection((parts.hostname, parts.port), timeout=_left_s(end_s))
    try:
        tune(made)
        if context is not None:
            made = context.wrap_socket(made, server_hostname=parts.hostname)
    except BaseException:
        made.close()
        raise
    return made


def tune(connection: socket.socket) -> None:
    """Send at once what is sent, and find out that the other end's machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def fill(connection: socket.socket, buffer: memoryview, end_s: float) -> None:
    """Fill ``buffer`` with what comes before ``end_s``. ``TimeoutError``; ``CutError`` if it was
    less."""
    while buffer:
        connection.settimeout(_left_s(end_s))
        got = connection.recv_into(buffer)
        if not got:
            raise CutError("the connection was closed")
        buffer = buffer[got:]


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time is over")
    return left_s
