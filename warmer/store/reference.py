"""The contract of PROTOCOL.md in plain Python: the scripts, readable.

One conformance suite runs on this and on the real scripts, and a state machine compares
every reply and every stored byte of both. The search of interleavings runs here, because
20,000 schedules on a server take too long.

Names in brackets, such as [publish.owner], are the clauses of PROTOCOL.md.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from warmer.model.entry import (
    HEADER_BYTES,
    MAGIC,
    Entry,
    EntryRefused,
    Flag,
    decode_entry,
    encode_entry,
    readable_versions,
)
from warmer.model.event import PurgeMode
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
from warmer.model.version import (
    Order,
    Scope,
    SourceVersion,
    Versions,
    decode_vector,
    encode_vector,
    source_of,
    version_for,
)
from warmer.store.port import (
    MAX_GUARD_FIELDS,
    Claim,
    Family,
    Invalidation,
    Publication,
)

FLOOR = "floor."
RAISED = "raised."


NEVER = 2**63 - 1
"""What only a plain client's lease may lack: an expiry."""

T = TypeVar("T")


@dataclass(slots=True)
class Stored(Generic[T]):
    """A value and the instant it expires (Unix ms)."""

    value: T
    expires_at: int


Guard = dict[str, str]


class ReferenceStore:
    """A cache server in memory. `now` gives its clock in Unix ms."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.entries: dict[str, Stored[bytes]] = {}
        self.leases: dict[str, Stored[str]] = {}
        self.guards: dict[str, Stored[Guard]] = {}
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def now_ms(self) -> int:
        """Unix ms by this server's clock."""
        return self._now()

    # --- the scripts ------------------------------------------------------------------

    async def read(self, key: Key) -> Entry | None:
        """Return the entry, None if there is none that can be trusted."""
        return self._entry(key)

    async def claim(self, claim: Claim) -> ClaimReply:
        """See lua/claim.lua."""
        key, now = claim.key.text, self._now()
        guard, entry = self._guard(key), self._entry(claim.key)
        generation = int(guard.get("generation", 0))

        for scope, version in sorted(claim.wanted.items()):  # [claim.raise]
            floor = _floor(guard, scope)
            if floor is None and len(guard) >= MAX_GUARD_FIELDS:  # [bounded]
                continue
            if floor is None or version.compare(floor) is Order.NEWER:
                _set_floor(guard, scope, version, generation)
                guard["purged_at"] = str(now)  # [claim.settle]
                self._keep_guard(key, guard, claim.guard_ms)

        unseen = entry
        if entry and entry.fence == claim.seen_fence:  # [claim.seen]
            unseen = None
        if (
            unseen
            and unseen.fresh_until > now  # [claim.fresh]
            and _reached(unseen, claim)  # [claim.reached]
        ):
            return Fresh(unseen)

        lease = self._lease(key)
        if lease and lease.expires_at == NEVER:  # [claim.heal]
            lease.expires_at = now + claim.lease_ms
        if lease and lease.value != claim.token:  # [claim.held]
            return Held(lease.expires_at - now, unseen)
        if lease and guard.get("owner") == claim.token:  # [claim.again]
            return Claimed(_lease_of(claim, guard), unseen)
        retry_at = int(guard.get("retry_at", 0))
        if retry_at > now:  # [claim.cooling]
            return Cooling(retry_at - now, unseen)

        self.leases[key] = Stored(claim.token, now + claim.lease_ms)
        last = int(guard.get("fence", 0))
        guard["fence"] = str(max(last + 1, now * 1000))  # [claim.fence]
        guard["owner"] = claim.token
        guard["claimed_at"] = str(now)
        guard["claim_generation"] = str(generation)
        guard["claim_floors"] = _joined(_floors(guard))
        self._keep_guard(key, guard, claim.guard_ms)
        return Claimed(_lease_of(claim, guard), unseen)

    async def renew(self, lease: Lease, lease_ms: int) -> RenewReply:
        """See lua/renew.lua."""
        held = self._lease(lease.key)
        if held is None or held.value != lease.token:  # [renew.mine]
            return RenewReply.LOST
        held.expires_at = self._now() + lease_ms
        return RenewReply.RENEWED

    async def publish(self, lease: Lease, publication: Publication) -> PublishReply:
        """See lua/publish.lua."""
        key, now = lease.key, self._now()
        guard, entry = self._guard(key), self._entry(publication.key)
        if entry and guard.get("publisher") == lease.token:  # [publish.already]
            return (
                PublishReply.ALREADY_KEPT if entry.kept_stale else PublishReply.ALREADY
            )
        held = self._lease(key)
        if (
            int(guard.get("fence", 0)) != lease.fence  # [publish.fence]
            or guard.get("owner") != lease.token  # [publish.owner]
            or (held and held.value != lease.token)  # [publish.lease]
        ):
            return PublishReply.FENCED
        guard["owner"] = ""  # [publish.once]
        self.leases.pop(key, None)  # [publish.frees]

        load = _judge(guard, entry, publication.versions)
        reply = self._store(load, lease, publication, guard)
        if reply is PublishReply.OUTDATED:
            if load.lagging:  # [publish.lag]
                guard["retry_at"] = str(now + publication.lag_retry_ms)
        else:
            guard["publisher"] = lease.token
            guard.pop("failures", None)  # [publish.forgives]
            guard.pop("retry_at", None)
        self._keep_guard(key, guard, publication.guard_ms)
        self._wake(key)
        return reply

    def _store(
        self,
        load: "Judgement",
        lease: Lease,
        publication: Publication,
        guard: Guard,
    ) -> PublishReply:
        now = self._now()
        claimed_at = int(guard["claimed_at"])
        flags = publication.content.flags
        if load.current:
            reply = PublishReply.PUBLISHED
            fresh_until = now + publication.fresh_ms
            settled_at = int(guard.get("purged_at", 0)) + publication.settle_ms
            if (
                not load.proven and "purged_at" in guard and claimed_at < settled_at
            ):  # [publish.settle]
                fresh_until = min(fresh_until, settled_at)
        elif load.spans and publication.stale_ms > 0:  # [publish.kept]
            reply = PublishReply.KEPT_STALE
            flags |= Flag.KEPT_STALE
            fresh_until = claimed_at  # [publish.kept_window]
        else:
            return PublishReply.OUTDATED
        stale_until = fresh_until + publication.stale_ms
        error_until = fresh_until + publication.error_ms
        last = max(fresh_until, stale_until, error_until)
        if reply is PublishReply.KEPT_STALE and last <= now:
            return PublishReply.OUTDATED
        stored = Entry(
            flags=flags,
            schema_version=publication.key.schema_version,
            created_at=now,
            fresh_until=fresh_until,
            stale_until=stale_until,
            error_until=error_until,
            fence=lease.fence,
            load_ms=publication.load_ms,
            vector=encode_vector(publication.versions).encode(),
            body=publication.content.body,
        )
        self.entries[lease.key] = Stored(
            encode_entry(stored, publication.key.digest()), max(last, now + 1)
        )
        return reply

    async def release(
        self, lease: Lease, *, retry_ms: int | None = None
    ) -> ReleaseReply:
        """See lua/release.lua."""
        key = lease.key
        guard, held = self._guard(key), self._lease(key)
        if guard.get("owner") == lease.token:
            guard["owner"] = ""  # [release.ends]
            if retry_ms is not None:
                guard["failures"] = str(int(guard.get("failures", 0)) + 1)
                guard["retry_at"] = str(self._now() + retry_ms)
            self.guards[key].value = guard
            self._wake(key)
        if held is None:
            return ReleaseReply.EXPIRED
        if held.value != lease.token:  # [release.mine]
            return ReleaseReply.FOREIGN
        del self.leases[key]
        self._wake(key)
        return ReleaseReply.RELEASED

    async def invalidate_many(
        self, invalidations: Sequence[Invalidation]
    ) -> list[InvalidateReply]:
        """See lua/invalidate.lua."""
        return [await self.invalidate(each) for each in invalidations]

    async def invalidate(self, invalidation: Invalidation) -> InvalidateReply:
        """See lua/invalidate.lua."""
        key, now = invalidation.key.text, self._now()
        scope, version = invalidation.scope, invalidation.version
        guard, entry = self._guard(key), self._entry(invalidation.key)
        generation = int(guard.get("generation", 0))
        # No load that runs has a higher one, though the guard may have been lost.
        fence = max(int(guard.get("fence", 0)), now * 1000 - 1)  # [invalidate.fence]
        floor = _floor(guard, scope)
        in_entry = _order(version_for(scope, _versions(entry)), version)
        above = _order(floor, version)
        room = len(guard) < MAX_GUARD_FIELDS

        spared = in_entry is Order.NEWER  # [invalidate.older_than_entry]
        superseded = (
            above is Order.NEWER  # [invalidate.older_than_floor]
            and in_entry is not Order.OLDER  # [invalidate.entry_below]
        )
        noted = superseded or (spared and above is Order.EQUAL)  # [invalidate.remember]
        if noted and invalidation.mode is PurgeMode.SOFT:  # [invalidate.hard_always]
            return InvalidateReply(InvalidateResult.OLDER, fence)

        generation += 1
        guard["generation"] = str(generation)  # [invalidate.generation]
        if version and (above is not Order.INCOMPARABLE or (floor is None and room)):
            if above is not Order.NEWER:  # [invalidate.raise]
                guard[FLOOR + scope] = version.encode()
            guard[RAISED + scope] = str(generation)
        else:
            guard["blind"] = str(generation)  # [invalidate.blind]
        guard["purged_at"] = str(now)  # [invalidate.purged_at]
        if invalidation.mode is PurgeMode.HARD:
            guard["hard"] = str(generation)  # [invalidate.hard]
        self._keep_guard(key, guard, invalidation.guard_ms)
        if spared:
            return InvalidateReply(InvalidateResult.OLDER, fence)
        result = self._purge(invalidation, entry, now)
        return InvalidateReply(result, fence)

    def _purge(
        self, invalidation: Invalidation, entry: Entry | None, now: int
    ) -> InvalidateResult:
        key = invalidation.key.text
        if self._stored(key) is None:
            return InvalidateResult.NOTED
        if entry is None or invalidation.mode is PurgeMode.HARD:
            # What no reader of this release trusts cannot be made stale in place.
            del self.entries[key]
            return InvalidateResult.PURGED
        entry.fresh_until = min(entry.fresh_until, now)  # [invalidate.stale]
        entry.stale_until = min(  # [invalidate.stale_window]
            entry.stale_until, now + invalidation.stale_ms
        )
        entry.error_until = min(  # [invalidate.error_window]
            entry.error_until, now + invalidation.error_ms
        )
        last = max(entry.fresh_until, entry.stale_until, entry.error_until)
        if last <= now:
            del self.entries[key]
        else:
            digest = invalidation.key.digest()
            self.entries[key] = Stored(encode_entry(entry, digest), last)
        return InvalidateResult.PURGED

    async def inspect(self, key: Key) -> Family:
        """Return all that is stored for one key."""
        stored, lease = self._stored(key.text), self._lease(key.text)
        fields, now = self._guard(key.text), self._now()
        guard = self.guards.get(key.text)
        refused = None
        if stored is not None:
            try:
                decode_entry(stored, key.digest())
            except EntryRefused as exc:
                refused = exc.reason.value
        return Family(
            entry=self._entry(key),
            entry_refused=refused,
            lease_token=lease.value if lease else None,
            lease_ms=lease.expires_at - now
            if lease and lease.expires_at != NEVER
            else None,
            guard=fields,
            guard_ms=guard.expires_at - now if guard else None,
        )

    # --- waiters ----------------------------------------------------------------------

    @asynccontextmanager
    async def waiting(self, key: Key) -> AsyncIterator["ReferenceWaiter"]:
        """Register as a waiter of one key."""
        woken = asyncio.Event()
        waiters = self._waiters.setdefault(key.text, set())
        waiters.add(woken)
        try:
            yield ReferenceWaiter(woken)
        finally:
            waiters.discard(woken)
            if not waiters:
                self._waiters.pop(key.text, None)

    def _wake(self, key: str) -> None:
        for woken in self._waiters.get(key, ()):
            woken.set()

    # --- what is stored now -----------------------------------------------------------

    def _stored(self, key: str) -> bytes | None:
        stored = self.entries.get(key)
        if stored is None or stored.expires_at <= self._now():
            self.entries.pop(key, None)
            return None
        return stored.value

    def _entry(self, key: Key) -> Entry | None:
        stored = self._stored(key.text)
        if stored is None or not well_formed(stored):
            return None
        try:
            return decode_entry(stored, key.digest())
        except EntryRefused:
            return None

    def _lease(self, key: str) -> Stored[str] | None:
        lease = self.leases.get(key)
        if lease is None or lease.expires_at <= self._now():
            self.leases.pop(key, None)
            return None
        return lease

    def _guard(self, key: str) -> Guard:
        guard = self.guards.get(key)
        if guard is None or guard.expires_at <= self._now():
            self.guards.pop(key, None)
            return {}
        return dict(guard.value)

    def _keep_guard(self, key: str, guard: Guard, guard_ms: int) -> None:
        known = self.guards.get(key)
        expires_at = self._now() + guard_ms
        if known:
            expires_at = max(expires_at, known.expires_at)
        self.guards[key] = Stored(guard, expires_at)


@dataclass(frozen=True, slots=True)
class ReferenceWaiter:
    """A waiter in this process."""

    woken: asyncio.Event

    async def wait(self, timeout_ms: int) -> None:
        """Return when woken, or when the time is up."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.woken.wait()
        except TimeoutError:
            return
        self.woken.clear()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a load is, given what is known when it ends.

    current: it contains every change known. proven: its versions say so. spans: it is not
    current only because changes came while it ran. lagging: it reports a version below a
    floor or the entry's, so its source lags behind the events, or behind what is stored.
    """

    current: bool
    proven: bool
    spans: bool
    lagging: bool


def _judge(guard: Guard, entry: Entry | None, versions: Versions) -> Judgement:
    claim_generation = int(guard["claim_generation"])
    current = proven = True
    lagging = False
    for scope, floor in _floors(guard).items():
        order = _order(version_for(scope, versions), floor)
        if order is Order.OLDER:  # [publish.floor]
            current = False
            lagging = True
        elif order is Order.INCOMPARABLE:
            proven = False
            if int(guard[RAISED + scope]) > claim_generation:  # [publish.raised]
                current = False
    if "blind" in guard:
        proven = False
        if int(guard["blind"]) > claim_generation:  # [publish.blind]
            current = False

    regresses = any(
        _order(version_for(scope, versions), stored) is Order.OLDER
        for scope, stored in _versions(entry).items()
    )
    below_seen = any(
        _order(version_for(scope, versions), floor) is Order.OLDER
        for scope, floor in decode_vector(guard.get("claim_floors", "")).items()
    )
    spans = (
        not regresses  # [publish.kept_regress]
        and not below_seen  # [publish.kept_floor]
        and int(guard.get("hard", 0)) <= claim_generation  # [publish.kept_hard]
    )
    current = current and not regresses  # [publish.regress]
    return Judgement(current, proven, spans, lagging or regresses)


def _reached(entry: Entry, claim: Claim) -> bool:
    """Return whether a stored entry is what the claimant wants."""
    if not claim.wanted:
        return entry.fence > claim.wanted_fence
    versions = _versions(entry)
    for scope, version in claim.wanted.items():
        order = _order(version_for(scope, versions), version)
        if order is Order.OLDER:
            return False
        if order is Order.INCOMPARABLE and entry.fence <= claim.wanted_fence:
            return False
    return True


def well_formed(stored: bytes) -> bool:
    """Return whether the scripts take `stored` for an entry (they cannot check digests)."""
    return len(stored) >= HEADER_BYTES and stored[:2] == MAGIC


def _order(version: SourceVersion | None, other: SourceVersion | None) -> Order:
    if version is None or other is None:
        return Order.INCOMPARABLE
    return version.compare(other)


def _versions(entry: Entry | None) -> Versions:
    return readable_versions(entry) if entry else {}


def _floor(guard: Guard, scope: Scope) -> SourceVersion | None:
    encoded = guard.get(FLOOR + scope)
    return SourceVersion.decode(source_of(scope), encoded) if encoded else None


def _floors(guard: Guard) -> dict[Scope, SourceVersion]:
    return {
        name.removeprefix(FLOOR): SourceVersion.decode(
            source_of(name.removeprefix(FLOOR)), encoded
        )
        for name, encoded in guard.items()
        if name.startswith(FLOOR)
    }


def _joined(floors: Versions) -> str:
    """Return the floors as a vector; bounded by the guard, not as one in a header is."""
    return ";".join(
        f"{scope}@{floor.encode()}" for scope, floor in sorted(floors.items())
    )


def _set_floor(
    guard: Guard, scope: Scope, version: SourceVersion, generation: int
) -> None:
    guard[FLOOR + scope] = version.encode()
    guard[RAISED + scope] = str(generation)


def _lease_of(claim: Claim, guard: Guard) -> Lease:
    return Lease(
        key=claim.key.text,
        token=claim.token,
        fence=int(guard["fence"]),
        failures=int(guard.get("failures", 0)),
        floors=_floors(guard),
    )
