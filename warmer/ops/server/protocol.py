"""HTTP/1.1 as uvicorn reads it, bounded in size and in time.

Holds: a head is no larger than its bound and arrives in time, a body arrives in time, and
a connection that says nothing, or blank lines, is closed. Trailers are bounded as a head is
and otherwise passed over. uvicorn with httptools does none of these.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

_WORDS = {
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "head_too_large",
    HTTPStatus.REQUEST_TIMEOUT: "too_slow",
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes of a head; seconds for a head and for a body to arrive.

    `refused` is told in a word of each that was cut off.
    """

    head_bytes: int
    head_s: float
    body_s: float
    refused: Callable[[str], None]


def bounded(bounds: Bounds) -> type[asyncio.Protocol]:
    """Return the protocol's class with these bounds."""
    return type("BoundedProtocol", (_Protocol,), {"bounds": bounds})


class _Protocol(HttpToolsProtocol):
    bounds: Bounds

    _timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    """What came since a head or a piece of body was complete."""
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
        self._unread_bytes += len(data)
        super().data_received(data)
        # No head, and no piece of body, ended in all this: it is head, or trailers.
        if self._unread_bytes > self.bounds.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._timer is None and self.cycle is not None:
            self._between_requests(self.cycle)

    @override
    def on_message_begin(self) -> None:
        self._in_head = True
        self._within(self.bounds.head_s)
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is no header: it would come after all that its head decided.
        if self._in_head:
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._in_head = False
        self._unread_bytes = 0
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
        self._unread_bytes = 0
        if not self._refused:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._unread_bytes = 0
        self._within(None)
        if not self._refused:
            super().on_message_complete()

    def _between_requests(self, answered: RequestResponseCycle) -> None:
        """Await a head: uvicorn waits no longer for one after whatever bytes."""
        if answered.response_complete and not self.transport.is_closing():
            self._within(self.bounds.head_s)

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
        self.bounds.refused(_WORDS[status])
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.response_started:
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\n"
                "content-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
        self.transport.close()
