"""HTTP for URLs in a spec: key maps to fetch, webhooks to call.

For a spec that came over the network, a :class:`~dsort.storage.network_policy.FetchPolicy` sets
which servers may be reached. The check is made for the address of the socket, at each hop of a
redirection, because the name of the server may lead to any address.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import urllib.request
from typing import Any

from dsort.storage.network_policy import FetchPolicy


class RefusedConnectionError(Exception):
    """The policy does not allow the connection; the text names the address and the reason."""


def web_opener(
    policy: FetchPolicy | None, *, redirects: bool = True, seconds_max: float | None = None
) -> urllib.request.OpenerDirector:
    """An opener for HTTP and HTTPS only; the opener of the standard library would also follow
    redirections to ftp.

    Without a ``policy``, it uses the proxies of the environment. With a ``policy``, it uses no
    proxies, and raises ``RefusedConnectionError`` for all that the policy forbids. ``redirects``:
    whether redirections are followed. ``seconds_max``: under a policy, a connection is cut after
    this time, even if bytes still arrive.
    """
    handlers: list[urllib.request.BaseHandler] = (
        [
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
        ]
        if policy is None
        else [_GuardedHandler(policy, seconds_max)]
    )
    if redirects:
        handlers.append(urllib.request.HTTPRedirectHandler())
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", "dsort")]
    for handler in (
        *handlers,
        urllib.request.UnknownHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


class _GuardedConnection(http.client.HTTPConnection):
    """Connects only to servers that the policy allows."""

    # Built on the standard library, whose ``connect`` is public. To check the address of the socket
    # itself, urllib3 and httpx offer only private methods to override (``_new_conn``), which a new
    # version may stop calling. That would disable the guard without any error.

    scheme = "http"

    def __init__(
        self,
        host: str,
        timeout: float | None,
        policy: FetchPolicy,
        seconds_max: float | None = None,
    ) -> None:
        super().__init__(host, timeout=timeout)
        self._policy = policy
        self._seconds_max = seconds_max

    def connect(self) -> None:
        """Resolve the name once, and connect to one of the addresses that may be reached."""
        self.sock = self._connected()
        self._bound(self.sock)

    def _bound(self, sock: socket.socket) -> None:
        """Cut the connection after its time. A timeout limits each read only, and a server may send
        a byte now and then."""
        if self._seconds_max is not None:
            cut = threading.Timer(self._seconds_max, _cut, (sock,))
            cut.daemon = True
            cut.start()

    def _connected(self) -> socket.socket:
        shown = f"{self.host}:{self.port}"
        if not self._policy.allows_host(self.scheme, self.host, self.port):
            raise RefusedConnectionError(f"{shown} here")
        refusals = []
        problem: OSError | None = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            refusal = self._policy.refusal_of_address(str(address[0]))
            if refusal:
                refusals.append(refusal)
                continue
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self.timeout)
                sock.connect(address)
                refusal = self._policy.refusal_of_address(str(sock.getpeername()[0]))
            except OSError as error:
                sock.close()
                problem = error
                continue
            if not refusal:
                return sock
            sock.close()
            refusals.append(refusal)
        if problem is not None:
            raise problem
        raise RefusedConnectionError(f"{shown} here: {'; '.join(refusals)}")


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # usually the socket is closed already
        sock.shutdown(socket.SHUT_RDWR)


class _GuardedTlsConnection(_GuardedConnection):
    """The same over TLS. The certificate has to be valid for the host."""

    scheme = "https"
    default_port = http.client.HTTPS_PORT

    def connect(self) -> None:
        """Connect, and do the TLS handshake."""
        sock = self._connected()
        try:
            context = ssl.create_default_context()
            self._bound(sock)  # the handshake is limited, too
            self.sock = context.wrap_socket(sock, server_hostname=self.host)
            self._bound(self.sock)
        except (OSError, ValueError):
            sock.close()
            raise


class _GuardedHandler(urllib.request.AbstractHTTPHandler):
    """Makes a guarded connection for each hop."""

    def __init__(self, policy: FetchPolicy, seconds_max: float | None = None) -> None:
        super().__init__()
        self._policy = policy
        self._seconds_max = seconds_max

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request over HTTP."""
        return self.do_open(self._maker(_GuardedConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Send a request over HTTPS."""
        return self.do_open(self._maker(_GuardedTlsConnection), request)

    def _maker(self, connection: type[_GuardedConnection]) -> Any:
        return lambda host, *, timeout: connection(host, timeout, self._policy, self._seconds_max)

    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_
