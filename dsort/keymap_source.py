"""Fetching the text of an external key map from a file or over HTTP."""

from __future__ import annotations

import base64
import http.client
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dsort.errors import KeyMapError

__all__ = ["read_keymap_text"]

KEYMAP_BYTES_MAX = 1 << 30
ANSWER_SECONDS_MAX = 60.0  # without a byte
FETCH_SECONDS_MAX = 600.0  # altogether

_CHUNK_BYTES = 1 << 20


def read_keymap_text(
    location: str,
    *,
    bytes_max: int = KEYMAP_BYTES_MAX,
    answer_seconds_max: float = ANSWER_SECONDS_MAX,
    fetch_seconds_max: float = FETCH_SECONDS_MAX,
) -> str:
    """The text at ``location``: a path, or a ``file://``, ``http://`` or ``https://`` URL.

    UTF-8; bytes that are not become lone surrogates, as in Python's file names. ``KeyMapError`` if
    it cannot be had, is larger than ``bytes_max``, or comes too slowly. Proxies are those of the
    environment; a redirection leads to HTTP only.
    """
    scheme = match[1].lower() if (match := re.match(r"(https?|file)://", location, re.I)) else ""
    if scheme.startswith("http"):
        data = _fetched(location, bytes_max, answer_seconds_max, fetch_seconds_max)
    else:
        path = unquote(urlsplit(location).path, errors="surrogateescape") if scheme else location
        data = _read(Path(path), bytes_max)
    return data.decode("utf-8", "surrogateescape")


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise KeyMapError(
            f"cannot read external key map {path}: {reason}", hint="check ekm_file"
        ) from error
    if len(data) > bytes_max:
        raise _too_large(str(path), bytes_max)
    return data


def _fetched(url: str, bytes_max: int, answer_seconds_max: float, seconds_max: float) -> bytes:
    shown = _without_secrets(url)
    deadline = time.monotonic() + seconds_max
    data = bytearray()
    try:
        with _opener().open(_request(url), timeout=answer_seconds_max) as answer:
            announced = answer.headers.get("Content-Length", "")
            while chunk := answer.read1(_CHUNK_BYTES):
                data += chunk
                if len(data) > bytes_max:
                    raise _too_large(shown, bytes_max)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it took longer than {seconds_max:,.0f} s")
    except urllib.error.HTTPError as error:
        error.close()
        raise KeyMapError(
            f"the server answered {error.code} ({error.reason}) when asked for external key map "
            f"{shown}",
            hint="check ekm_file",
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise KeyMapError(
            f"cannot fetch external key map {shown}: {reason or type(reason).__name__}",
            hint="check ekm_file and the way there (HTTP_PROXY, firewalls)",
        ) from error
    if announced.isdecimal() and len(data) < int(announced):
        raise KeyMapError(
            f"external key map {shown} broke off after {len(data):,} of {announced} bytes"
        )
    return bytes(data)


def _request(url: str) -> urllib.request.Request:
    """The request for ``url``; a user and password in it go along as basic authentication."""
    scheme, authority, rest = re.split(r"(?<=://)([^/?#]*)", url, maxsplit=1)
    secret, _, host = authority.rpartition("@")
    request = urllib.request.Request(scheme + host + rest)
    if secret:
        token = base64.b64encode(unquote(secret).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and nothing else: the usual opener follows redirections to ftp, too."""
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", "dsort")]
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _too_large(shown: str, bytes_max: int) -> KeyMapError:
    return KeyMapError(f"external key map {shown} is larger than {bytes_max:,} bytes")


def _without_secrets(url: str) -> str:
    """``url`` without user, password, query and fragment, where tokens are."""
    return re.sub(r"(?<=://)[^/]*@", "", re.split("[?#]", url)[0])
