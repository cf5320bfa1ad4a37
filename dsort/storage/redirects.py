"""Web requests that follow only redirections which the rules allow.

A redirection leads to a server with TLS, or to the server where the request began; at most
``REDIRECTS_MAX`` are followed in a row; and only the first server gets the headers that are meant
for it. Messages and errors never have the path or the query of a URL, which may be signed.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
import urllib3.exceptions
from msgspec import Struct
from urllib3.response import BaseHTTPResponse
from urllib3.util import make_headers, parse_url

from dsort.errors import StorageError, TransientStorageError
from dsort.storage.bucket import Meaning
from dsort.storage.limit import StoreLimits
from dsort.storage.objects import ObjectErrors, error_of, meaning_of_status
from dsort.version import VERSION

REDIRECTS_MAX: Final = 5
_REDIRECTIONS: Final = (301, 302, 303, 307, 308)
_CONNECT_SECONDS_MAX: Final = 10.0
_STALL_SECONDS_MAX: Final = 60.0  # without a byte
_READ_BYTES: Final = 1 << 20  # at once; urllib3 copies the bytes
_SETTLED_BYTES_MAX: Final = 64 << 10  # of a body that is not needed, to keep its connection
_SETTLE_SECONDS_MAX: Final = 5.0
_OK: Final = (200, 206)
_NATURAL: Final = r"[0-9]{1,19}"
_PORTS: Final = {"http": 80, "https": 443}


def _meaning_of_web_error(error: BaseException) -> Meaning | None:
    if isinstance(error, urllib3.exceptions.LocationValueError | ValueError):
        return Meaning(StorageError, "the store redirects its readers to an invalid URL")
    if not isinstance(error, OSError | urllib3.exceptions.HTTPError):
        return None
    if "CERTIFICATE_VERIFY" in str(error):
        text = "this machine does not trust the store's certificate"
        hint = "set SSL_CERT_FILE to the certificate of its authority"
        return Meaning(StorageError, text, hint)
    text = f"the connection to the store failed ({type(error).__name__})"
    return Meaning(TransientStorageError, text)


WebErrors = partial(ObjectErrors, _meaning_of_web_error)
"""A context, by an action, that translates errors of urllib3 into ``StorageError``."""


def origin_of(url: str) -> tuple[str, str, int]:
    """(scheme, host, port) of ``url``. ``ValueError`` if ``url`` lacks one of these, or has a
    user."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError("it is no URL of a web server")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


def is_safe_place(url: str) -> bool:
    """Whether a request to ``url`` is hidden from the network: ``url`` has TLS, or leads to this
    machine."""
    scheme, host, _ = origin_of(url)
    return scheme == "https" or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Reply(Struct, frozen=True):
    """The last reply of a chain of redirections. ``said``: the headers of all replies of the first
    server; of several headers with one name, the earliest. ``moved_to``: the URL of this reply on
    another server, or "" if no other server was reached. ``seconds_max``: the time in which all of
    ``text`` has to arrive."""

    raw: BaseHTTPResponse
    said: Mapping[str, str]
    moved_to: str
    seconds_max: float

    @property
    def status(self) -> int:
        return self.raw.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.raw.headers

    def text(self, bytes_max: int) -> bytes:
        """The whole body. ``ValueError`` if it has more than ``bytes_max`` bytes."""
        pieces, left = [], bytes_max
        for piece in _pieces(self.raw, self.seconds_max):
            left -= len(piece)
            if left < 0:
                self.raw.close()
                raise ValueError(f"it has more than {bytes_max:,} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Drop the rest of the body; if the rest is long, the connection is closed, too."""
        _settle(self.raw)


class RuledWeb:
    """Makes requests to the server of the URL ``home``, and to servers to which it redirects.
    ``headers``: only for the server of ``home``. Used by several threads at once."""

    def __init__(self, home: str, limits: StoreLimits, headers: Mapping[str, str]) -> None:
        self._home = origin_of(home)
        self._own = dict(headers)
        self._limits = limits
        self._pools: dict[str, urllib3.PoolManager] = {}

    def reply(
        self,
        action: str,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        leaves: bool = True,
    ) -> Reply:
        """The same as ``ask``, with errors that name the ``action``, as in "read x"."""
        with WebErrors(action):
            try:
                return self.ask(method, url, headers, leaves=leaves)
            except StorageError as error:
                raise StorageError(f"cannot {action}: {error}") from None

    def ask(
        self, method: str, url: str, headers: Mapping[str, str], *, leaves: bool = True
    ) -> Reply:
        """The reply to a request, whatever its status; the caller reads or closes it. ``leaves``:
        whether redirections to other servers are followed; if not, such a redirection is returned.
        ``StorageError`` for redirections that are not followed."""
        said: dict[str, str] = {}
        seconds_max = self._limits.request_seconds_max
        for _ in range(REDIRECTS_MAX + 1):
            there = origin_of(url)
            self._check(there)
            is_home = there == self._home
            raw = self._send(method, url, {**headers, **(self._own if is_home else {})})
            if is_home:
                said = {**{name.lower(): value for name, value in raw.headers.items()}, **said}
            target = raw.headers.get("Location") if raw.status in _REDIRECTIONS else None
            if target is None:
                return Reply(raw, said, "" if is_home else url, seconds_max)
            url = urljoin(url, target)
            if not leaves and origin_of(url) != self._home:
                return Reply(raw, said, "", seconds_max)
            _settle(raw)
        raise StorageError(f"the store redirects its readers more than {REDIRECTS_MAX} times")

    def body_sent_on(
        self, url: str, wanted: str, head: Callable[[], Mapping[str, Any]], action: str
    ) -> tuple[dict[str, Any], WebBody]:
        """(the fields of a reply of GetObject, the body) from ``url``, to which an S3 gateway
        redirects its reader. ``wanted``: the range as a header, or "". ``head``: requests the facts
        of the object.

        The server of the bytes has ETags of its own. So the gateway is asked for the facts of the
        object twice, before and after it redirects the reader: an object that was replaced in
        between has another ETag the second time.
        """
        reply = self.reply(action, "GET", url, {"Range": wanted} if wanted else {})
        if reply.status not in _OK:
            reply.close()
            raise error_of(meaning_of_status(reply.status), action)
        given = reply.headers.get("Content-Range", "")
        length = reply.headers.get("Content-Length", "")
        try:
            found = head()
            whole = given.rpartition("/")[2] or length
            if whole != str(found["ContentLength"]) or not re.fullmatch(_NATURAL, length):
                raise TransientStorageError(
                    f"cannot {action}: the reply is for an object of {whole[:20] or 'no'} bytes, "
                    f"the object has {found['ContentLength']:,}"
                )
        except BaseException:
            reply.raw.close()
            raise
        facts = {
            **{name: found.get(name) for name in ("LastModified", "ETag")},
            "ContentLength": int(length),
            "ContentRange": given,
        }
        return facts, WebBody(reply.raw, int(length), action)

    def _check(self, there: tuple[str, str, int]) -> None:
        scheme, host, _ = there
        stays = there == self._home or (_is_loopback(host) and _is_loopback(self._home[1]))
        if scheme != "https" and not stays:
            raise StorageError(
                f"the store redirects its readers to {scheme}://{host}, which has no TLS"
            )

    def _send(self, method: str, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        limits = self._limits
        timeout = urllib3.Timeout(
            connect=min(_CONNECT_SECONDS_MAX, limits.request_seconds_max),
            read=min(_STALL_SECONDS_MAX, limits.request_seconds_max),
        )
        return self._pool(url).request(
            method,
            url,
            headers={"User-Agent": f"dsort/{VERSION}", "Accept-Encoding": "identity", **headers},
            timeout=timeout,
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def _pool(self, url: str) -> urllib3.PoolManager:
        """The connections for ``url``, through the proxy that the environment sets, if any. This
        machine is reached without a proxy, because a proxy could read the headers."""
        scheme, host, _ = origin_of(url)
        is_direct = _is_loopback(host) or proxy_bypass(host)
        proxy = "" if is_direct else getproxies().get(scheme, "")
        pool = self._pools.get(proxy)
        if pool is None:
            more: dict[str, Any] = {"maxsize": self._limits.requests_in_flight_max}
            pool = _proxied(proxy, **more) if proxy else urllib3.PoolManager(**more)
            self._pools[proxy] = pool
        return pool


def _proxied(proxy: str, **more: Any) -> urllib3.PoolManager:
    """The connections through ``proxy``, which may have a user and a password, and may lack a
    scheme. ``StorageError``, which does not quote ``proxy``, if its scheme is not HTTP or HTTPS."""
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        auth = parse_url(url).auth
        headers = make_headers(proxy_basic_auth=unquote(auth)) if auth else None
        return urllib3.ProxyManager(url, proxy_headers=headers, **more)
    except urllib3.exceptions.HTTPError:
        text = "the proxy of the environment (http_proxy, https_proxy) has no http:// or https://"
        raise StorageError(text) from None


def _settle(raw: BaseHTTPResponse) -> None:
    """End a reply whose body is not needed. Its connection is kept if the body is short."""
    left = _SETTLED_BYTES_MAX
    with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
        for piece in _pieces(raw, _SETTLE_SECONDS_MAX):
            left -= len(piece)
            if left <= 0:
                break
    raw.close()


def _pieces(raw: BaseHTTPResponse, seconds_max: float) -> Iterator[bytes]:
    """The body, piece by piece. ``TimeoutError`` if it takes longer than ``seconds_max``."""
    until_s = time.monotonic() + seconds_max
    # Each read1 is one read of the connection. The timeout of a socket ends a silence only, and
    # read() would wait for a server that sends a byte now and then.
    while piece := raw.read1(_READ_BYTES):
        yield piece
        if time.monotonic() > until_s:
            raw.close()
            raise TimeoutError


class WebBody:
    """The body of a reply with ``size_bytes`` bytes."""

    def __init__(self, raw: BaseHTTPResponse, size_bytes: int, action: str) -> None:
        self._raw = raw
        self._left = size_bytes
        self._errors = WebErrors(action)

    def read_into(self, view: memoryview) -> int:
        """Read the next bytes into ``view``. Returns their number, 0 at the end."""
        with self._errors:
            piece = self._raw.read1(min(len(view), self._left, _READ_BYTES)) if self._left else b""
        view[: len(piece)] = piece
        self._left -= len(piece)
        return len(piece)

    def close(self) -> None:
        """Release the connection, or drop it with the bytes that were not read."""
        self._raw.close()
