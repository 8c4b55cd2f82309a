"""Whether this process lives, and whether it should be sent requests.

Holds: liveness asks nothing of any server: a control server that is away is no reason to
restart this process.
"""

import asyncio
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from warmer.errors import StoreError
from warmer.ops.server.answers import Json
from warmer.store.control import ControlServer

PATIENCE_S = 1.0
"""A control server that takes longer to answer is not ready."""


class Health:
    """The two questions that a supervisor asks. `draining` is set once it is told to stop."""

    def __init__(self, control: ControlServer, *, max_backlog: int) -> None:
        self._control = control
        self._max_backlog = max_backlog
        self.draining = False

    async def alive(self, request: Request) -> Response:
        """GET /livez: this answer is the proof."""
        _ = request
        return Json({"alive": True})

    async def ready(self, request: Request) -> Response:
        """GET /readyz: 200, or 503 with the reasons."""
        _ = request
        reasons = ["draining"] if self.draining else []
        try:
            async with asyncio.timeout(PATIENCE_S):
                state = await self._control.events.state()
        except (StoreError, TimeoutError):
            reasons.append("control_server_away")
        else:
            if state.pending + (state.lag or 0) >= self._max_backlog:
                reasons.append("event_log_full")
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return Json({"ready": not reasons, "reasons": reasons}, status_code=status)
