"""Messages -> the event log, or the dead letters: all of them, before anything is answered.

Holds: when `take` returns, every message is in the event log, or a dead letter with its
reason, or ignored or a repetition, and counted. When it raises StoreError, nothing may be
answered but "again": a part may have been appended, and a repetition is harmless.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from warmer.clock import Clock
from warmer.errors import BadEvent
from warmer.ingest.dead_letters import Letter, message_letter
from warmer.ingest.event_log import record_of
from warmer.ingest.formats import (
    Changes,
    Ignored,
    Message,
    Read,
    Unreadable,
    reader,
)
from warmer.ingest.mapping import arrivals
from warmer.model.arrival import Accepted, Record
from warmer.model.source import Source
from warmer.signals import Signals

MAX_MESSAGES = 10_000
"""Messages of one body."""


class EventLog(Protocol):
    """Where accepted events go."""

    async def accept(self, records: Sequence[Record], source: Source) -> Accepted:
        """Append events of one source, unless they are known already."""
        ...


class Report(Protocol):
    """Where people hear of what no producer is told."""

    def __call__(self, name: str, *labels: str) -> None:
        """Report `name`; labels are of bounded variety."""
        ...


class DeadLetters(Protocol):
    """Where what cannot be understood goes."""

    async def park(self, letters: Sequence[Letter]) -> int:
        """Set these aside; return how many older ones went for it."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of the messages of one delivery.

    `accepted` and `duplicate` count events, `ignored` messages and rows, `dead` messages.
    """

    accepted: int = 0
    duplicate: int = 0
    ignored: int = 0
    dead: int = 0


class Intake:
    """Takes messages of any source, whichever way they came."""

    def __init__(
        self,
        *,
        log: EventLog,
        letters: DeadLetters,
        clock: Clock,
        signals: Signals,
        report: Report,
    ) -> None:
        self._report = report
        self._log = log
        self._letters = letters
        self._clock = clock
        self._signals = signals

    async def take(
        self, source: Source, messages: Sequence[Message], *, delivery_id: str = ""
    ) -> Taken:
        """Take the messages of one delivery; `delivery_id` tells a repetition of it.

        Raises BadEvent, and takes none, if one of them can be neither read nor kept apart.
        """
        records: list[Record] = []
        dead: list[Letter] = []
        ignored: Counter[str] = Counter()
        reads = reader(source.format)(messages, source)
        for message, read in zip(messages, reads, strict=True):
            match _recorded(read, source):
                case Ignored(reason):
                    ignored[reason] += 1
                case Unreadable(reason):
                    dead.append(self._letter(source, message, reason))
                case found, by_rule:
                    records += found
                    ignored["rule"] += by_rule
        if delivery_id:
            records = [
                record._replace(identity=record.identity or f"{delivery_id}#{index}")
                for index, record in enumerate(records)
            ]
        new = await self._accepted(records, source) if records else 0
        if dead:
            await self._park(dead)
        taken = Taken(new, len(records) - new, ignored.total(), len(dead))
        self._count(source.name, taken, ignored)
        return taken

    async def _accepted(self, records: Sequence[Record], source: Source) -> int:
        accepted = await self._log.accept(records, source)
        self._signals.count("version_regressions", source.name, by=accepted.regressed)
        if accepted.regression:
            self._report("version_regression", source.name)
        if accepted.epoch is not None:
            self._signals.count("epochs_opened", source.name)
            self._report("epoch_opened", source.name)
        return sum(accepted.new)

    async def set_aside(
        self, source: Source, body: bytes, headers: Mapping[str, str], *, reason: str
    ) -> Taken:
        """Keep a body that is no message at all as one dead letter."""
        letter = message_letter(
            kind="body",
            source=source.name,
            value=body,
            headers=headers,
            reason=reason,
            at_ms=self._clock.now_ms(),
        )
        await self._park([letter])
        self._signals.count("messages_unreadable", source.name)
        return Taken(dead=1)

    async def _park(self, letters: Sequence[Letter]) -> None:
        gone = await self._letters.park(letters)
        self._signals.count("dead_letters_dropped", by=gone)

    def _count(self, source: str, taken: Taken, ignored: Mapping[str, int]) -> None:
        count = self._signals.count
        for reason, number in ignored.items():
            count("messages_ignored", source, reason, by=number)
        count("messages_unreadable", source, by=taken.dead)
        count("events_accepted", source, by=taken.accepted)
        count("events_duplicate", source, by=taken.duplicate)

    def _letter(self, source: Source, message: Message, reason: str) -> Letter:
        return message_letter(
            source=source.name,
            value=message.raw or _dumped(message.value),
            key=b"" if message.key is None else _dumped(message.key),
            headers=message.headers,
            reason=reason,
            at_ms=self._clock.now_ms(),
        )


def _recorded(
    read: Read, source: Source
) -> Ignored | Unreadable | tuple[list[Record], int]:
    if not isinstance(read, Changes):
        return read
    try:
        found, by_rule = arrivals(read, source)
        return [record_of(each) for each in found], by_rule
    except BadEvent as exc:
        return Unreadable(str(exc))


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        raise BadEvent(f"body: a message in it cannot be kept apart: {exc}") from None


def messages_in(
    body: bytes, *, headers: Mapping[str, str] | None = None
) -> list[Message]:
    """Return the messages of a body: one JSON value, an array of them, or one a line.

    Raises BadEvent if it is none of these.
    """
    values = _values(body)
    raw = body if len(values) == 1 else b""
    return [Message(value, headers=headers or {}, raw=raw) for value in values]


def _values(body: bytes) -> list[object]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        lines = body.split(b"\n") if b"\n" in body.strip() else []
        if not lines:
            raise BadEvent(f"body: not JSON: {exc}") from None
        return _bounded(
            [_line(line, at) for at, line in enumerate(lines) if line.strip()]
        )
    return _bounded(value) if isinstance(value, list) else [value]


def _line(line: bytes, at: int) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise BadEvent(f"body: line {at + 1} is not JSON: {exc}") from None


def _bounded(values: list[object]) -> list[object]:
    if len(values) > MAX_MESSAGES:
        raise BadEvent(f"body: {len(values)} messages, allowed are {MAX_MESSAGES}")
    return values
