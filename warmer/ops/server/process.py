"""`warmer serve` as a process: its socket, its signals, its end.

Holds: SIGTERM drains: not ready from then on, no new connection, running requests finish
within `serve.drain_timeout`, and the exit status is 0.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import uvicorn
from typing_extensions import override

from warmer.clock import SystemClock
from warmer.errors import WarmerError
from warmer.ingest.intake import Intake
from warmer.model.dataset_config import Configuration
from warmer.ops import telemetry
from warmer.ops.notify import Notifier
from warmer.ops.server.app import application
from warmer.ops.server.door import Door
from warmer.ops.server.health import Health
from warmer.ops.server.protocol import Bounds, bounded
from warmer.settings import Serve, milliseconds
from warmer.wiring import DoorParts, open_door_parts

log = logging.getLogger("warmer.serve")

BACKLOG = 1_024
CONNECTIONS_PER_REQUEST = 4
"""Most connections of producers' pools wait for their next request."""
KEEP_ALIVE_S = 30
"""Longer than producers pause between two events of a busy source."""
_FIRST_INHERITED = 3


def main(configuration: Configuration) -> int:
    """Serve until told to stop; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    return asyncio.run(serve(configuration))


async def serve(configuration: Configuration) -> int:
    """Serve in this event loop until SIGTERM or SIGINT."""
    report = telemetry.start(configuration.settings.sentry, clock=SystemClock())
    try:
        async with open_door_parts(configuration) as parts:
            await _serve(parts, report, Notifier())
    finally:
        report.close()
    return 0


async def _serve(
    parts: DoorParts, report: telemetry.Report, notifier: Notifier
) -> None:
    settings = parts.settings.serve
    health = Health(parts.control, max_backlog=settings.max_backlog)
    door = Door(
        sources=parts.sources,
        hooks=parts.hooks,
        intake=Intake(
            log=parts.log,
            letters=parts.control,
            clock=parts.clock,
            signals=parts.signals,
            report=report,
        ),
        hook_log=parts.control.hooks,
        clock=parts.clock,
        signals=parts.signals,
        max_body=settings.max_body,
    )
    app = application(
        door,
        health,
        signals=parts.signals,
        report=report,
        max_requests=settings.max_requests,
        retry_after_s=milliseconds(settings.retry_after) // 1000,
    )
    server = _Server(
        uvicorn.Config(
            app,
            http=bounded(
                Bounds(
                    settings.max_head,
                    settings.head_timeout.total_seconds(),
                    settings.body_timeout.total_seconds(),
                    partial(parts.signals.count, "requests_refused", "any"),
                )
            ),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=settings.max_requests * CONNECTIONS_PER_REQUEST,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(settings.drain_timeout.total_seconds()),
        )
    )
    # It warns of every malformed request: whoever reaches the port would fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    def stop() -> None:
        health.draining = True
        server.should_exit = True
        log.info("server_draining")
        notifier.stopping(within_s=settings.drain_timeout.total_seconds())

    with _listening(settings) as listener, _on_signals(stop):
        _send_at_once(listener)
        async with _watched(server, parts, notifier):
            log.info("server_ready listen=%s", _address(listener))
            notifier.ready(f"listening on {_address(listener)}")
            await server.serve(sockets=[listener])
    log.info("server_drained")


class ListenError(WarmerError):
    """The address cannot be listened on."""


class _Server(uvicorn.Server):
    """uvicorn's, without its own hold of the signals: it would raise them again."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _on_signals(stop: "object") -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _listening(settings: Serve) -> Iterator[socket.socket]:
    """Give the listening socket: systemd's, if it hands one over, else a new one."""
    inherited = os.environ  # noqa: TID251 - systemd's own protocol, not a setting
    if inherited.get("LISTEN_PID") == str(os.getpid()) and inherited.get("LISTEN_FDS"):
        with socket.socket(fileno=_FIRST_INHERITED) as listener:
            yield listener
        return
    unix = settings.listen.startswith("unix:")
    try:
        listener = _unix_listener(settings) if unix else _tcp_listener(settings)
    except OSError as exc:
        raise ListenError(
            f"cannot listen on {settings.listen}: {exc.strerror}"
        ) from exc
    with listener:
        yield listener
    if unix:
        with contextlib.suppress(FileNotFoundError):
            _unix_path(settings).unlink()


def _send_at_once(listener: socket.socket) -> None:
    """Have answers sent without waiting for the peer to acknowledge their first part.

    asyncio does it for sockets that it made; others it does not know for TCP, and each
    answer would take the 40 ms by which a peer delays.
    """
    if listener.family in {socket.AF_INET, socket.AF_INET6}:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _tcp_listener(settings: Serve) -> socket.socket:
    host, _, port = settings.listen.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    address = (host.strip("[]"), int(port))
    return socket.create_server(address, family=family, backlog=BACKLOG)


def _unix_listener(settings: Serve) -> socket.socket:
    path = _unix_path(settings)
    if path.is_socket() and not _is_listened_on(path):
        # What is left of a process that was killed.
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _unix_path(settings: Serve) -> Path:
    return Path(settings.listen.removeprefix("unix:"))


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"unix:{name}" if isinstance(name, str) else f"{name[0]}:{name[1]}"


@contextlib.asynccontextmanager
async def _watched(
    server: uvicorn.Server, parts: DoorParts, notifier: Notifier
) -> AsyncIterator[None]:
    """Feed systemd's watchdog while this loop gets round."""
    every_s = notifier.watchdog_s
    if every_s is None:
        yield
        return

    async def feed() -> None:
        while not server.should_exit:
            notifier.alive()
            await parts.clock.sleep(every_s)

    feeding = asyncio.create_task(feed())
    try:
        yield
    finally:
        feeding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await feeding
