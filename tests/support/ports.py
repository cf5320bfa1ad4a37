"""Ports for servers that need a number, and cannot be given port 0."""

from __future__ import annotations

import random
import socket
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000
"""Ports below this one are used by Ray's workers and well-known servers."""

_draw = random.SystemRandom()  # two processes of a run must not try the same ports


def free_port() -> int:
    """A port of 127.0.0.1 that is free, and stays free while a server starts or restarts: it lies
    outside of the range from which the system gives ports to connections and to servers that take
    any port."""
    end = int(EPHEMERAL.read_text().split()[0])
    while True:
        port = _draw.randrange(LOWEST, end) if end > LOWEST + 1000 else 0
        with socket.socket() as held:
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = held.getsockname()[1]
            return found
