"""The paths, and what becomes of what goes wrong in them.

Holds: no error ends in a 500. What a store refuses is 503 with Retry-After; what nobody
expected is reported, and 503 too: the producer comes again, and nothing is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from warmer.errors import Backlogged, StoreError
from warmer.ops.server.answers import again, problem
from warmer.ops.server.door import Door, Refused
from warmer.ops.server.health import Health
from warmer.ops.telemetry import Report
from warmer.signals import Signals

Handler = Callable[[Request], Awaitable[Response]]
_GONE = 499


def application(
    door: Door, health: Health, *, signals: Signals, report: Report, retry_after_s: int
) -> Starlette:
    """Return the ASGI application."""

    def answered(handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as exc:
                return exc.response
            except ClientDisconnect:
                return Response(status_code=_GONE)
            except Backlogged:
                signals.count("requests_refused", "any", "backlogged")
                return again("too many events wait", in_s=retry_after_s)
            except StoreError as exc:
                signals.count("requests_refused", "any", "store")
                report("door_store_failed", error=exc)
                return again("the event log does not answer", in_s=retry_after_s)
            except asyncio.CancelledError:
                raise
            except Exception as exc:  # noqa: BLE001 - a producer must come again
                signals.count("requests_refused", "any", "failed")
                report("door_failed", error=exc)
                return again("this could not be taken", in_s=retry_after_s)

        return answer

    def post(path: str, handler: Handler) -> Route:
        return Route(path, answered(handler), methods=["POST"])

    return Starlette(
        routes=[
            post("/v1/events", door.cloudevents),
            Route("/v1/events", answered(door.handshake), methods=["OPTIONS"]),
            post("/v1/events/{source}", door.source_events),
            post("/v1/purge", door.purge),
            post("/v1/hooks/{name}", door.hook),
            post("/service/{source}/purge_all", door.purge_all),
            post("/service/{source}/purge", door.purge_keys),
            post("/service/{source}/purge/{key:path}", door.purge_keys),
            Route("/livez", answered(health.alive), methods=["GET"]),
            Route("/readyz", answered(health.ready), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _as_problem},
    )


async def _as_problem(request: Request, exc: Exception) -> Response:
    _ = request
    if not isinstance(exc, HTTPException):
        raise exc
    return problem(exc.status_code, exc.detail, headers=exc.headers)
