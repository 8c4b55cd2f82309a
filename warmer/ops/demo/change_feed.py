"""The demo's change data capture: the shop's log, as Debezium would tell it.

Holds: every committed change becomes one event in the shape of Debezium's PostgreSQL
connector (JSON, schemas disabled), in the order of the log, while it is followed.
Does not hold: that order where the play emits changes itself. That is what `emit` is for:
a connector that restarts tells older changes again, after newer ones.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import orjson

from warmer.clock import Clock
from warmer.ops.demo.admin import OriginAdmin
from warmer.ops.demo.shop import Change

DATABASE = "shop"
SCHEMA = "public"
_CONNECTOR = "3.6.3.Final"

Deliver = Callable[[list[bytes]], Awaitable[None]]
"""Takes events as they come from the wire, and returns when they are in the event log."""


def debezium(change: Change, *, emitted_at_ms: int) -> bytes:
    """Return the change event, as the connector's JSON converter writes it."""
    committed_ms, position = change.committed_at_ms, change.position
    return orjson.dumps(
        {
            # REPLICA IDENTITY DEFAULT: an update does not tell the row before it.
            "before": None,
            "after": change.row,
            "source": {
                "version": _CONNECTOR,
                "connector": "postgresql",
                "name": DATABASE,
                "ts_ms": committed_ms,
                "snapshot": "false",
                "db": DATABASE,
                # A string that holds JSON that holds strings: so the connector has it.
                "sequence": json.dumps(
                    [str(position.previous_commit), str(position.lsn)],
                    separators=(",", ":"),
                ),
                "ts_us": committed_ms * 1_000,
                "ts_ns": committed_ms * 1_000_000,
                "schema": SCHEMA,
                "table": change.table,
                "txId": position.lsn // 8,
                "lsn": position.lsn,
                "xmin": None,
                "origin": None,
                "origin_lsn": None,
            },
            "transaction": None,
            "op": "u",
            "ts_ms": emitted_at_ms,
            "ts_us": emitted_at_ms * 1_000,
            "ts_ns": emitted_at_ms * 1_000_000,
        }
    )


class ChangeFeed:
    """Follows the shop's log from `after_lsn` on, and delivers what it finds."""

    def __init__(
        self, origin: OriginAdmin, *, deliver: Deliver, clock: Clock, after_lsn: int = 0
    ) -> None:
        self._origin = origin
        self._deliver = deliver
        self._clock = clock
        self._after_lsn = after_lsn

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Deliver changes as they are committed, while the block runs."""
        async with asyncio.TaskGroup() as group:
            follower = group.create_task(self._follow())
            try:
                yield
            finally:
                follower.cancel()

    async def take(self) -> list[Change]:
        """Return the next changes of the log, without delivering them."""
        changes = await self._origin.changes_after(self._after_lsn)
        for change in changes:
            self._after_lsn = max(self._after_lsn, change.position.lsn)
        return changes

    async def emit(self, changes: Iterable[Change]) -> None:
        """Deliver these changes in this order."""
        now_ms = self._clock.now_ms()
        events = [debezium(change, emitted_at_ms=now_ms) for change in changes]
        if events:
            await self._deliver(events)

    async def _follow(self) -> None:
        while True:
            await self.emit(await self.take())
