"""The paths, and what becomes of what goes wrong in them.

Holds: no more run at once than allowed; health is answered beside them. No error ends in a
500. What a store refuses is 503 with Retry-After; what nobody
expected is reported, and 503 too: the producer comes again, and nothing is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from warmer.errors import Backlogged, StoreError
from warmer.ops.server.answers import again, problem
from warmer.ops.server.body import NoRoom
from warmer.ops.server.door import Door, Refused
from warmer.ops.server.health import Health
from warmer.ops.telemetry import Report
from warmer.signals import Signals

Handler = Callable[[Request], Awaitable[Response]]
_GONE = 499
_COME_AGAIN: dict[type[BaseException], tuple[str, str]] = {
    Backlogged: ("backlogged", "too many events wait"),
    NoRoom: ("no_room", "too many large bodies at once"),
    # Nothing cancels a request but the end of a drain that took too long.
    asyncio.CancelledError: ("too_late", "this server stops"),
}


def application(
    door: Door,
    health: Health,
    *,
    signals: Signals,
    report: Report,
    max_requests: int,
    retry_after_s: int,
) -> Starlette:
    """Return the ASGI application."""
    guard = _Guard(signals, report, max_requests, retry_after_s)

    def post(path: str, handler: Handler) -> Route:
        return Route(path, guard.counted(guard.answered(handler)), methods=["POST"])

    app = Starlette(
        routes=[
            post("/v1/events", door.cloudevents),
            Route("/v1/events", guard.answered(door.handshake), methods=["OPTIONS"]),
            post("/v1/events/{source}", door.source_events),
            post("/v1/purge", door.purge),
            post("/v1/hooks/{name}", door.hook),
            post("/service/{source}/purge_all", door.purge_all),
            post("/service/{source}/purge", door.purge_keys),
            post("/service/{source}/purge/{key:path}", door.purge_keys),
            Route("/livez", guard.answered(health.alive), methods=["GET"]),
            Route("/readyz", guard.answered(health.ready), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _as_problem},
    )
    # It would lead producers, and their secrets, to whatever host the request names.
    app.router.redirect_slashes = False
    return app


@dataclass(slots=True)
class _Guard:
    """What stands around every handler."""

    signals: Signals
    report: Report
    max_requests: int
    retry_after_s: int
    running: int = 0

    def counted(self, handler: Handler) -> Handler:
        """Answer 503 at once while as many run as may."""

        async def answer(request: Request) -> Response:
            if self.running >= self.max_requests:
                return self._again("busy", "too many requests at once")
            self.running += 1
            try:
                return await handler(request)
            finally:
                self.running -= 1

        return answer

    def answered(self, handler: Handler) -> Handler:
        """Answer whatever goes wrong so that the producer knows what to do."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as exc:
                return exc.response
            except ClientDisconnect:
                return Response(status_code=_GONE)
            except (Backlogged, NoRoom, asyncio.CancelledError) as exc:
                return self._again(*_COME_AGAIN[type(exc)])
            except StoreError as exc:
                self.report("door_store_failed", error=exc)
                return self._again("store", "the event log does not answer")
            except Exception as exc:  # noqa: BLE001 - a producer must come again
                self.report("door_failed", error=exc)
                return self._again("failed", "this could not be taken")

        return answer

    def _again(self, why: str, detail: str) -> Response:
        self.signals.count("requests_refused", "any", why)
        return again(detail, in_s=self.retry_after_s)


async def _as_problem(request: Request, exc: Exception) -> Response:
    _ = request
    if not isinstance(exc, HTTPException):
        raise exc
    return problem(exc.status_code, exc.detail, headers=exc.headers)
