"""Dead letters on the control server: set aside, read by people, replayed or dropped.

Holds: a letter stays until it is dropped, or `MAX_LETTERS` newer ones came, or newer ones
of `MAX_BYTES`; those that go for that are counted. Bytes come back as they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from warmer.store.control_link import ControlLink
from warmer.store.keyspace import DEAD_LETTERS, DEAD_LETTERS_SIZE
from warmer.store.script import Call, Script

MAX_LETTERS = 10_000
MAX_BYTES = 256 * 2**20
"""Payloads and keys together: what a flood of large ones may take of the server."""

_AT_ONCE = 100
_PARK = Script("letter_park")
_DROP = Script("letter_drop")
_BYTES = ("payload", "key")

Letter = Mapping[str, str | bytes]
"""Fields of a letter; `payload` and `key` are bytes, the others text."""


@dataclass(frozen=True, slots=True)
class Parked:
    """One letter as it is stored. `fields` are all of it as text, for people."""

    id: str
    fields: Mapping[str, str]
    payload: bytes
    key: bytes


class DeadLetterBox:
    """The dead letters on one control server."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    async def park(self, letters: Sequence[Letter]) -> int:
        """Set letters aside; return how many older ones went for it."""
        gone = 0
        for batch in _batches(letters):
            for reply in await self._link.run_all([_parking(one) for one in batch]):
                gone += reply[2]
        return gone

    async def newest(self, *, count: int, before: str = "+") -> list[Parked]:
        """Return up to `count` letters, newest first, that are older than `before`."""
        end = before if before == "+" else f"({before}"
        entries = await self._link.ask(
            self._link.redis.xrevrange(DEAD_LETTERS, end, "-", count=count)
        )
        return [_parked(id_, fields) for id_, fields in entries]

    async def oldest(self, *, count: int, after: str = "-") -> list[Parked]:
        """Return up to `count` letters, oldest first, that are newer than `after`."""
        start = after if after == "-" else f"({after}"
        entries = await self._link.ask(
            self._link.redis.xrange(DEAD_LETTERS, start, "+", count=count)
        )
        return [_parked(id_, fields) for id_, fields in entries]

    async def one(self, id_: str) -> Parked | None:
        """Return the letter of that id, None if there is none."""
        entries = await self._link.ask(
            self._link.redis.xrange(DEAD_LETTERS, id_, id_, count=1)
        )
        return _parked(*entries[0]) if entries else None

    async def drop(self, ids: Sequence[str]) -> int:
        """Remove letters; return how many were there."""
        dropped = 0
        for begin in range(0, len(ids), _AT_ONCE):
            batch = list(ids[begin : begin + _AT_ONCE])
            call = _DROP.call(
                dead=DEAD_LETTERS, size=DEAD_LETTERS_SIZE, ids=orjson.dumps(batch)
            )
            dropped += (await self._link.run(call))[1]
        return dropped

    async def count(self) -> int:
        """Return how many letters there are."""
        return await self._link.ask(self._link.redis.xlen(DEAD_LETTERS))


def _batches(letters: Sequence[Letter]) -> Iterator[Sequence[Letter]]:
    for begin in range(0, len(letters), _AT_ONCE):
        yield letters[begin : begin + _AT_ONCE]


def _parking(letter: Letter) -> Call:
    return _PARK.call(
        dead=DEAD_LETTERS,
        size=DEAD_LETTERS_SIZE,
        fields=orjson.dumps(
            {name: value for name, value in letter.items() if name not in _BYTES}
        ),
        payload=letter.get("payload", b""),
        key=letter.get("key", b""),
        max_letters=MAX_LETTERS,
        max_bytes=MAX_BYTES,
    )


def _parked(id_: bytes, fields: Mapping[bytes, bytes]) -> Parked:
    return Parked(
        id_.decode(),
        {
            name.decode(): value.decode(errors="backslashreplace")
            for name, value in fields.items()
        },
        payload=fields.get(b"payload", b""),
        key=fields.get(b"key", b""),
    )
