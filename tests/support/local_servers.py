"""Web servers of tests on this machine, in a thread, or two in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from tests.support.commands import ROOT


class QuietHandler(BaseHTTPRequestHandler):
    """HEAD is answered as GET is; no test reads a log."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.send_error(501)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


class LocalServer(ThreadingHTTPServer):
    """A server on 127.0.0.1, at any free port."""

    daemon_threads = True

    def __init__(self, handler: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def host(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients close connections before the end of an answer."""


Server = TypeVar("Server", bound=LocalServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """``server`` answers until the end of the block."""
    with server:
        # ``shutdown`` waits for the end of an interval, which is half a second by default.
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def process_of_two(
    module: str, directory: Path, env: Mapping[str, str]
) -> Iterator[tuple[int, str, str]]:
    """A process that calls :func:`serve_two` over ``directory``: its id, and the URLs of both
    servers."""
    directory.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        one, other = process.stdout.readline().decode().split()
        yield process.pid, one, other
    finally:
        process.kill()
        process.communicate()


def serve_two(one: LocalServer, other: LocalServer) -> None:
    """Print the URLs of both servers, and answer requests until the end of the process."""
    # Both have listened since they were made: a client may connect before they serve.
    threading.Thread(target=other.serve_forever, daemon=True).start()
    os.write(1, f"{one.url} {other.url}\n".encode())
    one.serve_forever()
