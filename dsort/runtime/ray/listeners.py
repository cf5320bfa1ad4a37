"""Where the processes of a Ray listen."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable

import psutil

from dsort.errors import WorkerLostError

__all__ = ["check_loopback", "listeners", "listening_words"]

Listener = tuple[str, int]
"""Address and port."""


def listeners(processes: Iterable[psutil.Process]) -> list[Listener]:
    """All on which ``processes`` take connections, sorted."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for each in process.net_connections("inet"):
                if each.status == psutil.CONN_LISTEN:
                    found.add((each.laddr.ip, each.laddr.port))
    return sorted(found)


def check_loopback(found: Iterable[Listener]) -> None:
    """``WorkerLostError`` if another machine can reach one of them."""
    open_to_all = [f"{address}:{port}" for address, port in found if not _is_loopback(address)]
    if open_to_all:
        raise WorkerLostError(
            f"Ray listens on {', '.join(open_to_all)}, where other machines may reach it",
            hint="this version of Ray cannot be kept to this machine: use the one that dsort was "
            "tested with, or run without --ray",
        )


def listening_words(found: Iterable[Listener]) -> str:
    """In a user's words: ``127.0.0.1 (ports 6379, 10001)``."""
    by_address: dict[str, list[int]] = {}
    for address, port in found:
        by_address.setdefault(str(_plain(address)), []).append(port)
    return "; ".join(
        f"{address} (ports {', '.join(map(str, sorted(set(ports))))})"
        for address, ports in sorted(by_address.items())
    )


def _is_loopback(address: str) -> bool:
    return _plain(address).is_loopback


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
