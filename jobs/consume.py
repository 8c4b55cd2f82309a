"""Read the event log: decode, invalidate, acknowledge; what cannot be read is set aside.

Holds: an event is acknowledged only after it was applied or became a dead letter. What
this process holds when it dies is taken over by another; while it lives and works, it is
not. One event that cannot be applied, or ends whoever applies it, does not hold up the
others.
Does not hold: order. Versions decide.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

from jobs.pulse import Pulse
from jobs.take_over import take_over
from warmer.clock import Clock
from warmer.errors import EventError, StoreError
from warmer.ingest.dead_letters import event_letter
from warmer.ingest.event_log import decode
from warmer.invalidate import Invalidator
from warmer.model.event import Event
from warmer.ops.telemetry import Report
from warmer.policy.backoff import retry_ms
from warmer.signals import Signals
from warmer.store.consumer_group import StreamEntry
from warmer.store.control import ControlServer
from warmer.store.event_stream import Logged, given

BLOCK_MS = 500
"""How long one read waits. Short, because a reader is not cut off when it stops: what
it was just given would lie until another takes it over."""
ABANDONED_MS = 5_000
"""Entries that lie this long are taken over; a live consumer says three times in that time
that it is at work. Taken from a process that was only paused, they are applied twice."""
_PAUSE_BASE_MS, _PAUSE_CAP_MS = 100, 5_000


class Consumer:
    """A reader of the event log, under a name of its own; a process may have several.

    `on_due` is called when keys became due: this process need not wait for arq's poll.
    """

    def __init__(
        self,
        *,
        control: ControlServer,
        invalidator: Invalidator,
        batch: int,
        clock: Clock,
        random: Random,
        signals: Signals,
        report: Report,
        pulse: Pulse,
        on_due: Callable[[], None],
        abandoned_ms: int = ABANDONED_MS,
    ) -> None:
        # A name of this process's life: a shared one would hide a crashed one's batch.
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._loop = f"consumer:{self.name}"
        self._control = control
        self._events = control.events
        self._invalidator = invalidator
        self._batch = batch
        self._clock = clock
        self._random = random
        self._signals = signals
        self._report = report
        self._pulse = pulse
        self._on_due = on_due
        self._abandoned_ms = abandoned_ms
        self._claimed_at = clock.monotonic()
        self._stopping = False

    async def serve(self) -> None:
        """Read until `stop`; an error is reported, and the same entries come again."""
        failures = 0
        while not self._stopping:
            self._pulse.beat(self._loop)
            try:
                if failures:
                    await self._apply(await self._unfinished())
                await self._apply(await self._next())
                failures = 0
            except Exception as exc:  # noqa: BLE001 - a daemon loop reports and goes on
                self._report("event_log_failed", error=exc)
                pause_ms = retry_ms(
                    failures, self._random, _PAUSE_BASE_MS, _PAUSE_CAP_MS
                )
                failures += 1
                await self._clock.sleep(pause_ms / 1000)
        with contextlib.suppress(StoreError):
            await self._events.forget(self.name)
        self._pulse.end(self._loop)

    def stop(self) -> None:
        """Let `serve` return after what it reads or applies now."""
        self._stopping = True

    async def _unfinished(self) -> Sequence[Logged]:
        entries = await self._events.group.own_pending(self.name, count=self._batch)
        # This process lives: that it could not finish them is not their doing.
        await self._events.group.count_as(self.name, entries, 1)
        return given(entries)

    async def _take_over(self, abandoned: Sequence[StreamEntry]) -> None:
        async with self._kept([entry.id for entry in abandoned]):
            await take_over(
                self._events.group,
                self.name,
                abandoned,
                take=self._handled,
                set_aside=self._given_up,
            )

    async def _given_up(self, entry: StreamEntry) -> None:
        (logged,) = given([entry])
        reason = "abandoned: whoever took it died, again and again"
        await self._set_aside(logged, reason=reason, word="abandoned")

    async def _handled(self, entries: Sequence[StreamEntry]) -> None:
        readable = await self._decoded(given(entries))
        await self._applied(readable)
        self._signals.count("events_applied", by=len(readable))

    async def _next(self) -> Sequence[Logged]:
        """Return new entries; from time to time, take over abandoned ones first."""
        now = self._clock.monotonic()
        if (now - self._claimed_at) * 1000 >= self._abandoned_ms / 2:
            abandoned = await self._events.group.claim_abandoned(
                self.name, min_idle_ms=self._abandoned_ms, count=self._batch
            )
            if abandoned:
                self._signals.count("events_taken_over", by=len(abandoned))
                await self._take_over(abandoned)
                return ()
            self._claimed_at = now
        return await self._events.read(self.name, count=self._batch, block_ms=BLOCK_MS)

    async def _apply(self, entries: Sequence[Logged]) -> None:
        if not entries:
            return
        ids = [entry.id for entry in entries]
        async with self._kept(ids):
            readable = await self._decoded(entries)
            await self._applied(readable)
        await self._events.acknowledge(ids)
        self._signals.count("events_applied", by=len(readable))

    async def _decoded(self, entries: Sequence[Logged]) -> list[tuple[Logged, Event]]:
        readable: list[tuple[Logged, Event]] = []
        for entry in entries:
            if entry.event is None:
                self._signals.count("events_refused", "deleted")
                continue
            try:
                event = decode(entry.event, epoch=entry.epoch, ordered=entry.ordered)
                readable.append((entry, event))
            except EventError as exc:
                await self._set_aside(entry, reason=str(exc), word="unreadable")
        return readable

    async def _applied(self, readable: Sequence[tuple[Logged, Event]]) -> None:
        try:
            applied = await self._invalidator.apply([event for _, event in readable])
            if applied.due:
                self._on_due()
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001 - one event must not hold up the others
            self._report("event_batch_failed", error=exc)
            await self._one_by_one(readable)

    async def _one_by_one(self, readable: Sequence[tuple[Logged, Event]]) -> None:
        for entry, event in readable:
            try:
                await self._invalidator.apply([event])
            except StoreError:
                raise
            except Exception as exc:  # noqa: BLE001 - it becomes a dead letter
                await self._set_aside(entry, reason=type(exc).__name__, word="failed")

    async def _set_aside(self, entry: Logged, *, reason: str, word: str) -> None:
        letter = event_letter(
            entry.event or b"",
            reason=reason,
            source="event_log",
            at_ms=self._clock.now_ms(),
            log_id=entry.id,
            epoch=entry.epoch,
            ordered=entry.ordered,
        )
        gone = await self._control.park([letter])
        self._signals.count("dead_letters_dropped", by=gone)
        self._signals.count("events_refused", word)
        self._report("event_refused", word)

    @contextlib.asynccontextmanager
    async def _kept(self, ids: Sequence[str]) -> AsyncIterator[None]:
        """Keep others from taking over what is being applied here."""
        keeping = asyncio.create_task(self._keep(ids))
        try:
            yield
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self, ids: Sequence[str]) -> None:
        while True:
            await self._clock.sleep(self._abandoned_ms / 3 / 1000)
            with contextlib.suppress(StoreError):
                await self._events.keep(self.name, ids)
                self._pulse.beat(self._loop)
