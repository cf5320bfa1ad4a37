"""Fetches a text that a spec names, such as an external key map, from a file or over HTTP.

For a spec that came over the network, a :class:`~dsort.storage.network_policy.FetchPolicy` sets
what may be read. The policy is checked for the real file behind all links, for the real address of
the socket, and at each hop of a redirection; names alone decide nothing.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import stat
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from dsort.errors import InputError, KeyMapError
from dsort.naming.names import INTERNAL_PART
from dsort.naming.patterns import FileLocation
from dsort.storage.guarded_http import RefusedConnectionError, web_opener
from dsort.storage.network_policy import FetchPolicy

TEXT_BYTES_MAX = 1 << 30
ANSWER_SECONDS_MAX = 60.0  # without a byte
FETCH_SECONDS_MAX = 600.0  # altogether

_CHUNK_BYTES = 1 << 20


class TextKind(Struct, frozen=True):
    """The kind of a text, for messages: its name (such as "external key map"), its field in the
    spec, an alternative to it, and the error if it cannot be read."""

    words: str
    field: str
    in_place: str
    error: type[InputError]


KEY_MAP = TextKind("external key map", "ekm_file", "use ekm", KeyMapError)


def read_text(
    location: FileLocation,
    kind: TextKind = KEY_MAP,
    *,
    policy: FetchPolicy | None = None,
    bytes_max: int = TEXT_BYTES_MAX,
    answer_seconds_max: float = ANSWER_SECONDS_MAX,
    fetch_seconds_max: float = FETCH_SECONDS_MAX,
) -> str:
    """The text at ``location``: a path, or a ``file://``, ``http://`` or ``https://`` URL.

    Decoded as UTF-8; other bytes become lone surrogates, as in Python's file names. ``kind.error``
    if the text cannot be read, is larger than ``bytes_max``, or arrives too slowly. A redirection
    may lead only to an ``http`` or ``https`` URL. Without a ``policy``, the proxies of the
    environment are used. With a ``policy``, no proxies are used, and ``kind.error`` is also raised
    for all that it forbids.
    """
    if policy is not None:
        bytes_max = min(bytes_max, policy.bytes_max)
    if scheme_of(location) in ("http", "https"):
        data = _fetched(
            web_opener(policy), location, kind, bytes_max, answer_seconds_max, fetch_seconds_max
        )
    else:
        try:
            path = path_in(location)
        except ValueError as error:
            raise kind.error(f"{location!r}: {error}", hint=f"check {kind.field}") from None
        data = _read(Path(path), kind, bytes_max, policy)
    return data.decode("utf-8", "surrogateescape")


def scheme_of(location: str) -> str:
    """The scheme of a location in lower case; "" for a path."""
    scheme, found, _ = location.partition("://")
    return scheme.lower() if found else ""


def path_in(location: str) -> str:
    """The path of a location that is a path or a ``file://`` URL. ``ValueError`` for an invalid
    URL."""
    if scheme_of(location) != "file":
        return location
    return unquote(urlsplit(location).path, errors="surrogateescape")


def shown_location(location: str) -> str:
    """``location`` for messages: a URL without user, password, query and fragment, which may
    contain tokens."""
    if not re.match(r"https?://", location, re.IGNORECASE):
        return location
    return re.sub(r"(?<=://)[^/]*@", "", re.split("[?#]", location)[0])


def _read(path: Path, kind: TextKind, bytes_max: int, policy: FetchPolicy | None) -> bytes:
    try:
        if policy is not None:
            path = _checked_path(path, kind, policy)
            opened = _guarded_file(path, kind, policy)
        else:
            opened = path.open("rb")
        with opened as file:
            data = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise kind.error(
            f"cannot read {kind.words} {path}: {reason}", hint=f"check {kind.field}"
        ) from error
    if len(data) > bytes_max:
        raise _too_large(kind, str(path), bytes_max)
    return data


def _fetched(
    opener: urllib.request.OpenerDirector,
    url: str,
    kind: TextKind,
    bytes_max: int,
    answer_seconds_max: float,
    seconds_max: float,
) -> bytes:
    shown = shown_location(url)
    deadline = time.monotonic() + seconds_max
    data = bytearray()
    try:
        with opener.open(_request(url), timeout=answer_seconds_max) as answer:
            announced = answer.headers.get("Content-Length", "")
            # read1 returns what has come: a slow server cannot pass the deadline in one read.
            while chunk := answer.read1(_CHUNK_BYTES):
                data += chunk
                if len(data) > bytes_max:
                    raise _too_large(kind, shown, bytes_max)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it took longer than {seconds_max:,.0f} s")
    except urllib.error.HTTPError as error:
        error.close()
        raise kind.error(
            f"the server answered {error.code} ({error.reason}) when asked for {kind.words} "
            f"{shown}",
            hint=f"check {kind.field}",
        ) from error
    except RefusedConnectionError as error:
        raise kind.error(
            f"the {kind.words} may not be fetched from {error}",
            hint=f"ask the operator to allow the host, or {kind.in_place}",
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise kind.error(
            f"cannot fetch {kind.words} {shown}: {reason or type(reason).__name__}",
            hint=f"check {kind.field} and the way there (HTTP_PROXY, firewalls)",
        ) from error
    if announced.isdecimal() and len(data) < int(announced):
        raise kind.error(f"{kind.words} {shown} broke off after {len(data):,} of {announced} bytes")
    return bytes(data)


def _request(url: str) -> urllib.request.Request:
    """The request for ``url``. A user and password in it are sent as basic authentication."""
    scheme, authority, rest = re.split(r"(?<=://)([^/?#]*)", url, maxsplit=1)
    secret, _, host = authority.rpartition("@")
    request = urllib.request.Request(scheme + host + rest)
    if secret:
        token = base64.b64encode(unquote(secret).encode()).decode()
        # This header is not sent to the host of a redirection.
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _too_large(kind: TextKind, shown: str, bytes_max: int) -> InputError:
    return kind.error(f"{kind.words} {shown} is larger than {bytes_max:,} bytes")


# --- under a policy ------------------------------------------------------------------------------


def _checked_path(path: Path, kind: TextKind, policy: FetchPolicy) -> Path:
    """``path`` with all links resolved. ``kind.error`` if the policy does not allow it."""
    if not (policy.roots or policy.files):
        raise kind.error(f"the {kind.words} may not be a file here", hint=kind.in_place)
    real = Path(os.path.realpath((policy.base or policy.roots[0]) / path))
    if not policy.allows_text(str(real)) or INTERNAL_PART in real.parts:
        if policy.files is not None:
            raise kind.error(
                f"{kind.words} {path} is not the file that it was when the job was submitted",
                hint="a link on the way leads elsewhere now: submit the job again",
            )
        raise kind.error(
            f"{kind.words} {path} is not under a directory that may be read here",
            hint="put it under the data root",
        )
    return real


def _guarded_file(path: Path, kind: TextKind, policy: FetchPolicy) -> BinaryIO:
    """Open a regular file that the policy allows; links that change meanwhile cannot evade the
    check."""
    # Non-blocking: opening a pipe would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    file = os.fdopen(fd, "rb")
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a file")
        # The path of the open file is checked, too: since the first check, a directory on the way
        # may have become a link.
        _checked_path(Path(f"/proc/self/fd/{fd}").readlink(), kind, policy)
    except (OSError, ValueError, InputError):
        file.close()
        raise
    return file
