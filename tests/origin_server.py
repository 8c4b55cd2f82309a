"""A real HTTP/1.1 origin that answers as badly as a test asks, byte for byte.

    async with OriginServer() as origin:
        origin.on("/products/42", json_answer({"price": 1990}, version=42))
        ... load from origin.url ...
        assert origin.loads("/products/42") == 1

What it saw: `requests` (targets and headers as they came over the wire), `loads(target)`,
`running` and `max_running` (noted at each start, so no peak is missed), the same for those
whose X-From header says so, `connections`.
What it does: see `Reply`. What waits for what: `origin.hold()` keeps every answer back
until `origin.let_go()`; `await origin.sees(running=3)` returns once three run at once.
A target that was not told of is answered with 404.
"""

import asyncio
import gzip
import json
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from warmer.clock import SystemClock

HOST = "127.0.0.1"
_CLOCK = SystemClock()
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came: the target's bytes, and headers by lower-case name."""

    method: str
    target: str
    headers: dict[str, str]
    connection: int


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Without `declared`, Content-Length is the body's; None leaves it out.

    delay_s: before the first byte. hang: never answers. drop_at: the connection is reset
    after so many bytes of the body (0: after the head; -1: without any answer). trickle_s:
    between single bytes of the body. close: the connection ends after the answer.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    declared: int | None = -1
    delay_s: float = 0
    hang: bool = False
    drop_at: int | None = None
    trickle_s: float = 0
    close: bool = False
    raw: bytes | None = None


def json_answer(
    value: object, *, version: int | str | None = None, delay_s: float = 0
) -> Reply:
    """200 with `value` as JSON, and X-Version."""
    headers = {"Content-Type": "application/json"}
    if version is not None:
        headers["X-Version"] = str(version)
    return Reply(body=json.dumps(value).encode(), headers=headers, delay_s=delay_s)


def redirect(location: str, status: int = 302) -> Reply:
    return Reply(status=status, headers={"Location": location})


def gzipped(reply: Reply) -> Reply:
    headers = {**reply.headers, "Content-Encoding": "gzip"}
    return replace(reply, body=gzip.compress(reply.body), headers=headers)


def gzip_bomb(inflated_bytes: int) -> Reply:
    """Zeros, a thousandth of their size on the wire; its checksum is never reached."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    zeros = bytes(1024 * 1024)
    start = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    # After a full flush a block leans on nothing before it, so it may be said again.
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    body = start + block * (inflated_bytes // len(zeros) - 1) + packer.flush()
    return Reply(body=body, headers={"Content-Encoding": "gzip"})


class OriginServer:
    """See the module."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.running = 0
        self.max_running = 0
        self.running_from: Counter[str] = Counter()
        self.max_running_from: Counter[str] = Counter()
        self.connections = 0
        self.open_connections = 0
        self.drop_reused = 0
        """So many requests on a connection used before end it, unanswered."""
        self._replies: dict[str, deque[Reply]] = {}
        self._gate = asyncio.Event()
        self._gate.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse connections from now on, and reset those that are open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what it is told --------------------------------------------------------------

    def on(self, target: str, *replies: Reply) -> None:
        """Answer `target` with these in turn, the last one for ever."""
        self._replies[target] = deque(replies)

    def hold(self) -> None:
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    # --- what it saw ------------------------------------------------------------------

    def loads(self, target: str) -> int:
        return sum(request.target == target for request in self.requests)

    async def sees(self, *, running: int) -> None:
        """Return once exactly so many requests run."""
        await self.until(lambda: self.running == running)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Return once it has."""
        while not happened():
            await _CLOCK.sleep(0.002)

    # --- serving ----------------------------------------------------------------------

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        number = self.connections
        try:
            await self._serve(reader, writer, number)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        used, early = False, b""
        while True:
            head = early + await reader.readuntil(b"\r\n\r\n")
            if used and self.drop_reused:
                self.drop_reused -= 1
                return
            used = True
            seen = _seen(head, number)
            self.requests.append(seen)
            sender = seen.headers.get("x-from", "")
            self._started(sender)
            # A client that goes away ends its request: nothing runs for nobody.
            next_byte = asyncio.create_task(reader.read(1))
            answering = asyncio.create_task(self._answer(seen, writer))
            try:
                await asyncio.wait(
                    (next_byte, answering), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                self.running -= 1
                self.running_from[sender] -= 1
                next_byte.cancel()
                answering.cancel()
                results = await asyncio.gather(
                    next_byte, answering, return_exceptions=True
                )
            if results[1] is not True:
                return
            early = results[0] if isinstance(results[0], bytes) else b""

    def _started(self, sender: str) -> None:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        self.running_from[sender] += 1
        most = self.max_running_from
        most[sender] = max(most[sender], self.running_from[sender])

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; True if the connection goes on."""
        await self._gate.wait()
        reply = self._reply(seen.target)
        if reply.hang:
            await asyncio.Event().wait()
        await _CLOCK.sleep(reply.delay_s)
        if reply.drop_at == -1:
            return False
        writer.write(_head(reply) if reply.raw is None else reply.raw)
        await writer.drain()
        await self._body(reply, writer)
        return not (reply.close or reply.drop_at is not None or reply.declared is None)

    async def _body(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        body = reply.body if reply.drop_at is None else reply.body[: reply.drop_at]
        step = 1 if reply.trickle_s else _CHUNK
        for start in range(0, len(body), step):
            await _CLOCK.sleep(reply.trickle_s)
            writer.write(body[start : start + step])
            await writer.drain()
        if reply.drop_at is not None or reply.close or reply.declared is None:
            writer.close()
            await writer.wait_closed()

    def _reply(self, target: str) -> Reply:
        replies = self._replies.get(target)
        if replies is None:
            return Reply(status=404)
        return replies.popleft() if len(replies) > 1 else replies[0]


def _seen(head: bytes, connection: int) -> Seen:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _version = first.split(" ")
    pairs = (line.split(": ", 1) for line in lines if line)
    return Seen(
        method, target, {name.lower(): value for name, value in pairs}, connection
    )


def _head(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} Word"]
    if reply.declared is not None:
        length = len(reply.body) if reply.declared == -1 else reply.declared
        lines.append(f"Content-Length: {length}")
    if reply.close:
        lines.append("Connection: close")
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
