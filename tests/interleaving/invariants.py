"""What must hold after every step, whatever the order and the faults.

I1  An entry served as fresh lacks no change whose invalidation was applied, neither one
    applied before its load began nor one applied since.
    Excepted, and nothing else:
    - a load that reports no version comparable with the change (a not-found among them)
      and began after the invalidation was applied. It may lack the change until `settle`
      after the last invalidation before it was published; for longer only if it began
      later than `settle` after the change was announced, so that its replica lags longer.
    - changes announced before the guard was lost, or undone by a failover, until their
      invalidation is applied again or a refresh carries them as wanted. Such a refresh
      binds what is published after it: comparable versions, and the rest for `settle`. An
      event older than what is wanted tells nothing new.
I2  Comparable versions never go back while an entry is there.
I3  A claim publishes at most once, however often it is asked for, and a repeated claim or
    publish is answered as the first one was (a publish not after the guard was lost).
I4  No window is longer than the dataset's. What lacks a change is served stale (stale on
    error) no longer than that window after its purge, and never after a hard purge.
I5  Of one key's claims only the last one issued publishes, and not while another holds the
    lease; fences grow, also after the guard was lost.
I6  An invalidation provably older than the entry or (soft) than a purge that was applied
    changes no entry. None touches failures or retry_at.
I7  Once things calm down, a few loads make the key fresh with what was asked for, and a
    refresh that was asked for is never answered by an entry that lacks it.
I8  While the key backs off after a failure or a lagging load, nobody gets its lease.
I9  No work is thrown away: the last claim is not fenced, a load that proves itself is
    published, and one that was only overtaken by soft invalidations is served stale. No
    lease outlives its publish.

Known, and beyond the seeds that the tests play (74345 is the first): when a versionless
and a versioned event made one refresh due, and a failover undid the versionless purge, an
entry that reached the version answers it FRESH (I7). Replaying the event log heals it.
Not searched: a server's clock that goes back, a copy of a call that reaches the new primary
after a failover, and two fences of one key in one microsecond of a server without its guard.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.interleaving.world import (
    ERROR_MS,
    FRESH_MS,
    LAG_RETRY_MS,
    SETTLE_MS,
    STALE_MS,
    Change,
    Load,
)
from warmer.model.entry import HEADER, HEADER_BYTES
from warmer.model.event import PurgeMode
from warmer.model.lease import Lease
from warmer.model.outcome import (
    Claimed,
    ClaimReply,
    Fresh,
    PublishReply,
    RenewReply,
)
from warmer.model.version import (
    Order,
    Scope,
    SourceVersion,
    Versions,
    decode_vector,
    version_for,
)
from warmer.store.port import Claim, Invalidation


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def require(invariant: str, holds: bool, what: str) -> None:  # noqa: FBT001
    """Raise Broken unless `holds`."""
    if not holds:
        raise Broken(invariant, what)


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as the server has it. `raw` tells two entries apart."""

    raw: bytes
    fresh_until: int
    stale_until: int
    error_until: int
    fence: int
    versions: Versions
    load: int

    @classmethod
    def of(cls, raw: bytes) -> "Stored":
        """Return what `raw` says."""
        header = HEADER.unpack_from(raw)
        body = HEADER_BYTES + header[11]
        return cls(
            raw,
            fresh_until=header[6],
            stale_until=header[7],
            error_until=header[8],
            fence=header[9],
            versions=decode_vector(raw[HEADER_BYTES:body].decode()),
            load=int(raw[body:]),
        )


@dataclass(frozen=True, slots=True)
class Peek:
    """What the server holds for the key now."""

    entry: Stored | None
    lease: str | None
    guard: dict[str, str]


@dataclass(frozen=True, slots=True)
class Announced:
    """A change that the store was told of. `asked` = by a refresh's wanted versions."""

    change: Change
    version: SourceVersion | None
    seq: int
    at: int
    hard: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a refresh was asked for, and when."""

    change: Change
    version: SourceVersion | None
    seq: int


Mine = tuple[int, str]
"""Fence and token: one claim."""


@dataclass(slots=True)
class History:
    """What the store was told and has answered, as far as it has not been undone."""

    announced: list[Announced] = field(default_factory=list)
    issued: Mine | None = None
    running: bool = False
    last_fence: int = 0
    failures: int = 0
    published: frozenset[Mine] = frozenset()
    publisher: Mine | None = None
    purged_at: int = 0
    retry_at: int = 0

    def copy(self) -> "History":
        """Return what a replica of the server would know."""
        return replace(self, announced=list(self.announced))

    def guard_lost(self) -> None:
        """Forget what only the guard knew."""
        self.announced.clear()
        self.issued = self.publisher = None
        self.running = False
        self.purged_at = self.retry_at = self.failures = 0


def order(version: SourceVersion | None, other: SourceVersion | None) -> Order:
    """Return how two versions stand, incomparable where one is not known."""
    if version is None or other is None:
        return Order.INCOMPARABLE
    return version.compare(other)


class Oracle:
    """Follows each call that the store carries out and says what is wrong."""

    def __init__(self) -> None:
        self.history = History()
        self.loads: list[Load] = []
        self.claims: dict[Mine, tuple[int, int]] = {}
        self.seq = 0
        self._checked: tuple[bytes, int, int] | None = None

    # --- the entry --------------------------------------------------------------------

    def check_entry(self, entry: Stored | None, now: int) -> None:
        """Check I1 and I4 on what readers would get now."""
        if entry is None:
            return
        state = (entry.raw, now, len(self.history.announced))
        if state == self._checked:
            return
        load = self.loads[entry.load]
        fresh = entry.fresh_until > now
        for told in self.history.announced:
            if load.contains.get(told.change.entity, 0) < told.change.at:
                self._check_lack(entry, load, told, now, fresh=fresh)
        self._checked = state

    def _check_lack(
        self, entry: Stored, load: Load, told: Announced, now: int, *, fresh: bool
    ) -> None:
        ours = version_for(told.change.scope, entry.versions)
        comparable = order(ours, told.version) is not Order.INCOMPARABLE
        what = f"load {load.number} lacks change {told.change.at}"
        if told.asked and load.published_seq <= told.seq:
            return
        if told.asked and comparable:
            require("I1", not fresh, f"fresh, but {what} (wanted)")
            return
        if not comparable and (told.asked or load.claim_seq > told.seq):
            lags_longer = load.claimed_at >= told.at + SETTLE_MS
            settling = now < load.purged_at + SETTLE_MS
            require(
                "I1",
                not fresh or lags_longer or settling,
                f"fresh after settle, but {what} (unproven)",
            )
            return
        require("I1", not fresh, f"fresh, but {what}")
        last = max(entry.stale_until, entry.error_until)
        require("I4", not told.hard or last <= now, f"hard-purged, but {what}")
        stale = entry.stale_until <= told.at + STALE_MS
        require("I4", stale, f"stale window grew, and {what}")
        error = entry.error_until <= told.at + ERROR_MS
        require("I4", error, f"error window grew, and {what}")

    # --- claim ------------------------------------------------------------------------

    def claimed(
        self,
        before: Peek,
        claim: Claim,
        asked: Sequence[Asked],
        reply: ClaimReply,
        now: int,
    ) -> None:
        """Check a claim that was carried out."""
        for each in asked:
            if each.version:
                self._wanted(each.change, now)
        if isinstance(reply, Fresh):
            self._answered_fresh(reply, claim, asked, now)
        if isinstance(reply, Claimed):
            self._issued(before, reply.lease, now)

    def _wanted(self, change: Change, now: int) -> None:
        known = (
            order(told.version, change.version)
            for told in self.history.announced
            if told.change.entity == change.entity
        )
        if not any(known in {Order.NEWER, Order.EQUAL} for known in known):
            self.history.announced.append(
                Announced(change, change.version, self.seq, now, asked=True)
            )
            self.history.purged_at = now

    def _answered_fresh(
        self, reply: Fresh, claim: Claim, asked: Sequence[Asked], now: int
    ) -> None:
        entry = reply.entry
        require("I7", entry.fresh_until > now, "FRESH, but the entry is stale")
        require("I7", entry.fence != claim.seen_fence, "FRESH, but the caller saw it")
        load = self.loads[int(entry.body)]
        for each in asked:
            if load.contains.get(each.change.entity, 0) >= each.change.at:
                continue
            what = f"FRESH, but load {load.number} lacks change {each.change.at}, asked"
            ours = version_for(each.change.scope, load.versions)
            require("I7", order(ours, each.version) is Order.INCOMPARABLE, what)
            require("I7", load.claim_seq > each.seq, f"{what} after it began")

    def _issued(self, before: Peek, lease: Lease, now: int) -> None:
        history, mine = self.history, (lease.fence, lease.token)
        if history.issued == mine and history.running:
            return
        repeated = (
            history.issued is not None
            and history.issued[1] == lease.token == before.lease
            and history.running
        )
        require("I3", not repeated, "a repeated claim was issued a second time")
        free = before.lease in {None, lease.token}
        require("I5", free, "issued while another holds the lease")
        grows = lease.fence > history.last_fence
        require("I5", grows, f"fence {lease.fence} after {history.last_fence}")
        failures = lease.failures == history.failures
        require("I8", failures, f"{lease.failures} failures, not {history.failures}")
        backs_off = now < history.retry_at
        require("I8", not backs_off, "issued while the key backs off")
        history.issued, history.running = mine, True
        history.last_fence = lease.fence
        self.claims[mine] = (self.seq, now)

    # --- publish and release ----------------------------------------------------------

    def published(
        self,
        *,
        before: Peek,
        after: Peek,
        lease: Lease,
        load: Load,
        reply: PublishReply,
        now: int,
    ) -> None:
        """Check a publish that was carried out."""
        history, mine = self.history, (lease.fence, lease.token)
        if reply in {PublishReply.ALREADY, PublishReply.ALREADY_KEPT}:
            require("I3", mine in history.published, "ALREADY, but it never was")
            return
        entry = before.entry
        again = mine in history.published
        mine_is_there = history.publisher == mine and entry is not None
        require("I3", not mine_is_there, f"a repeated publish was answered {reply}")
        last = history.issued == mine and history.running
        free = before.lease in {None, lease.token}
        if reply is PublishReply.FENCED:
            require("I9", not (last and free), "the last claim was fenced")
            return
        require("I3", not again, "a claim published twice")
        require("I5", free, "published while another holds the lease")
        require("I5", last, "published, and is not the last claim")
        require("I9", after.lease is None, "the lease outlives its publish")
        history.running = False
        if reply is PublishReply.OUTDATED:
            require("I9", self._outdated(load, entry, now), "an answer was thrown away")
            lagging = self._lagging(load, before_seq=self.seq)
            if lagging or self._older_than(entry, load):
                history.retry_at = now + LAG_RETRY_MS
            return
        kept = reply is PublishReply.KEPT_STALE
        require(
            "I9", not (kept and self._proven(load, entry)), "proven, but kept stale"
        )
        if entry:
            regressed = any(
                order(version_for(scope, load.versions), version) is Order.OLDER
                for scope, version in entry.versions.items()
            )
            require("I2", not regressed, "an older version replaced a newer one")
        history.retry_at = history.failures = 0
        history.published |= {mine}
        history.publisher = mine
        load.published_seq, load.purged_at = self.seq, history.purged_at

    def check_windows(self, entry: Stored, now: int, *, kept: bool) -> None:
        """Check I4 on what was published now."""
        load = self.loads[entry.load]
        fresh = load.claimed_at if kept else now + FRESH_MS
        require("I4", entry.fresh_until <= fresh, "fresh window")
        require("I4", entry.stale_until <= fresh + STALE_MS, "stale window")
        require("I4", entry.error_until <= fresh + ERROR_MS, "error window")

    def renewed(self, before: Peek, lease: Lease, reply: RenewReply) -> None:
        """Check a renewal that was carried out."""
        mine = before.lease == lease.token
        require(
            "I5", mine == (reply is RenewReply.RENEWED), f"{reply} of {before.lease}"
        )

    def released(
        self, before: Peek, after: Peek, lease: Lease, retry_ms: int | None, now: int
    ) -> None:
        """Check a release that was carried out."""
        history = self.history
        ends = before.lease if before.lease != lease.token else None
        require("I5", after.lease == ends, "a release ended another's lease")
        # By token: the claim may have been issued anew to a first try that came late.
        mine = history.issued is not None and history.issued[1] == lease.token
        if mine and history.running:
            history.running = False
            if retry_ms is not None:
                history.retry_at = now + retry_ms
                history.failures += 1

    def _lagging(self, load: Load, *, before_seq: int) -> bool:
        return any(
            order(version_for(told.change.scope, load.versions), told.version)
            is Order.OLDER
            for told in self.history.announced
            if told.seq <= before_seq
        )

    def _outdated(self, load: Load, entry: Stored | None, now: int) -> bool:
        """Return whether there is a reason to serve this load to nobody."""
        hard = any(
            told.hard and told.seq > load.claim_seq for told in self.history.announced
        )
        over = load.claimed_at + max(STALE_MS, ERROR_MS) <= now
        return (
            hard
            or over
            or self._older_than(entry, load)
            or self._lagging(load, before_seq=load.claim_seq)
        )

    def _proven(self, load: Load, entry: Stored | None) -> bool:
        """Return whether nothing announced speaks against this load."""
        for told in self.history.announced:
            ours = order(version_for(told.change.scope, load.versions), told.version)
            if ours is Order.OLDER:
                return False
            if ours is Order.INCOMPARABLE and told.seq > load.claim_seq:
                return False
        return not self._older_than(entry, load)

    def _older_than(self, entry: Stored | None, load: Load) -> bool:
        return entry is not None and any(
            order(version_for(scope, load.versions), version) is Order.OLDER
            for scope, version in entry.versions.items()
        )

    # --- invalidate -------------------------------------------------------------------

    def invalidated(
        self,
        *,
        before: Peek,
        after: Peek,
        invalidation: Invalidation,
        change: Change,
        now: int,
    ) -> None:
        """Check an invalidation that was carried out."""
        history, version = self.history, invalidation.version
        hard = invalidation.mode is PurgeMode.HARD
        in_entry = self._in_entry(before, invalidation.scope, version)
        older = in_entry is Order.NEWER
        stands = {
            order(told.version, version)
            for told in history.announced
            if told.change.entity == change.entity
        }
        superseded = (
            not hard
            and in_entry is not Order.OLDER
            and (Order.NEWER in stands or (older and Order.EQUAL in stands))
        )
        untouched = (before.entry and before.entry.raw) == (
            after.entry and after.entry.raw
        )
        require("I6", untouched or not older, "an older one purged a newer entry")
        require("I6", untouched or not superseded, "one that is older purged again")
        for name in ("failures", "retry_at"):
            same = before.guard.get(name) == after.guard.get(name)
            require("I6", same, f"an invalidation changed {name}")
        if not superseded:
            history.announced.append(
                Announced(change, version, self.seq, now, hard=hard)
            )
            history.purged_at = now

    def _in_entry(
        self, before: Peek, scope: Scope, version: SourceVersion | None
    ) -> Order:
        if before.entry is None:
            return Order.INCOMPARABLE
        return order(version_for(scope, before.entry.versions), version)
