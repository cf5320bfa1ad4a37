"""HTTP for what a spec names: key maps to fetch, webhooks to call.

For a spec that came over the network, a :class:`~dsort.storage.network_policy.FetchPolicy` says
which servers may be reached. It is asked about what is really connected to, not about its name: the
address that the socket has, each hop of a redirection.
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

__all__ = ["RefusedConnectionError", "web_opener"]


class RefusedConnectionError(Exception):
    """The policy does not allow the connection; the text says to where, and why."""


def web_opener(
    policy: FetchPolicy | None, *, redirects: bool = True, seconds_max: float | None = None
) -> urllib.request.OpenerDirector:
    """HTTP and nothing else: the usual opener follows redirections to ftp, too.

    Without a ``policy`` proxies are those of the environment; with one there are none, and whatever
    it forbids is a ``RefusedConnectionError``. ``redirects``: whether they are followed.
    ``seconds_max``: under a policy, a connection is cut then, however often a byte comes.
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
    """Connects to what the policy allows, and to nothing else."""

    # On the standard library: to judge the address of the socket itself, urllib3 and httpx have
    # only private methods to override (``_new_conn``), which a new version may stop calling. That
    # would open the guard without a word; ``connect`` is public.

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
        """Cut the connection at its time: a time-out is of each read, and a server may drip."""
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
    with contextlib.suppress(OSError):  # it is closed already, as a rule
        sock.shutdown(socket.SHUT_RDWR)


class _GuardedTlsConnection(_GuardedConnection):
    """The same over TLS; the certificate has to be the host's."""

    scheme = "https"
    default_port = http.client.HTTPS_PORT

    def connect(self) -> None:
        """Connect, and shake hands."""
        sock = self._connected()
        try:
            context = ssl.create_default_context()
            self._bound(sock)  # also while hands are shaken
            self.sock = context.wrap_socket(sock, server_hostname=self.host)
            self._bound(self.sock)
        except (OSError, ValueError):
            sock.close()
            raise


class _GuardedHandler(urllib.request.AbstractHTTPHandler):
    """Asks the policy before each hop."""

    def __init__(self, policy: FetchPolicy, seconds_max: float | None = None) -> None:
        super().__init__()
        self._policy = policy
        self._seconds_max = seconds_max

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server over HTTP."""
        return self.do_open(self._maker(_GuardedConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Ask a server over HTTPS."""
        return self.do_open(self._maker(_GuardedTlsConnection), request)

    def _maker(self, connection: type[_GuardedConnection]) -> Any:
        return lambda host, *, timeout: connection(host, timeout, self._policy, self._seconds_max)

    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_
