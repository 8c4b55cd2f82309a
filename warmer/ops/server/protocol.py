"""HTTP/1.1 as uvicorn reads it, bounded in size and in time.

Holds: a head is no larger than its bound and arrives in time, a body arrives in time, and
a connection that says nothing, or blank lines, is closed, and so is one that does not read
its answers, or sends many requests before it has them. Trailers are bounded as a head is
and otherwise passed over. A wish for another protocol is passed over, and the body that
comes with it is read. uvicorn with httptools does none of these.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import httptools
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)

_WORDS = {
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "head_too_large",
    HTTPStatus.REQUEST_TIMEOUT: "too_slow",
    HTTPStatus.TOO_MANY_REQUESTS: "too_many_ahead",
}

MAX_AHEAD = 16
"""Requests of one connection that wait for the answers to earlier ones."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes of a head; seconds for a head and for a body to arrive, or to be read by them.

    `refused` is told in a word of each that was cut off.
    """

    head_bytes: int
    head_s: float
    body_s: float
    refused: Callable[[str], None]


class _Parser(httptools.HttpRequestParser):
    """Keeps what it leaves unread after a wish for another protocol."""

    unread = b""

    @override
    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self.unread = data[exc.args[0] :]


def bounded(bounds: Bounds) -> type[asyncio.Protocol]:
    """Return the protocol's class with these bounds."""
    return type("BoundedProtocol", (_Protocol,), {"bounds": bounds})


class _Protocol(HttpToolsProtocol):
    bounds: Bounds
    parser: _Parser

    _timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    """What came since a head or a piece of body was complete."""
    _in_head = True
    _plain_head: bytes | None = None
    """A head to be read again, without its wish for another protocol."""
    _refused = False
    _unsent: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Whatever the peer does not take at once is what it must read in time.
        transport.set_write_buffer_limits(high=0)
        self.parser = self._new_parser()
        self._within(self.bounds.head_s)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.loop.call_later(self.bounds.body_s, self.transport.abort)

    @override
    def resume_writing(self) -> None:
        self._stop_waiting_for_reader()
        super().resume_writing()

    def _stop_waiting_for_reader(self) -> None:
        if self._unsent is not None:
            self._unsent.cancel()
            self._unsent = None

    @override
    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unread_bytes += len(data)
        super().data_received(data)
        while self._plain_head is not None:
            data = self._plain_head + self.parser.unread
            self._plain_head = None
            self.parser = self._new_parser()
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
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._plain_head = self._without_wish()
            return
        self._unread_bytes = 0
        size = len(self.url) + sum(
            len(name) + len(value) for name, value in self.headers
        )
        if size > self.bounds.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        if len(self.pipeline) >= MAX_AHEAD:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS)
            return
        self._in_head = False
        self._within(self.bounds.body_s)
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        if not self._refused:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        if self._plain_head is not None:
            return
        self._unread_bytes = 0
        self._within(None)
        if not self._refused:
            super().on_message_complete()

    def _new_parser(self) -> _Parser:
        parser = _Parser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _without_wish(self) -> bytes:
        """Return the head that has just been read, without its wish.

        httptools takes what follows such a head for the other protocol's, and passes no
        body on: Java's client wishes for HTTP/2 with each of its requests.
        """
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [
            name + b": " + value for name, value in self.headers if name != b"upgrade"
        ]
        return b"\r\n".join([*lines, b"", b""])

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
        """Answer and close, whatever else the client sends.

        While an earlier request has no answer it is closed only: it would be taken for that.
        """
        self._refused = True
        self._within(None)
        if self.transport.is_closing():
            return
        self.bounds.refused(_WORDS[status])
        cycle: RequestResponseCycle | None = self.cycle
        if self._in_head:
            next_in_turn = cycle is None or cycle.response_complete
        else:
            next_in_turn = cycle is None or not cycle.response_started
        if next_in_turn:
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\n"
                "content-length: 0\r\nconnection: close\r\n\r\n".encode()
            )
        self.transport.close()
