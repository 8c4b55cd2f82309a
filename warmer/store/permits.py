"""Permits of the fleet: one script per origin, asked by every process that loads from it.

Holds: what one process is granted is granted to no other until it has given it back, or has
been silent for `ttl_ms`. A late or lost reply changes nothing of that.
Does not hold: a limit over processes that cannot reach this server; see `Admission`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from warmer.model.permit import Counts, Grant, OriginLimits, Phase, Report
from warmer.store.control_link import ControlLink
from warmer.store.keyspace import permits
from warmer.store.script import Script

_SHARE = Script("permit_share")


@dataclass(frozen=True, slots=True)
class PermitState:
    """What the table says: the limit as it is, what is held of it and wanted, by how many.

    `ends_ms`: of an origin that is open, when it is probed (Unix ms of the server).
    """

    limit: int
    phase: Phase
    ends_ms: int
    usual_ms: float
    processes: int
    held: int
    wanted: int


_PER_POOL = 5
_HELD = 4
"""Where a record of a pool has what is held, after what is wanted for each purpose."""


class Permits:
    """The permits of one origin."""

    def __init__(
        self, link: ControlLink, *, origin: str, limits: OriginLimits, ttl_ms: int
    ) -> None:
        self._link = link
        self._name = permits(origin)
        self._limits = limits
        self._ttl_ms = ttl_ms

    async def share(self, report: Report, *, now_ms: int | None = None) -> Grant:
        """Say what a process wants; return what it may use. `now_ms` is for tests."""
        limits, seen = self._limits, report.seen
        call = _SHARE.call(
            permits=self._name,
            process=report.process,
            number=report.number,
            pools=orjson.dumps(
                {
                    name: [
                        *self._pool(name),
                        *demand.wants,
                        *demand.used,
                        *demand.granted,
                    ]
                    for name, demand in report.pools.items()
                }
            ),
            seen=orjson.dumps(
                [
                    seen.ok,
                    seen.failed,
                    seen.pushed_back,
                    seen.load_ms,
                    seen.retry_after_ms,
                    seen.era,
                ]
            ),
            starts=report.starts,
            limits=orjson.dumps(
                [
                    limits.limit,
                    limits.floor,
                    limits.reserve_ratio,
                    int(limits.adaptive),
                    limits.rate,
                ]
            ),
            ttl_ms=self._ttl_ms,
            now_ms="" if now_ms is None else now_ms,
        )
        (
            _word,
            starts,
            limit,
            phase,
            retry_in_ms,
            era,
            processes,
            *flat,
        ) = await self._link.run(call)
        shares = {
            flat[at].decode(): Counts(*flat[at + 1 : at + _PER_POOL])
            for at in range(0, len(flat), _PER_POOL)
        }
        return Grant(
            shares, starts, limit, Phase(phase.decode()), retry_in_ms, era, processes
        )

    def _pool(self, name: str) -> tuple[int, int]:
        if name:
            pool = self._limits.pool_of(name)
            return pool.limit, pool.reserve
        # Not looked at: the script knows what the whole origin bears just now.
        return self._limits.limit, 0

    async def look(self) -> PermitState:
        """Return what the table says now, of the whole origin."""
        # A name's fields at one instant; the time a moment later ends no share too early.
        hgetall = self._link.redis.hgetall(self._name)
        flat = await self._link.ask(hgetall)  # type: ignore[arg-type]  # either way's type
        seconds, micros = await self._link.ask(self._link.redis.time())
        now_ms = seconds * 1000 + micros // 1000
        origin = orjson.loads(flat.pop(b"origin", b"{}"))
        live = [
            pool
            for record in map(orjson.loads, flat.values())
            if (pool := _whole(record, now_ms)) is not None
        ]
        return PermitState(
            limit=int(origin.get("limit", self._limits.limit)),
            phase=Phase(origin.get("phase", Phase.CLOSED)),
            ends_ms=int(origin.get("until_ms", 0)),
            usual_ms=float(origin.get("usual_ms", 0.0)),
            processes=len(live),
            held=sum(int(pool[_HELD]) for pool in live),
            wanted=sum(int(wants) for pool in live for wants in pool[:_HELD]),
        )


def _whole(record: object, now_ms: int) -> Sequence[float] | None:
    """Return what a live process says of the whole limit; None for what is no record."""
    match record:
        case {"ends": int() | float() as ends, "pools": {"": list() as pool}}:
            numbers = all(isinstance(number, int | float) for number in pool)
            return pool if ends > now_ms and numbers and len(pool) > _HELD else None
        case _:
            return None
