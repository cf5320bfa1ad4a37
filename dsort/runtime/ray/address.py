"""Addresses of Ray clusters: their forms, and whether anything answers there.

Ray itself takes more than ten minutes to find out that there is nothing at an address, and tells of
each try on the way; this takes seconds.
"""

from __future__ import annotations

import os
import re
import socket

from dsort.errors import SpecError, SpecProblem, WorkerLostError

__all__ = ["PORT_HINT", "check_form", "check_listener", "is_only_on_loopback"]

ANSWER_SECONDS_MAX = 5
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_FORM = re.compile(
    r"(?:ray://)?(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>[0-9]{1,5})", re.ASCII
)
_FORMS_HINT = "auto, HOST:PORT or ray://HOST:PORT; without an address Ray is started here: --ray"
PORT_HINT = (
    "HOST:PORT takes the port of the head (6379, unless it was set), "
    "ray://HOST:PORT that of its client server (10001)"
)

# RFC 9113, section 3.4: how a client of HTTP/2 begins, here with an empty SETTINGS frame. A server
# begins with its own SETTINGS, whatever it is asked.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_TYPE_AT, _SETTINGS = 3, 4


def check_form(address: str) -> None:
    """``SpecError`` if ``address`` is none that could be joined."""
    if address != "auto" and _host_and_port(address) is None:
        raise SpecError(
            [SpecProblem("--ray-address", f"{address!r} is no address of Ray", _FORMS_HINT)]
        )


def check_listener(address: str) -> None:
    """``WorkerLostError`` if nothing at ``address`` speaks HTTP/2, as all of Ray's servers do.

    What ``auto`` stands for only Ray knows, unless ``RAY_ADDRESS`` says it.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    found = _host_and_port(address)
    if found is None or os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    try:
        with socket.create_connection(found, timeout=ANSWER_SECONDS_MAX) as connection:
            connection.sendall(_PREFACE)
            heard = connection.recv(_FRAME_TYPE_AT + 1)
    except OSError as error:
        raise WorkerLostError(
            f"no Ray cluster answers at {address}: {error.strerror or error}", hint=PORT_HINT
        ) from error
    if heard[_FRAME_TYPE_AT:] != bytes([_SETTINGS]):
        raise WorkerLostError(f"what answers at {address} is no Ray cluster", hint=PORT_HINT)


def is_only_on_loopback(address: str, here: str) -> bool:
    """Whether ``address`` is one of loopback whose port nobody has open at ``here``, the address of
    this machine that Ray takes in its place."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    found = _host_and_port(address)
    if found is None or found[0] not in LOOPBACK:
        return False
    try:
        socket.create_connection((here, found[1]), timeout=ANSWER_SECONDS_MAX).close()
    except OSError:
        return True
    return False


def _host_and_port(address: str) -> tuple[str, int] | None:
    match = _FORM.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        return None
    return match["host"].strip("[]"), int(match["port"])
