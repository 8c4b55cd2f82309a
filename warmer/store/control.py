"""The control server: event log, due set, dead letters, permits.

It holds what must not be lost: never an evicting server, and with its writes on disk.
"""

from collections.abc import Callable, Sequence

from redis.asyncio import Redis

from warmer.model.due import Lane
from warmer.model.job import QueuedJob
from warmer.model.permit import OriginLimits
from warmer.store.control_link import ControlLink
from warmer.store.dead_letters import DeadLetterBox, Letter, Parked
from warmer.store.due_set import DueSet
from warmer.store.event_stream import MAX_BACKLOG, EventStream
from warmer.store.hook_log import HookLog
from warmer.store.permits import Permits
from warmer.store.prefix_scans import PrefixScans
from warmer.store.source_states import SourceStates

PERMIT_TIMEOUT_MS = 500
"""Of one report: three more fit into the term of a share."""


class ControlServer:
    """What one control server holds: `events`, `due`, `scans`, `sources`, `hooks`, `dead`."""

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
        self.dead = DeadLetterBox(self._link)
        self._permit_link = ControlLink(
            redis, timeout_ms=min(timeout_ms, PERMIT_TIMEOUT_MS)
        )

    def permits(self, origin: str, limits: OriginLimits, *, ttl_ms: int) -> Permits:
        """Return the permits of one origin."""
        return Permits(self._permit_link, origin=origin, limits=limits, ttl_ms=ttl_ms)

    async def ping(self) -> None:
        """Return if the server answers."""
        await self._link.ask(self._link.redis.ping())

    async def park(self, letters: Sequence[Letter]) -> int:
        """Set events or keys aside; return how many older letters went for it."""
        return await self.dead.park(letters)

    async def parked(self, *, count: int = 100, after: str = "-") -> list[Parked]:
        """Return dead letters, oldest first, from the one after `after` on."""
        return await self.dead.oldest(count=count, after=after)

    async def parked_count(self) -> int:
        """Return how many dead letters there are."""
        return await self.dead.count()
