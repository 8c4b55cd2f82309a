"""Read a source's Redis streams: entries -> the event log, or the dead letters.

Holds: an entry is acknowledged only after the event log or the dead letters have what it
says. While they cannot take it, it stays with this process, which says so, and nothing is
lost but time. What this process holds when it dies is taken over by another. An entry that
ended its readers again and again is set aside, and those beside it are taken.
Does not hold: order. Sinks send batches again, and out of order; versions decide.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from random import Random

from jobs.pulse import Pulse
from jobs.take_over import take_over
from warmer.clock import Clock
from warmer.errors import BadEvent, StoreError
from warmer.ingest.dead_letters import message_letter
from warmer.ingest.formats import Message
from warmer.ingest.intake import DeadLetters, Intake
from warmer.ingest.stream_entries import bytes_of, message_of
from warmer.model.source import Source
from warmer.ops.telemetry import Report
from warmer.policy.backoff import retry_ms
from warmer.signals import Signals
from warmer.store.consumer_group import ConsumerGroup, StreamEntry

BLOCK_MS = 500
"""How long one read waits; a reader that stops is not cut off in one."""
ABANDONED_MS = 5_000
"""Entries that lie this long are taken over; a live reader says three times in that time
that it has them."""
TIDY_EVERY_S = 10.0
"""A sink halts when its server's memory is full, so that trimming cannot wait long."""
TRIMS_AT_ONCE = 20
"""Between two signs of life: what comes in meanwhile is the next time's."""
_PAUSE_BASE_MS, _PAUSE_CAP_MS = 100, 5_000


class StreamReader:
    """This process's reader of one source's streams."""

    def __init__(
        self,
        source: Source,
        group: ConsumerGroup,
        *,
        intake: Intake,
        letters: DeadLetters,
        batch: int,
        clock: Clock,
        random: Random,
        signals: Signals,
        report: Report,
        pulse: Pulse,
        abandoned_ms: int = ABANDONED_MS,
    ) -> None:
        # A name of this process's life: a shared one would hide a crashed one's batch.
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._source = source
        self._group = group
        self._intake = intake
        self._letters = letters
        self._batch = batch
        self._clock = clock
        self._random = random
        self._signals = signals
        self._report = report
        self._pulse = pulse
        self._beats_as = f"stream_{source.name}"
        self._abandoned_ms = abandoned_ms
        self._claimed_at = self._tidied_at = clock.monotonic()
        self._held: list[StreamEntry] = []
        self._stopping = False

    async def serve(self) -> None:
        """Read until `stop`; an error is reported, and the same entries come again."""
        failures = 0
        while not self._stopping:
            self._pulse.beat(self._beats_as)
            try:
                if failures and not self._held:
                    # A reply that was lost on its way leaves entries that are ours.
                    self._held = await self._unfinished()
                    await self._take()
                self._held = self._held or await self._next()
                await self._take()
                failures = 0
                await self._tidy()
            except Exception as exc:  # noqa: BLE001 - a daemon loop reports and goes on
                self._report("stream_failed", self._source.name, error=exc)
                await self._pause(failures)
                failures += 1
        with contextlib.suppress(StoreError):
            await self._group.forget(self.name)
        self._pulse.end(self._beats_as)

    def stop(self) -> None:
        """Let `serve` return after what it reads or takes now."""
        self._stopping = True

    # --- reading ----------------------------------------------------------------------

    async def _unfinished(self) -> list[StreamEntry]:
        entries = await self._group.own_pending(self.name, count=self._batch)
        await self._group.count_as(self.name, entries, 1)
        return entries

    async def _next(self) -> list[StreamEntry]:
        """Return new entries; from time to time, take over abandoned ones first."""
        now = self._clock.monotonic()
        if (now - self._claimed_at) * 1000 >= self._abandoned_ms / 2:
            abandoned = await self._group.claim_abandoned(
                self.name, min_idle_ms=self._abandoned_ms, count=self._batch
            )
            if abandoned:
                self._signals.count(
                    "messages_taken_over", self._source.name, by=len(abandoned)
                )
                await self._take_over(abandoned)
                return []
            self._claimed_at = now
        return await self._group.read(self.name, count=self._batch, block_ms=BLOCK_MS)

    async def _take_over(self, abandoned: Sequence[StreamEntry]) -> None:
        async with self._kept(abandoned):
            await take_over(
                self._group,
                self.name,
                abandoned,
                take=self._taken,
                set_aside=self._given_up,
            )

    async def _given_up(self, entry: StreamEntry) -> None:
        await self._set_aside(entry, "abandoned", "abandoned")

    # --- taking -----------------------------------------------------------------------

    async def _take(self) -> None:
        """Have what is held taken, and acknowledge it."""
        if not self._held:
            return
        async with self._kept(self._held):
            await self._taken(self._held)
        await self._group.acknowledge(self._held)
        self._held = []

    async def _taken(self, entries: Sequence[StreamEntry]) -> None:
        readable: list[tuple[StreamEntry, Message]] = []
        for entry in entries:
            if entry.fields is None:
                self._signals.count("messages_deleted", self._source.name)
                continue
            try:
                readable.append((entry, message_of(entry.fields)))
            except BadEvent as exc:
                await self._set_aside(entry, str(exc), "unreadable")
        self._signals.count("messages_read", self._source.name, by=len(readable))
        try:
            await self._intake.take(self._source, [each for _, each in readable])
        except StoreError:
            raise
        except Exception as exc:  # noqa: BLE001 - one entry must not hold up the others
            self._report("stream_batch_failed", self._source.name, error=exc)
            await self._one_by_one(readable)

    async def _one_by_one(
        self, readable: Sequence[tuple[StreamEntry, Message]]
    ) -> None:
        for entry, message in readable:
            try:
                await self._intake.take(self._source, [message])
            except StoreError:
                raise
            except Exception as exc:  # noqa: BLE001 - it becomes a dead letter
                await self._set_aside(entry, type(exc).__name__, "failed")

    async def _set_aside(self, entry: StreamEntry, reason: str, word: str) -> None:
        value, key = bytes_of(entry.fields or {b"": b""})
        letter = message_letter(
            source=self._source.name,
            value=value,
            key=key or b"",
            reason=reason,
            at_ms=self._clock.now_ms(),
        )
        await self._letters.park([letter])
        self._signals.count("messages_refused", self._source.name, word)
        self._report("message_refused", self._source.name, word)

    # --- keeping ----------------------------------------------------------------------

    async def _pause(self, failures: int) -> None:
        """Wait longer after each failure, and keep what is held meanwhile."""
        pause_ms = retry_ms(failures, self._random, _PAUSE_BASE_MS, _PAUSE_CAP_MS)
        async with _meanwhile(self._spare(self._held)):
            await self._clock.sleep(pause_ms / 1000)

    async def _spare(self, entries: Sequence[StreamEntry]) -> None:
        """Keep what others must not take over, and not count the trouble against it."""
        while True:
            with contextlib.suppress(StoreError):
                await self._group.count_as(self.name, entries, 1)
            await self._clock.sleep(self._abandoned_ms / 3 / 1000)

    @contextlib.asynccontextmanager
    async def _kept(self, entries: Sequence[StreamEntry]) -> AsyncIterator[None]:
        """Keep others from taking over what is being taken here."""
        async with _meanwhile(self._keep(entries)):
            yield

    async def _keep(self, entries: Sequence[StreamEntry]) -> None:
        while True:
            await self._clock.sleep(self._abandoned_ms / 3 / 1000)
            with contextlib.suppress(StoreError):
                await self._group.keep(self.name, entries)
                self._pulse.beat(self._beats_as)

    async def _tidy(self) -> None:
        """Remove what all groups have done with, and names of readers that died."""
        now = self._clock.monotonic()
        if now - self._tidied_at < TIDY_EVERY_S:
            return
        self._tidied_at = now
        try:
            await self._trim()
            forgotten = await self._group.forget_dead()
        except StoreError as exc:
            # A user who may read and acknowledge may not have these commands.
            self._report("stream_not_tidied", self._source.name, error=exc)
            return
        self._signals.count("readers_forgotten", self._source.name, by=forgotten)

    async def _trim(self) -> None:
        if self._source.stream is None or not self._source.stream.trim:
            return
        for _ in range(TRIMS_AT_ONCE):
            trimmed = await self._group.trim(whole=True)
            self._signals.count("messages_trimmed", self._source.name, by=trimmed)
            if not trimmed:
                return


@contextlib.asynccontextmanager
async def _meanwhile(step: Awaitable[None]) -> AsyncIterator[None]:
    """Do this beside the block, and no longer than it."""
    doing = asyncio.ensure_future(step)
    try:
        yield
    finally:
        doing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await doing
