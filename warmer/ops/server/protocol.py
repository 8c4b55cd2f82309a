"""HTTP/1.1 as uvicorn reads it, bounded in size and in time.

Holds: a head is no larger than its bound and arrives in time, a body arrives in time, and
a connection that says nothing is closed. uvicorn with httptools bounds none of these.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes of a head; seconds for a head and for a body to arrive."""

    head_bytes: int
    head_s: float
    body_s: float


def bounded(bounds: Bounds) -> type[asyncio.Protocol]:
    """Return the protocol's class with these bounds."""
    return type("BoundedProtocol", (_Protocol,), {"bounds": bounds})


class _Protocol(HttpToolsProtocol):
    bounds: Bounds

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = True
    _refused = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._within(self.bounds.head_s)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Without the end of the head in it, all of it was head.
        if self._in_head and self._head_bytes > self.bounds.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    @override
    def on_message_begin(self) -> None:
        self._in_head = True
        self._within(self.bounds.head_s)
        super().on_message_begin()

    @override
    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        size = len(self.url) + sum(
            len(name) + len(value) for name, value in self.headers
        )
        if size > self.bounds.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        self._within(self.bounds.body_s)
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._within(None)
        if not self._refused:
            super().on_message_complete()

    def _within(self, seconds: float | None) -> None:
        """Let what is awaited take so long; None = nothing is awaited."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            None
            if seconds is None
            else self.loop.call_later(seconds, self._refuse, HTTPStatus.REQUEST_TIMEOUT)
        )

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer and close, whatever else the client sends."""
        self._refused = True
        self._within(None)
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started:
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\n"
                "content-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
        self.transport.close()
