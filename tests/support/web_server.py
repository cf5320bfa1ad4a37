"""A plain web server over a directory: no ranges, no ETags."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

from tests.support.local_servers import LocalServer, serving


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WebServer

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        if self.server.statuses:
            self.send_error(self.server.statuses.pop(0))
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        self.server.requests.append(f"HEAD {self.path}")
        super().do_HEAD()

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


class WebServer(LocalServer):
    """``requests``: all requests so far; ``statuses``: the next answers to GET, in place of a
    file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(partial(_Handler, directory=str(directory)))
        self.requests: list[str] = []
        self.statuses: list[int] = []


def web_server(directory: Path) -> AbstractContextManager[WebServer]:
    """Serve the files of ``directory`` until the end of the block."""
    return serving(WebServer(directory))
