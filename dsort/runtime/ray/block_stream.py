"""The protocol by which blocks of spill travel between nodes: messages, keys, and time limits."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from dsort.scratch.spill import BLOCK_BYTES, SpillBlock

# A worker connects to the agent of a node and sends tickets, one after the other. Each is answered
# before the next one is sent. Numbers are little-endian:
#
# question   4 bytes length, ticket
# answer     32 bytes proof (zeros if the ticket was not signed by this job); then chunks
# chunk      4 bytes length, so many bytes; 4 zeros are the end of the block
# failure    instead of a chunk: 4 bytes length with the highest bit set, the reason as a text
#
# It is a protocol of our own because the payload is files: the kernel sends them from its cache,
# and receives them in their final place. That takes 0.4 to 0.6 processor seconds a GiB on both
# ends; with Arrow Flight, it takes 1.2 to 1.5.
BATCH_BYTES = 2 << 20
"""The largest chunk."""
LENGTH = struct.Struct("<I")
FAILURE = 1 << 31
REASON_BYTES_MAX = 1 << 10
SILENCE_S_MAX = 20
"""After so many seconds without data, the kernel probes a connection, and ends it unless an answer
comes in half that time. A machine that lost its power does not end connections itself."""
PROBES, PROBE_S = 2, 5
SCHEMES = ("tcp", "tls")
KEY_BYTES = 32
MAC_BYTES = 32
FORGED = bytes(MAC_BYTES)
NONCE_BYTES = 16
TICKET_BYTES_MAX = 16 << 20
"""A range has at least one record, so a ticket for short records may have many ranges."""
OFFSET_LIMIT = 1 << 63

_ASKS, _ANSWERS = b"dsort asks ", b"dsort answers "


class NoBlocksError(Exception):
    """Blocks can be neither sent nor requested; the text has the reason."""


class CutError(ConnectionError):
    """The other end has closed the connection."""


def tls_of_ray(*, listens: bool) -> ssl.SSLContext | None:
    """The TLS settings of one end of a connection, the same as Ray has in this process: each end
    has a certificate, and checks the other's. None: Ray does not use TLS. ``NoBlocksError`` for
    unusable files."""
    if os.environ.get("RAY_USE_TLS", "0") == "0":
        return None
    names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")
    try:
        certificate, key, authority = (os.environ[name] for name in names)
    except KeyError as missing:
        raise NoBlocksError(f"RAY_USE_TLS is set, and {missing.args[0]} is not") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except OSError as error:  # SSLError is an OSError, too
        files = ", ".join((certificate, key, authority))
        raise NoBlocksError(f"cannot load {files}: {error.strerror or error}") from None
    return context


def location(address: str, port: int, *, tls: bool) -> str:
    """The address of a server as one text."""
    host = f"[{address}]" if ":" in address else address
    return f"{SCHEMES[tls]}://{host}:{port}"


def connected(where: str, context: ssl.SSLContext | None, end_s: float) -> socket.socket:
    """Connect to the server at ``where``, before ``end_s`` of the monotonic clock. ``OSError`` if
    there is no connection by then; ``ValueError`` if ``where`` is not the address of a server."""
    parts = urlsplit(where)
    if parts.scheme not in SCHEMES or not parts.hostname or not parts.port:
        raise ValueError(f"{where} is not the address of a server")
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
    """Make a connection send data at once, and detect that the other machine is gone."""
    # Otherwise a ticket would wait for the acknowledgement of the ticket before it.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def fill(connection: socket.socket, buffer: memoryview, end_s: float) -> None:
    """Fill ``buffer`` with bytes that arrive before ``end_s``. ``TimeoutError`` if too few arrive;
    ``CutError`` if the connection ends."""
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


class TicketError(Exception):
    """A ticket for ranges that do not exist, or that no job requests."""


class ForgedTicketError(TicketError):
    """A ticket that was not made with this job's key."""


@dataclass(frozen=True, slots=True, repr=False)
class BlockKey:
    """The key of one job. Its ``repr`` does not show it."""

    secret: bytes

    def __repr__(self) -> str:
        return "BlockKey(...)"

    @classmethod
    def new(cls) -> BlockKey:
        """Make a random key."""
        return cls(secrets.token_bytes(KEY_BYTES))

    def ticket(self, scratch_node: str, block: SpillBlock) -> bytes:
        """A ticket that requests ``block`` from ``scratch_node``; no two tickets are equal."""
        ranges = block.workers, block.starts, block.sizes
        text = orjson.dumps(
            [secrets.token_hex(NONCE_BYTES), scratch_node, block.partition, *ranges]
        )
        # The nonce in the text makes each ticket different, so the proof of an old ticket never
        # fits.
        return self._mac(_ASKS, text) + text

    def open(self, ticket: bytes) -> tuple[str, SpillBlock]:
        """The (scratch node, block) in a ticket. ``TicketError`` if it is invalid."""
        if not MAC_BYTES < len(ticket) <= TICKET_BYTES_MAX:
            raise TicketError("it has a length that no ticket has")
        text = ticket[MAC_BYTES:]
        # Checked before the text is parsed: nothing of a stranger reaches the parser.
        if not hmac.compare_digest(self._mac(_ASKS, text), ticket[:MAC_BYTES]):
            raise ForgedTicketError("it was not signed with this job's key")
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise TicketError("it is no JSON") from None
        return _checked(said)

    def proof(self, ticket: bytes) -> bytes:
        """The answer to ``ticket`` that only a process of this job can give."""
        return self._mac(_ANSWERS, ticket)

    def proves(self, proof: bytes, ticket: bytes) -> bool:
        """Whether ``proof`` is the proof for ``ticket``."""
        return hmac.compare_digest(self.proof(ticket), proof)

    def _mac(self, what: bytes, text: bytes) -> bytes:
        # With another prefix for each direction, a ticket sent back is no proof.
        return hmac.digest(self.secret, what + text, "sha256")


def _checked(said: Any) -> tuple[str, SpillBlock]:
    """The content of a ticket, if it is a valid block."""
    match said:
        case [str(), str(scratch_node), int(partition), list(), list(), list()]:
            columns = said[3:]
        case _:
            raise TicketError("it has another form than tickets have")
    numbers = [partition, *(number for column in columns for number in column)]
    # `type`, as booleans are instances of int, too.
    if not all(type(number) is int and 0 <= number < OFFSET_LIMIT for number in numbers):
        raise TicketError("it has numbers that no range has")
    workers, starts, sizes = map(tuple, columns)
    if not 0 < len(workers) == len(starts) == len(sizes) or sum(sizes) > BLOCK_BYTES:
        raise TicketError(f"it asks for other ranges than those of a block of {BLOCK_BYTES:,} B")
    return scratch_node, SpillBlock(partition, workers, starts, sizes)
