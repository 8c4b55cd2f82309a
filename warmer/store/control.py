"""The control server: event log, due set, dead letters.

It holds what must not be lost: never an evicting server, and with its writes on disk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from warmer.model.due import Lane
from warmer.model.job import QueuedJob
from warmer.store.control_link import ControlLink
from warmer.store.due_set import DueSet
from warmer.store.event_stream import MAX_BACKLOG, EventStream
from warmer.store.hook_log import HookLog
from warmer.store.keyspace import DEAD_LETTERS
from warmer.store.prefix_scans import PrefixScans
from warmer.store.source_states import SourceStates

MAX_DEAD_LETTERS = 10_000
"""Above it the oldest go; the server keeps up to one node (about 100) more."""


@dataclass(frozen=True, slots=True)
class Parked:
    """One dead letter as it is stored."""

    id: str
    fields: Mapping[str, str]


class ControlServer:
    """What one control server holds: `events`, `due`, `scans`, and the dead letters."""

    def __init__(
        self,
        redis: Redis,
        *,
        drain_job: Callable[[Lane], QueuedJob],
        timeout_ms: int = 2_000,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self._link = ControlLink(redis, timeout_ms=timeout_ms)
        self.events = EventStream(self._link, max_backlog=max_backlog)
        self.due = DueSet(self._link, drain_job=drain_job)
        self.scans = PrefixScans(self._link)
        self.sources = SourceStates(self._link)
        self.hooks = HookLog(self._link)

    async def ping(self) -> None:
        """Return if the server answers."""
        await self._link.ask(self._link.redis.ping())

    async def park(self, letters: Sequence[Mapping[str, str | bytes]]) -> None:
        """Set events or keys aside, for people and for replay."""
        async with self._link.redis.pipeline(transaction=False) as pipe:
            for letter in letters:
                pipe.xadd(
                    DEAD_LETTERS,
                    {name: text for name, text in letter.items()},  # noqa: C416 - widens
                    maxlen=MAX_DEAD_LETTERS,
                    approximate=True,
                )
            await self._link.ask(pipe.execute())

    async def parked(self, *, count: int = 100, after: str = "-") -> list[Parked]:
        """Return dead letters, oldest first, from the one after `after` on."""
        start = after if after == "-" else f"({after}"
        entries = await self._link.ask(
            self._link.redis.xrange(DEAD_LETTERS, start, "+", count=count)
        )
        return [
            Parked(
                id_.decode(),
                {name.decode(): text.decode() for name, text in fields.items()},
            )
            for id_, fields in entries
        ]

    async def parked_count(self) -> int:
        """Return how many dead letters there are."""
        return await self._link.ask(self._link.redis.xlen(DEAD_LETTERS))
