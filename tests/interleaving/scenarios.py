"""Schedules: readers, refreshes, producers and an adversary around one key, by seed.

`search(seed, server)` plays one schedule on a store and checks `invariants` after every
call; it raises Broken with the trace. The adversary moves time, loses leases, guards,
entries and replies, delays a first try behind its repetition, fails over to a replica that
lacks the last writes, pauses and kills owners, and takes the lease as a plain client does.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from typing_extensions import override

from tests.interleaving.gate import Gate, turn
from tests.interleaving.invariants import (
    Asked,
    Broken,
    Oracle,
    Peek,
    require,
)
from tests.interleaving.world import (
    ERROR_MS,
    FRESH_MS,
    GUARD_MS,
    KEY,
    LAG_RETRY_MS,
    LEASE_MS,
    RETRY_MS,
    SETTLE_MS,
    STALE_MS,
    Change,
    Load,
    Reports,
    Source,
)
from tests.protocol.world import START_MS, Now
from warmer.errors import StoreTimeout
from warmer.model.entry import Content, Entry, Flag
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
from warmer.model.version import Versions, newest
from warmer.store.port import (
    CacheStore,
    Claim,
    Family,
    Invalidation,
    Publication,
    Waiter,
)

T = TypeVar("T")

MAX_STEPS = 60
MAX_CALM_LOADS = 2
JUMPS_MS = (1, 5, 20, SETTLE_MS, LEASE_MS, STALE_MS, FRESH_MS)
PLAIN = "plain client"


class Server(Protocol):
    """A cache server under test, and what can happen to it."""

    @property
    def store(self) -> CacheStore:
        """The port."""
        ...

    async def peek(self) -> Peek:
        """Return what it holds for the key."""
        ...

    async def lose(self, what: str) -> None:
        """Lose the entry, the lease or the guard."""
        ...

    async def take_plain_lease(self, token: str, lease_ms: int | None) -> bool:
        """SET NX PX, as a client does that knows nothing else; None = without PX."""
        ...

    async def drop_plain_lease(self, token: str) -> None:
        """Compare and delete."""
        ...

    async def replicate(self) -> None:
        """Let its replica know all that it knows."""
        ...

    async def fail_over(self) -> None:
        """Go back to what its replica knows."""
        ...


@dataclass(slots=True)
class Due:
    """The key's place in the due set: what a refresh must reach."""

    wanted: Versions = field(default_factory=dict)
    wanted_fence: int = 0
    asked: tuple[Asked, ...] = ()

    def also(self, asked: Asked, fence: int) -> "Due":
        """Return what is due after one more invalidation."""
        scoped = [(asked.change.scope, asked.version)] if asked.version else []
        return Due(
            newest(self.wanted, scoped),
            max(self.wanted_fence, fence),
            (*self.asked, asked),
        )


NOTHING_DUE = Due()


class Play:
    """One schedule."""

    def __init__(self, seed: int, server: Server, now: Now) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.server, self.now = server, now
        self.gate = Gate(random)
        self.oracle = Oracle()
        entities = ("a", "b") if random.random() < 0.35 else ("a",)
        self.source = Source(entities, random)
        self.reports = random.choice(tuple(Reports))
        self.mixed = random.random() < 0.4
        self.blind = random.choice((0, 0, 0.3, 1))
        self.hard = random.choice((0, 0, 0.3))
        self.faults = random.choice((0, 0, 0.1, 0.2, 0.4))
        self.replies = random.choice((0, 0, 0.05, 0.15, 0.3))
        self.events = random.choice((0.1, 0.3, 1))
        self.stuck = random.random() < 0.4
        self.early = random.choice((0.3, 0.8))
        self.deletes = random.choice((0, 0.3))
        self.loss = random.choice(("guard", "lease", "entry", "failover", "any"))
        self.due: Due = NOTHING_DUE
        self.calm = False
        self.primary = 0
        self._replica = self.oracle.history.copy()
        self._tokens = 0
        self._chosen: Callable[[], float] = random.random

    # --- the schedule -----------------------------------------------------------------

    async def run(self) -> None:
        """Play it to its end."""
        random = self.random
        for entity in self.source.entities:
            self.source.write(entity)
        self.source.replica = random.randint(0, self.source.head)
        for number in range(random.choice((1, 2, 2, 3))):
            self._act(f"reader {number}", self.reader)
        self._act("refresher", self.refresher)
        for _ in range(random.choice((1, 2, 3))):
            self.write()
        if random.random() < 0.1:
            self._act(PLAIN, self.plain_client)
        for _ in range(MAX_STEPS):
            if not self.gate:
                break
            if random.random() < 0.25:
                await self.adversary()
            else:
                await self.gate.step()
            await self.check()
        await self.calm_down()

    async def check(self) -> None:
        """Check what readers would get now."""
        self.oracle.check_entry((await self.server.peek()).entry, self.now.ms)

    def _act(
        self, name: str, body: Callable[[str], Awaitable[None]], *, pace: float = 1
    ) -> None:
        weight = self.random.choice((0.2, 1, 1, 3))
        self.gate.add(name, _coroutine(body(name)), weight=weight * pace)

    def token(self) -> str:
        """Return a token that nobody has."""
        self._tokens += 1
        return f"t{self._tokens}"

    # --- the adversary ----------------------------------------------------------------

    async def adversary(self) -> None:
        """Move time or the replica, change the source, or lose something."""
        chance = self.random.random()
        if chance < self.faults:
            await self.lose()
        elif chance < 0.5:
            self.jump(self.random.choice(JUMPS_MS[: self.random.choice((3, 5, 7))]))
        elif chance < 0.75:
            if not self.stuck:
                self.source.replicate()
                self.gate.note(f"replica at {self.source.replica}")
        elif chance < 0.85 and self.source.head < 8:
            self.write()
        else:
            await self.server.replicate()
            self._replica = self.oracle.history.copy()
            self.gate.note("the store's replica is in step")

    def jump(self, ms: int) -> None:
        """Let time pass."""
        self.now.ms += ms
        self.gate.note(f"{ms} ms pass, now {self.now.ms - START_MS}")

    async def lose(self) -> None:
        """Lose something that the store knew."""
        what = self.loss
        if what == "any":
            what = self.random.choice(("guard", "lease", "entry", "failover"))
        self.gate.note(f"lost: {what}")
        if what == "failover":
            await self.server.fail_over()
            self.primary += 1
            self.oracle.history = self._replica.copy()
            if self.random.random() < 0.5:
                self.recover()
            return
        await self.server.lose(what)
        if what == "guard":
            # Else two claims of one microsecond could get one fence.
            self.now.ms += 1
            self.oracle.history.guard_lost()

    def recover(self) -> None:
        """Replay the event log."""
        for change in self.source.log[len(self.source.entities) :]:
            self._announce(change)

    def write(self) -> None:
        """Change the source; its event is delivered once or twice, in any order."""
        random = self.random
        change = self.source.write(
            random.choice(self.source.entities),
            deleted=random.random() < self.deletes,
            epoch=random.random() < 0.1,
        )
        self.gate.note(f"change {change.at} of {change.entity} {change.deleted=}")
        for _ in range(random.choice((1, 1, 1, 2))):
            self._announce(change)

    def _announce(self, change: Change) -> None:
        blind = self.random.random() < self.blind
        hard = self.random.random() < self.hard
        version = None if blind else change.version
        mode = PurgeMode.HARD if hard else PurgeMode.SOFT

        async def deliver(name: str) -> None:
            invalidation = Invalidation(
                KEY, change.scope, version, mode, STALE_MS, ERROR_MS, GUARD_MS
            )
            store = Gated(self, name, change=change)
            reply = await again(lambda: store.invalidate(invalidation))
            if reply.result is not InvalidateResult.OLDER:
                asked = Asked(change, version, store.seq)
                self.due = self.due.also(asked, reply.fence)

        kind = f"{'blind ' * blind}{'hard ' * hard}event {change.at}"
        self._act(kind, deliver, pace=self.events)

    # --- actors -----------------------------------------------------------------------

    async def reader(self, name: str) -> None:
        """Read, and refresh what is not fresh, or is fresh and refreshed early."""
        random = self.random
        for _ in range(random.choice((1, 2, 3))):
            entry = await Gated(self, name).read(KEY)
            fresh = entry is not None and entry.fresh_until > self.now.ms
            if fresh and random.random() >= self.early:
                continue
            await self.refresh(
                name, NOTHING_DUE, seen_fence=entry.fence if entry else 0
            )

    async def refresher(self, name: str) -> None:
        """Refresh what is due."""
        for _ in range(4):
            await turn("takes what is due")
            if self.due is not NOTHING_DUE:
                await self.refresh(name, self.due)

    async def refresh(
        self, name: str, due: Due, *, seen_fence: int = 0
    ) -> ClaimReply | PublishReply | None:
        """Claim, load, publish; what was due is done when it is fresh."""
        store = Gated(self, name, asked=due.asked)
        claim = Claim(
            KEY,
            self.token(),
            LEASE_MS,
            GUARD_MS,
            seen_fence=seen_fence,
            wanted=due.wanted,
            wanted_fence=due.wanted_fence,
        )
        claimed = await again(lambda: store.claim(claim))
        if isinstance(claimed, Fresh):
            self._done(due)
        if not isinstance(claimed, Claimed):
            return claimed
        reply = await self._hold(store, claimed.lease)
        if reply in {PublishReply.PUBLISHED, PublishReply.ALREADY}:
            self._done(due)
        return reply

    def _done(self, due: Due) -> None:
        if self.due is due:
            self.due = NOTHING_DUE

    async def _hold(self, store: "Gated", lease: Lease) -> PublishReply | None:
        store.load = load = await self._load(lease)
        if not self.calm and not await self._survives(store, lease):
            return None
        publication = self._publication(load)
        try:
            return await store.publish(lease, publication)
        except StoreTimeout:
            if self.random.random() < 0.3:
                await again(lambda: store.release(lease))
                return None
            return await again(lambda: store.publish(lease, publication))

    async def _survives(self, store: "Gated", lease: Lease) -> bool:
        """Return whether an owner gets to its publish."""
        random = self.random
        fate = random.random()
        if fate < 0.05:
            return False  # killed
        if fate < 0.13:  # cancelled
            await again(lambda: store.release(lease))
            return False
        if fate < 0.22:  # the origin failed
            await again(lambda: store.release(lease, retry_ms=RETRY_MS))
            return False
        if fate < 0.35:  # slow, so that it renews
            renewed = await again(lambda: store.renew(lease, LEASE_MS))
            if renewed is RenewReply.LOST and random.random() < 0.5:
                await again(lambda: store.release(lease))
                return False
        return True

    async def _load(self, lease: Lease) -> Load:
        """Read the origin, entity by entity; a position is taken before the data."""
        source, random = self.source, self.random
        claim_seq, claimed_at = self.oracle.claims[lease.fence, lease.token]
        await turn("reads the origin")
        place = source.read_place()
        contains: dict[str, int] = {}
        for entity in source.entities:
            if contains and random.random() < 0.5:
                await turn(f"reads {entity}")
            contains[entity] = random.choice((place, max(place, source.read_place())))
        negative, versions = source.found(contains)
        reports = random.choice(tuple(Reports)) if self.mixed else self.reports
        if reports is Reports.POSITION:
            versions = source.position(place)
        if reports is Reports.NOTHING:
            versions = {}
        number = len(self.oracle.loads)
        load = Load(number, contains, versions, negative, claim_seq, claimed_at)
        self.oracle.loads.append(load)
        self.gate.note(f"load {number} contains {contains}, reports {reports}")
        return load

    def _publication(self, load: Load) -> Publication:
        flags = Flag.NEGATIVE if load.negative else Flag.RAW
        return Publication(
            KEY,
            Content(flags, str(load.number).encode()),
            load.versions,
            load_ms=5,
            fresh_ms=FRESH_MS,
            stale_ms=STALE_MS,
            error_ms=ERROR_MS,
            settle_ms=SETTLE_MS,
            lag_retry_ms=LAG_RETRY_MS,
            guard_ms=GUARD_MS,
        )

    async def plain_client(self, name: str) -> None:
        """Take the lease as a client does that knows nothing but SET NX PX."""
        for _ in range(3):
            await turn("SET NX PX")
            dies = self.random.random() < 0.3
            if await self.server.take_plain_lease(name, None if dies else LEASE_MS):
                self.gate.note("dies before EXPIRE" if dies else "has the lease")
                if dies:
                    return
                await turn("does its work")
                await turn("compare and delete")
                await self.server.drop_plain_lease(name)

    # --- once things calm down --------------------------------------------------------

    async def calm_down(self) -> None:
        """Check I7: no more faults, the replica has caught up, what is due is refreshed."""
        self.gate.note("calm")
        self.calm = True
        self.source.replica = self.source.head
        while self.gate:
            await self.gate.step()
            await self.check()
        await self._until_fresh()
        self.jump(SETTLE_MS)
        await self.check()
        self.jump(FRESH_MS)
        await self._until_fresh()
        entry = (await self.server.peek()).entry
        if entry is None:
            raise Broken("I7", "nothing there")
        load = self.oracle.loads[entry.load]
        newest_state = all(
            place == self.source.head for place in load.contains.values()
        )
        require("I7", newest_state, f"load {load.number} is not the newest state")

    async def _until_fresh(self) -> None:
        loads = 0
        for _ in range(12):
            entry = (await self.server.peek()).entry
            fresh = entry is not None and entry.fresh_until > self.now.ms
            if fresh and self.due is NOTHING_DUE:
                return
            results: list[ClaimReply | PublishReply | None] = []

            async def refresh(name: str) -> None:
                results.append(await self.refresh(name, self.due))  # noqa: B023

            self._act("refresher", refresh)
            while self.gate:
                await self.gate.step()
                await self.check()
            match results[0]:
                case Held() as held:
                    short = held.remaining_ms <= LEASE_MS
                    require("I7", short, f"held for {held.remaining_ms} ms more")
                    self.jump(held.remaining_ms)
                case Cooling() as cooling:
                    self.jump(cooling.retry_in_ms)
                case Fresh():
                    pass
                case _:
                    loads += 1
            require(
                "I7", loads <= MAX_CALM_LOADS, f"{loads} loads, and it is not fresh"
            )
        raise Broken("I7", "it never becomes fresh")


async def _coroutine(body: Awaitable[None]) -> None:
    await body


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call whose reply was lost."""
    while True:
        try:
            return await call()
        except StoreTimeout:
            continue


class Gated(CacheStore):
    """A store whose caller waits for its turn before each call, and may miss the reply."""

    def __init__(
        self,
        play: Play,
        name: str,
        *,
        asked: tuple[Asked, ...] = (),
        change: Change | None = None,
    ) -> None:
        self._play, self._name = play, name
        self._asked, self._change = asked, change
        self.load: Load | None = None
        self.seq = 0

    @override
    def now_ms(self) -> int:
        return self._play.now.ms

    @override
    async def read(self, key: Key) -> Entry | None:
        await turn("read")
        return await self._play.server.store.read(key)

    @override
    async def claim(self, claim: Claim) -> ClaimReply:
        async def carry_out() -> ClaimReply:
            play = self._play
            before = await play.server.peek()
            reply = await play.server.store.claim(claim)
            now = play.now.ms
            play.gate.note(f"claim {claim.token}: {_short(reply)}")
            play.oracle.claimed(before, claim, self._asked, reply, now)
            return reply

        return await self._call("claim", carry_out)

    @override
    async def renew(self, lease: Lease, lease_ms: int) -> RenewReply:
        async def carry_out() -> RenewReply:
            play = self._play
            before = await play.server.peek()
            reply = await play.server.store.renew(lease, lease_ms)
            play.gate.note(f"renew {lease.token}: {reply}")
            play.oracle.renewed(before, lease, reply)
            return reply

        return await self._call("renew", carry_out)

    @override
    async def publish(self, lease: Lease, publication: Publication) -> PublishReply:
        load = self.load
        assert load is not None

        async def carry_out() -> PublishReply:
            play = self._play
            before = await play.server.peek()
            reply = await play.server.store.publish(lease, publication)
            now = play.now.ms
            play.gate.note(f"publish load {load.number}: {reply}")
            after = await play.server.peek()
            play.oracle.published(
                before=before, after=after, lease=lease, load=load, reply=reply, now=now
            )
            kept = reply is PublishReply.KEPT_STALE
            if after.entry and (kept or reply is PublishReply.PUBLISHED):
                play.oracle.check_windows(after.entry, now, kept=kept)
            return reply

        return await self._call("publish", carry_out)

    @override
    async def release(
        self, lease: Lease, *, retry_ms: int | None = None
    ) -> ReleaseReply:
        async def carry_out() -> ReleaseReply:
            play = self._play
            before = await play.server.peek()
            reply = await play.server.store.release(lease, retry_ms=retry_ms)
            after = await play.server.peek()
            play.gate.note(f"release {lease.token}: {reply}")
            play.oracle.released(before, after, lease, retry_ms, play.now.ms)
            return reply

        return await self._call(f"release {retry_ms}", carry_out)

    @override
    async def invalidate_many(
        self, invalidations: Sequence[Invalidation]
    ) -> list[InvalidateReply]:
        # One script is atomic, a batch of them is not.
        return [await self.invalidate(each) for each in invalidations]

    @override
    async def invalidate(self, invalidation: Invalidation) -> InvalidateReply:
        change = self._change
        assert change is not None

        async def carry_out() -> InvalidateReply:
            play = self._play
            before = await play.server.peek()
            reply = await play.server.store.invalidate(invalidation)
            after = await play.server.peek()
            now = play.now.ms
            play.gate.note(f"invalidate {change.at}: {reply.result}")
            play.oracle.invalidated(
                before=before,
                after=after,
                invalidation=invalidation,
                change=change,
                now=now,
            )
            self.seq = play.oracle.seq
            return reply

        return await self._call("invalidate", carry_out)

    @override
    async def inspect(self, key: Key) -> Family:
        return await self._play.server.store.inspect(key)

    @override
    def waiting(self, key: Key) -> AbstractAsyncContextManager[Waiter]:
        return self._play.server.store.waiting(key)

    async def _call(self, step: str, carry_out: Callable[[], Awaitable[T]]) -> T:
        play = self._play
        await turn(step)
        play.oracle.seq += 1
        lost = not play.calm and play.random.random() < play.replies
        if not lost:
            return await carry_out()
        if play.random.random() < 0.5:
            await carry_out()
            play.gate.note("the reply is lost")
        else:
            play.gate.note("late")

            primary = play.primary

            async def late(_name: str) -> None:
                await turn(step)
                if primary != play.primary:
                    return  # It was under way to a server that is gone.
                play.oracle.seq += 1
                await carry_out()

            play._act(f"{self._name}, late", late)
        raise StoreTimeout(step)


def _short(reply: ClaimReply) -> str:
    match reply:
        case Claimed(lease):
            return f"CLAIMED fence {lease.fence}"
        case Fresh(entry):
            return f"FRESH fence {entry.fence}"
        case Held(remaining_ms):
            return f"HELD {remaining_ms}"
        case Cooling(retry_in_ms):
            return f"COOLING {retry_in_ms}"


async def search(seed: int, server: Server, now: Now) -> Play:
    """Play one schedule; raises Broken with its trace."""
    play = Play(seed, server, now)
    try:
        await play.run()
    except Broken as broken:
        trace = "\n".join(play.gate.trace)
        raise Broken(broken.invariant, f"{broken}\nseed {seed}\n{trace}") from None
    finally:
        play.gate.close()
    return play
