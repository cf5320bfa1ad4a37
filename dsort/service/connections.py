"""Connections that send no request are closed: each of them is a file that nobody else can open."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEAD_S_MAX", "HurriedProtocol"]

HEAD_S_MAX: Final = 30.0


class HurriedProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it with ``h11``, which bounds what comes before a body to 64 KiB.
    The head of a request has to be here ``HEAD_S_MAX`` after the connection, or after its first
    byte; uvicorn waits for it without end."""

    head_s_max = HEAD_S_MAX
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        if self._is_waiting():
            if self._closing is None:
                self._closing = self.loop.call_later(self.head_s_max, self._close)
        else:
            self._forget()

    def _is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _forget(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _close(self) -> None:
        self._closing = None
        if self._is_waiting() and not self.transport.is_closing():
            self.transport.close()
