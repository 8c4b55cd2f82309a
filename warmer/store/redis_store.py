"""The cache server over Redis: each method of the port is one script, or one read.

Holds: errors of redis-py become this package's here. An entry that cannot be trusted is a
miss with a reason, for every method. Any call may be repeated after any error.
Does not hold: that a call is carried out once, or in the order in which calls were made;
each script is atomic by itself.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from redis.exceptions import RedisError, ResponseError

from warmer.clock import Clock
from warmer.errors import StoreRefused
from warmer.model.entry import (
    HEADER_BYTES,
    Entry,
    EntryRefused,
    decode_entry,
)
from warmer.model.key import Key
from warmer.model.lease import Lease
from warmer.model.outcome import (
    Claimed,
    ClaimReply,
    Cooling,
    Fresh,
    Held,
    InvalidateReply,
    InvalidateResult,
    PublishReply,
    ReleaseReply,
    RenewReply,
)
from warmer.model.version import decode_vector, encode_vector
from warmer.signals import Signals
from warmer.store.call_lane import CallLane
from warmer.store.connections import translated
from warmer.store.keyspace import Keyspace
from warmer.store.port import Claim, Family, Invalidation, Publication, Waiter
from warmer.store.script import Call, Command, Reply, Script

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from warmer.store.read_lane import ReadLane
    from warmer.store.wakeups import Wakeups

STAGE_ABOVE = 16 * 1024
"""Larger bodies do not go through a script's arguments, which it copies: up to 0.45 ms."""
MANY_AT_ONCE = 50
"""Invalidations in one pipeline; several go side by side."""
STAGED_MS = 60_000
"""How long a staged body outlives a publish that never ran."""

_ATTEMPTS = 3
"""Claims of one call: each further one needs another damaged entry, just published."""
_U32 = 2**32 - 1
_UNSTAGED = b"UNSTAGED"


@dataclass(frozen=True, slots=True)
class Names:
    """Some of the names on the server, as the keys they are of; `cursor` 0 = the last.

    A cursor is of use only with the server whose `run_id` this is.
    """

    keys: tuple[str, ...]
    cursor: int
    run_id: str


class RedisStore:
    """The cache server. `redis`, `lane` and `wakeups` are closed by who made them.

    `now_ms`, for tests, is the clock that the scripts go by instead of the server's.
    """

    def __init__(
        self,
        redis: "Redis",
        *,
        keyspace: Keyspace,
        lane: "ReadLane",
        wakeups: "Wakeups",
        clock: Clock,
        signals: Signals,
        timeout_ms: int,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Nothing is sent yet; `start` is worth calling, and never needed."""
        self._keyspace = keyspace
        self._reads = lane
        self._wakeups = wakeups
        self._signals = signals
        self._calls = CallLane(redis, clock=clock, timeout_ms=timeout_ms)
        self._now_ms = now_ms
        self._claim = Script("claim")
        self._renew = Script("renew")
        self._publish = Script("publish")
        self._release = Script("release")
        self._invalidate = Script("invalidate")

    async def start(self) -> None:
        """Measure the server's clock and load the scripts.

        Raises StoreError; StoreRefused names the command that the user may not use.
        """
        scripts = (
            self._claim,
            self._renew,
            self._publish,
            self._release,
            self._invalidate,
        )
        await self._calls.measure()
        await self._ask(*(("SCRIPT LOAD", script.text) for script in scripts))

    async def aclose(self) -> None:
        """Fail what waits to be sent, and end what is under way."""
        await self._calls.aclose()

    def now_ms(self) -> int:
        """Unix ms by the cache server's clock, as far as this process knows it."""
        return self._now_ms() if self._now_ms else self._calls.server_now_ms()

    # --- the port ---------------------------------------------------------------------

    async def read(self, key: Key) -> Entry | None:
        """Return the entry, None if there is none that can be trusted."""
        if self._calls.knows_time:
            self._calls.measure_soon()
        else:
            # What is read first is judged by the server's clock as well.
            await self._calls.learn_time()
        try:
            stored = await self._reads.get(key.text)
        except (RedisError, OSError) as exc:
            raise translated(exc) from exc
        return self._entry(key, stored)

    async def claim(self, claim: Claim) -> ClaimReply:
        """Ask for the lease of one key."""
        seen_fence = claim.seen_fence
        for _ in range(_ATTEMPTS):
            reply = await self._ask_claim(claim, seen_fence)
            if reply[0] != b"FRESH":
                return self._claim_reply(claim, reply)
            stored = cast("bytes", reply[1])
            entry = self._entry(claim.key, stored)
            if entry is not None:
                return Fresh(entry)
            # To the script it is an entry, because only its body is doubtful: named as
            # seen, it is a miss.
            seen_fence = int.from_bytes(stored[48:56], "big")
        raise StoreRefused("ERR", "whatever is published for the key is damaged")

    async def renew(self, lease: Lease, lease_ms: int) -> RenewReply:
        """Let the lease run `lease_ms` from now, if it is still mine."""
        reply = await self._call(
            self._renew.call(
                lease=self._keyspace.lease(lease.key),
                token=lease.token,
                lease_ms=lease_ms,
                now_ms=self._now_argument(),
            )
        )
        return RenewReply(_text(reply))

    async def publish(self, lease: Lease, publication: Publication) -> PublishReply:
        """Store a loaded body if this lease may, and end the lease."""
        body = publication.content.body
        if len(body) > STAGE_ABOVE:
            reply = await self._call(
                self._publish_call(lease, publication, b""),
                before=self._stage(lease, publication),
                size=len(body),
            )
            if reply != _UNSTAGED:
                return PublishReply(_text(reply))
            self._signals.count("bodies_unstaged")
        reply = await self._call(
            self._publish_call(lease, publication, body), size=len(body)
        )
        return PublishReply(_text(reply))

    async def release(
        self, lease: Lease, *, retry_ms: int | None = None
    ) -> ReleaseReply:
        """End the lease without a body; `retry_ms` given = the load failed, back off."""
        reply = await self._call(
            self._release.call(
                lease=self._keyspace.lease(lease.key),
                guard=self._keyspace.guard(lease.key),
                token=lease.token,
                retry_ms="" if retry_ms is None else retry_ms,
                channel=self._keyspace.channel(lease.key),
                now_ms=self._now_argument(),
            )
        )
        return ReleaseReply(_text(reply))

    async def invalidate(self, invalidation: Invalidation) -> InvalidateReply:
        """Apply one change to one key."""
        return _invalidate_reply(await self._call(self._invalidate_call(invalidation)))

    async def invalidate_many(
        self, invalidations: Sequence[Invalidation]
    ) -> list[InvalidateReply]:
        """Apply each; a task and a future for each would cost more than the rest of it."""
        calls = [self._invalidate_call(each) for each in invalidations]
        answers = await asyncio.gather(
            *(
                self._ask(*calls[at : at + MANY_AT_ONCE])
                for at in range(0, len(calls), MANY_AT_ONCE)
            ),
            return_exceptions=True,
        )
        replies: list[InvalidateReply] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            replies += map(_invalidate_reply, answer)
        return replies

    async def inspect(self, key: Key) -> Family:
        """Return all that is stored for one key; commands that only read will do."""
        if not self._calls.knows_time:
            await self._calls.learn_time()
        lease, guard = self._keyspace.lease(key.text), self._keyspace.guard(key.text)
        stored, token, lease_until, fields, guard_until = await self._ask(
            ("MGET", key.text),
            ("GET", lease),
            ("PEXPIRETIME", lease),
            ("HGETALL", guard),
            ("PEXPIRETIME", guard),
        )
        entry, refused = _decoded(key, cast("list[bytes | None]", stored)[0])
        return Family(
            entry=entry,
            entry_refused=refused,
            lease_token=_text(token) if token is not None else None,
            lease_ms=self._left(lease_until),
            guard={
                _text(name): _text(value)
                for name, value in cast("dict[bytes, bytes]", fields).items()
            },
            guard_ms=self._left(guard_until),
        )

    async def names(self, cursor: int, *, count: int) -> Names:
        """Return the next names of entries and guards, and of whatever else there is.

        Each that is there from the first call (cursor 0) to the last is given, perhaps
        more than once. About `count` are looked at: the server answers nobody else meanwhile.
        """
        info, scanned = await self._ask(
            ("INFO", "server"), ("SCAN", cursor, "COUNT", count)
        )
        following, names = cast("tuple[int, list[bytes]]", scanned)
        keys = dict.fromkeys(
            self._keyspace.key_of(name.decode()) for name in names if name.isascii()
        )
        run_id = str(cast("Mapping[str, object]", info)["run_id"])
        return Names(tuple(keys), following, run_id)

    def waiting(self, key: Key) -> AbstractAsyncContextManager[Waiter]:
        """Register as a waiter of one key; what happens from then on wakes it."""
        return self._wakeups.waiting(self._keyspace.channel(key.text))

    # --- calls ------------------------------------------------------------------------

    async def _call(
        self, call: Call, *, before: Command | None = None, size: int = 0
    ) -> Reply:
        commands = (call,) if before is None else (before, call)
        reply = (await self._calls.send(*commands, size=size))[-1]
        return _granted(reply)

    async def _ask(self, *commands: Command) -> list[Reply]:
        return [_granted(reply) for reply in await self._calls.send(*commands)]

    async def _ask_claim(self, claim: Claim, seen_fence: int) -> list[object]:
        key = claim.key.text
        reply = await self._call(
            self._claim.call(
                entry=key,
                lease=self._keyspace.lease(key),
                guard=self._keyspace.guard(key),
                token=claim.token,
                digest=_digest(claim.key),
                lease_ms=claim.lease_ms,
                guard_ms=claim.guard_ms,
                seen_fence=seen_fence,
                wanted=encode_vector(claim.wanted),
                wanted_fence=claim.wanted_fence,
                now_ms=self._now_argument(),
            )
        )
        return cast("list[object]", reply)

    def _publish_call(
        self, lease: Lease, publication: Publication, body: bytes
    ) -> Call:
        key = lease.key
        return self._publish.call(
            entry=key,
            lease=self._keyspace.lease(key),
            guard=self._keyspace.guard(key),
            staged=self._keyspace.staged(key, lease.token),
            token=lease.token,
            fence=lease.fence,
            vector=encode_vector(publication.versions),
            flags=int(publication.content.flags),
            schema=publication.key.schema_version,
            digest=_digest(publication.key),
            load_ms=min(publication.load_ms, _U32),
            fresh_ms=publication.fresh_ms,
            stale_ms=publication.stale_ms,
            error_ms=publication.error_ms,
            settle_ms=publication.settle_ms,
            lag_retry_ms=publication.lag_retry_ms,
            guard_ms=publication.guard_ms,
            channel=self._keyspace.channel(key),
            carried="inline" if body or not publication.content.body else "staged",
            body=body,
            now_ms=self._now_argument(),
        )

    def _invalidate_call(self, invalidation: Invalidation) -> Call:
        key, version = invalidation.key.text, invalidation.version
        return self._invalidate.call(
            entry=key,
            guard=self._keyspace.guard(key),
            scope=invalidation.scope,
            version=version.encode() if version else "",
            mode=invalidation.mode.value,
            digest=_digest(invalidation.key),
            stale_ms=invalidation.stale_ms,
            error_ms=invalidation.error_ms,
            guard_ms=invalidation.guard_ms,
            now_ms=self._now_argument(),
        )

    def _stage(self, lease: Lease, publication: Publication) -> Command:
        """Return the command that puts the body beside its entry, with room for the header."""
        vector = encode_vector(publication.versions).encode()
        staged = b"".join((bytes(HEADER_BYTES), vector, publication.content.body))
        name = self._keyspace.staged(lease.key, lease.token)
        return ("SET", name, staged, "PX", STAGED_MS)

    def _now_argument(self) -> int | str:
        return self._now_ms() if self._now_ms else ""

    # --- replies ----------------------------------------------------------------------

    def _claim_reply(self, claim: Claim, reply: list[object]) -> ClaimReply:
        word, number = _text(reply[0]), cast("int", reply[1])
        entry = self._entry(claim.key, cast("bytes | None", reply[-1]))
        match word:
            case "HELD":
                return Held(number, entry)
            case "COOLING":
                return Cooling(number, entry)
            case "CLAIMED":
                lease = Lease(
                    key=claim.key.text,
                    token=claim.token,
                    fence=number,
                    failures=cast("int", reply[2]),
                    floors=decode_vector(_text(reply[3])),
                )
                return Claimed(lease, entry)
            case _:
                raise StoreRefused("ERR", f"claim replied {word[:80]!r}")

    def _entry(self, key: Key, stored: bytes | None) -> Entry | None:
        entry, refused = _decoded(key, stored)
        if refused is not None:
            self._signals.count("entries_refused", refused)
        return entry

    def _left(self, until: object) -> int | None:
        instant = cast("int", until)
        return instant - self.now_ms() if instant >= 0 else None


def _decoded(key: Key, stored: bytes | None) -> tuple[Entry | None, str | None]:
    """Return the entry, or why what is stored is not taken for one."""
    if stored is None:
        return None, None
    try:
        return decode_entry(stored, key.digest()), None
    except EntryRefused as exc:
        return None, exc.reason.value


def _invalidate_reply(reply: Reply) -> InvalidateReply:
    result, fence = cast("list[object]", reply)
    return InvalidateReply(InvalidateResult(_text(result)), cast("int", fence))


def _granted(reply: Reply) -> Reply:
    if isinstance(reply, ResponseError):
        raise translated(reply) from reply
    return reply


def _digest(key: Key) -> str:
    return f"{key.digest():016x}"


def _text(reply: object) -> str:
    return cast("bytes", reply).decode()
