"""A plain web server over a directory: no ranges, no ETags."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


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
        """No test reads it."""


class WebServer(ThreadingHTTPServer):
    """``requests`` were made; ``statuses`` are the next answers to GET, instead of a file."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(directory)))
        self.requests: list[str] = []
        self.statuses: list[int] = []

    @property
    def host(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def web_server(directory: Path) -> Iterator[WebServer]:
    """Serve the files of ``directory`` until the end of the block."""
    with WebServer(directory) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
