"""Scan the cache server for the keys that prefix events reach: one worker at a time.

Holds: a scan ends only after every name that was there throughout was looked at, and what
it reaches was invalidated. Killed, it is gone on with by another worker from where it was
noted last; on another server (a failover, a restart) it begins anew, because a cursor means
nothing there. It leaves the server at least half of the time to others.
Does not hold: that a key is invalidated once. It costs a load at most.
"""

import secrets
from collections.abc import Iterator
from random import Random

from jobs.pulse import Pulse
from warmer.clock import Clock
from warmer.invalidate import Invalidator
from warmer.model.dataset import Datasets
from warmer.model.due import Lane
from warmer.model.prefix_scan import TakenScan
from warmer.ops.telemetry import Report
from warmer.policy.backoff import retry_ms
from warmer.prefix_purge import PrefixPurge
from warmer.signals import Signals
from warmer.store.prefix_scans import PrefixScans
from warmer.store.redis_store import Names, RedisStore

COUNT = 500
"""Names in one look: about 0.1 ms of the server's time."""
LOOK_EVERY_S = 0.5
"""How often an idle worker asks whether there is a scan to do."""
LEASE_MS, KEEP_EVERY_S = 10_000, 1.0
"""When another may go on with a scan, and how often its progress is noted."""
REMEMBERED = 100_000
"""Keys of this scan that are not invalidated again when their other name is met."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.001, 0.1
_PAUSE_BASE_MS, _PAUSE_CAP_MS = 100, 5_000
_NAME = "prefix_scan"


class PrefixScan:
    """This process's part in scanning."""

    def __init__(
        self,
        *,
        scans: PrefixScans,
        store: RedisStore,
        invalidator: Invalidator,
        datasets: Datasets,
        clock: Clock,
        random: Random,
        signals: Signals,
        report: Report,
        pulse: Pulse,
    ) -> None:
        self._owner = secrets.token_hex(8)
        self._scans = scans
        self._store = store
        self._invalidator = invalidator
        self._datasets = datasets
        self._clock = clock
        self._random = random
        self._signals = signals
        self._report = report
        self._pulse = pulse
        self._kept_at = 0.0
        self._stopping = False

    async def serve(self) -> None:
        """Scan whenever it is asked for, until `stop`; an error is reported, and gone on from."""
        failures = 0
        while not self._stopping:
            self._pulse.beat(_NAME)
            try:
                scan = await self._scans.take(self._owner, lease_ms=LEASE_MS)
                if scan is None:
                    await self._clock.sleep(LOOK_EVERY_S)
                else:
                    await self._go_on(scan)
                failures = 0
            except Exception as exc:  # noqa: BLE001 - a daemon loop reports and goes on
                self._report("prefix_scan_failed", error=exc)
                pause_ms = retry_ms(
                    failures, self._random, _PAUSE_BASE_MS, _PAUSE_CAP_MS
                )
                failures += 1
                await self._clock.sleep(pause_ms / 1000)
        self._pulse.end(_NAME)

    def stop(self) -> None:
        """Let `serve` return after the names that it looks at now."""
        self._stopping = True

    async def _go_on(self, scan: TakenScan) -> None:
        """Scan to the end, or until another has taken over, or this process stops."""
        purge = PrefixPurge(scan.asks, self._datasets)
        met: set[str] = set()
        cursor, run_id = scan.cursor, scan.run_id
        self._kept_at = self._clock.monotonic()
        while True:
            self._pulse.beat(_NAME)
            began = self._clock.monotonic()
            names = await self._store.names(cursor, count=COUNT)
            if names.run_id != run_id:
                if cursor:
                    self._signals.count("scans_restarted")
                    names = await self._store.names(0, count=COUNT)
                run_id = names.run_id
                met.clear()
            await self._purge(purge, names, met)
            cursor = names.cursor
            if not cursor:
                await self._end()
                return
            if not await self._noted(cursor, run_id):
                return
            took_s = self._clock.monotonic() - began
            await self._clock.sleep(min(max(took_s, MIN_PAUSE_S), MAX_PAUSE_S))

    async def _purge(self, purge: PrefixPurge, names: Names, met: set[str]) -> None:
        if len(met) > REMEMBERED:
            met.clear()
        # Bulk: the keys of single changes go before them.
        purged = await self._invalidator.purge(
            purge.touches(_first_met(names, met)), lane=Lane.WARM
        )
        self._signals.count("names_scanned", by=len(names.keys))
        self._signals.count("keys_scanned", by=purged.results.total())

    async def _noted(self, cursor: int, run_id: str) -> bool:
        """Note the progress when it is time to; return False if this scan is to be left."""
        now = self._clock.monotonic()
        if now - self._kept_at < KEEP_EVERY_S and not self._stopping:
            return True
        self._kept_at = now
        kept = await self._scans.keep(
            self._owner,
            cursor=cursor,
            run_id=run_id,
            lease_ms=0 if self._stopping else LEASE_MS,
        )
        return kept and not self._stopping

    async def _end(self) -> None:
        if await self._scans.done(self._owner):
            self._signals.count("scans_done")


def _first_met(names: Names, met: set[str]) -> Iterator[str]:
    for key in names.keys:
        if key not in met:
            met.add(key)
            yield key
