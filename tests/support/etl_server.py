"""A program that changes objects over HTTP, as AIStore's ETL containers do: ``hpush://``.

The answer to a PUT is its body, changed. A request for a member with ``bad`` in its name fails.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from tests.support.service_process import await_that


class EtlServer:
    """``url``: where it is. ``seen``: the path and query of each request."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[str] = []
        self._times: dict[str, int] = {}
        self.app = FastAPI()
        self.app.put("/{path:path}")(self.change)

    async def change(self, path: str, request: Request) -> Response:
        """The body in capitals; ``?etl_args=echo``: as it is."""
        self.seen.append(f"{path}?{request.url.query}")
        data = await request.body()
        how = path.rpartition("/")[2].partition(".")[0]
        self._times[how] = self._times.get(how, 0) + 1
        if how == "bad-500":
            raise HTTPException(500, "no such picture")
        if how == "bad-stall":
            await asyncio.Event().wait()
        if how == "bad-cut":
            return StreamingResponse(self._cut(), headers={"Content-Length": "1000"})
        if how == "busy" and self._times[how] < 3:
            raise HTTPException(503, "later")
        is_echo = request.query_params.get("etl_args") == "echo"
        return Response(data if is_echo else data.upper())

    @staticmethod
    async def _cut() -> AsyncIterator[bytes]:
        yield b"only this"


@contextmanager
def etl_server() -> Iterator[EtlServer]:
    """A server that runs in a thread."""
    etl = EtlServer()
    config = uvicorn.Config(etl.app, "127.0.0.1", 0, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    await_that(lambda: server.started or None)
    port = server.servers[0].sockets[0].getsockname()[1]
    etl.url = f"http://127.0.0.1:{port}"
    try:
        yield etl
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
