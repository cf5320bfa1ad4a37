"""A web server that hooks can call, and a program for them to run. Both keep each notice that they
receive."""

from __future__ import annotations

import json
import queue
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.local_servers import LocalServer, QuietHandler, serving

BODY_BYTES_MAX = 1 << 20
DRIP = -1


class _Handler(QuietHandler):
    server: HookServer

    def do_POST(self) -> None:
        size_bytes = min(int(self.headers.get("Content-Length", "0")), BODY_BYTES_MAX)
        self.server.notices.put(json.loads(self.rfile.read(size_bytes)))
        self.server.paths.append(self.path)
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        if status == DRIP:
            self._drip()
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _drip(self) -> None:
        """Answer with one header line after the other, until the client closes the connection."""
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while not self.server.ended.wait(0.02):
                self.wfile.write(b"X-More: to come\r\n")
        except OSError:
            self.server.cut.set()


class HookServer(LocalServer):
    """``notices``: the documents of all requests; ``statuses``: the next answers, then 204;
    ``cut``: whether the client has closed the connection during an endless answer (``DRIP``)."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.notices: queue.Queue[dict[str, Any]] = queue.Queue()
        self.paths: list[str] = []
        self.statuses: list[int] = []
        self.cut, self.ended = threading.Event(), threading.Event()

    def shutdown(self) -> None:
        self.ended.set()
        super().shutdown()


def hook_server() -> AbstractContextManager[HookServer]:
    """A server until the end of the block."""
    return serving(HookServer())


def hook_program(directory: Path, *, exit_code: int = 0) -> tuple[tuple[str, ...], Path]:
    """(a program with its arguments, the file that it writes its input and variables to)."""
    program, received = directory / "hook.sh", directory / "received.json"
    program.write_text(
        "#!/bin/sh\n"
        'cat > "$1.part"\n'
        'printf "%s %s" "$DSORT_EVENT" "$DSORT_JOB_ID" > "$1.variables"\n'
        'mv "$1.part" "$1"\n'
        f'[ {exit_code} = 0 ] || echo "no page today" >&2\nexit {exit_code}\n'
    )
    program.chmod(0o700)
    return (str(program), str(received)), received
