"""The demo's change data capture: the shop's log, as Debezium would tell it.

Holds: every committed change becomes one event in the shape of Debezium's PostgreSQL
connector (JSON, schemas disabled), in the order of the log, while it is followed.
Does not hold: that order where the play emits changes itself. That is what `emit` is for:
a connector that restarts tells older changes again, after newer ones.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from warmer.clock import Clock
from warmer.ingest.formats import Message
from warmer.ingest.intake import Intake
from warmer.model.source import Source
from warmer.ops.demo.admin import OriginAdmin
from warmer.ops.demo.household import DemoError
from warmer.ops.demo.shop import Change

DATABASE = "shop"
SOURCE = "shop-db"
"""What the datasets call this database."""
_CONNECTOR = "3.6.3.Final"

Deliver = Callable[[list[Message]], Awaitable[None]]
"""Takes messages as a connector sends them; returns when what they say is in the event log."""


def debezium(change: Change, *, emitted_at_ms: int) -> Message:
    """Return the change event, as the connector's JSON converter writes it."""
    committed_ms = change.committed_at_ms
    value = {
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
            # Text that holds JSON that holds texts: so the connector has it.
            "sequence": json.dumps(
                [str(change.previous_commit), str(change.lsn)], separators=(",", ":")
            ),
            "ts_us": committed_ms * 1_000,
            "ts_ns": committed_ms * 1_000_000,
            "schema": "public",
            "table": change.table,
            "txId": change.lsn // 8,
            "lsn": change.lsn,
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
    return Message(value=value, key={"id": change.row["id"]})


def into(intake: Intake) -> Deliver:
    """Return what takes messages as a worker takes those of a Debezium sink."""
    source = Source(SOURCE, "debezium")

    async def deliver(messages: list[Message]) -> None:
        taken = await intake.take(source, messages)
        if taken.accepted != len(messages):
            raise DemoError(f"its own change events were not taken: {taken}")

    return deliver


class ChangeFeed:
    """Follows the shop's log from its start, and delivers what it finds."""

    def __init__(self, origin: OriginAdmin, *, deliver: Deliver, clock: Clock) -> None:
        self._origin = origin
        self._deliver = deliver
        self._clock = clock
        self._after_lsn = 0

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Deliver changes as they are committed, while the block runs."""
        follower = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                # What stopped it early is raised here.
                await follower

    async def take(self, count: int) -> list[Change]:
        """Return the next `count` changes of the log, without delivering them."""
        taken: list[Change] = []
        while len(taken) < count:
            taken += await self._next(at_most=count - len(taken))
        return taken

    async def emit(self, *changes: Change) -> None:
        """Deliver these changes in this order."""
        now_ms = self._clock.now_ms()
        await self._deliver(
            [debezium(change, emitted_at_ms=now_ms) for change in changes]
        )

    async def _follow(self) -> None:
        while True:
            await self.emit(*await self._next())

    async def _next(self, *, at_most: int = 100) -> list[Change]:
        changes = (await self._origin.changes_after(self._after_lsn))[:at_most]
        for change in changes:
            self._after_lsn = change.lsn
        return changes
