"""The scripts are the reference: every reply and every stored byte, for any steps.

A state machine plays the same steps on both and compares after each one.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from tests.protocol.world import (
    KEY,
    TIMEOUT_MS,
    RedisWorld,
    ReferenceWorld,
    World,
    change,
    claim,
    in_order,
    publication,
)
from tests.servers import ServerProcess
from warmer.model.entry import NOT_FOUND, Content, Flag
from warmer.model.event import PurgeMode
from warmer.model.lease import Lease
from warmer.model.outcome import Claimed
from warmer.model.version import SourceVersion, Versions
from warmer.store.connections import Endpoint, connect
from warmer.store.port import Family, Invalidation
from warmer.store.redis_store import STAGE_ABOVE

T = TypeVar("T")
Step: TypeAlias = Callable[[World], Coroutine[Any, Any, T]]

SCOPES = ("shop-db/product:42", "shop-db/stock:42", "prices/eu:42@x")
POSITIONS = ("shop-db", "prices")
NUMBERS = (0, 1, 2, 0xA9, 0xAA, 2**53, 2**53 + 1, 2**64 - 1)
"""Neighbours that a float takes for equal, and 0xaa, which a Danish collation puts last."""

tokens = st.sampled_from(["token-a", "token-b", "token-c"])
spans = st.sampled_from([0, 1, 40, 1_000, 1_000])
lives = st.sampled_from([1, 50, 400, 100_000, 100_000, 100_000])
numbers = st.sampled_from(NUMBERS)


@st.composite
def versions_of(draw: st.DrawFn, source: str) -> SourceVersion:
    parts = draw(st.lists(numbers, min_size=1, max_size=2))
    return SourceVersion.of(source, *parts, epoch=draw(st.sampled_from([0, 0, 0, 7])))


@st.composite
def vectors(draw: st.DrawFn) -> Versions:
    scopes = draw(
        st.lists(st.sampled_from(SCOPES + POSITIONS), max_size=3, unique=True)
    )
    return {scope: draw(versions_of(scope.partition("/")[0])) for scope in scopes}


@st.composite
def events(draw: st.DrawFn) -> Invalidation:
    scope = draw(st.sampled_from(SCOPES))
    source = scope.partition("/")[0]
    return change(
        scope=scope,
        mode=draw(st.sampled_from(PurgeMode)),
        version=draw(st.none() | versions_of(source)),
        stale_ms=draw(spans),
        error_ms=draw(spans),
        guard_ms=draw(lives),
    )


contents = st.one_of(
    st.just(NOT_FOUND),
    st.builds(Content, st.just(int(Flag.RAW)), st.binary(max_size=20)),
    st.just(Content(int(Flag.RAW), b"large" * STAGE_ABOVE)),
)


class SameAsReference(RuleBasedStateMachine):
    """One key, three owners and a plain client; time moves, and anything can get lost."""

    server: ServerProcess
    runner: asyncio.Runner
    leases: Bundle[Lease] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.run(self._start())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    async def _start(self) -> None:
        self.reference = ReferenceWorld()
        redis = connect(Endpoint(url=self.server.url, timeout_ms=TIMEOUT_MS))
        self.real = RedisWorld(redis)
        await redis.flushall()

    @override
    def teardown(self) -> None:
        self.run(self.real.aclose())

    def both(self, step: Step[T]) -> T:
        """Take a step on both; what they reply must be equal."""
        return self.run(self._both(step))

    async def _both(self, step: Step[T]) -> T:
        expected = await step(self.reference)
        found = await step(self.real)
        assert found == expected
        return expected

    @property
    def now(self) -> int:
        return self.reference.now()

    def _stored_fences(self) -> list[int]:
        entry = self.reference.store.entries.get(KEY.text)
        guard = self.reference.store.guards.get(KEY.text)
        found = [int.from_bytes(entry.value[48:56], "big")] if entry else []
        return [*found, int(guard.value.get("fence", 0))] if guard else found

    # --- steps ------------------------------------------------------------------------

    @rule(
        target=leases,
        token=tokens,
        lease_ms=lives,
        guard_ms=lives,
        wanted=st.one_of(st.just({}), vectors()),
        data=st.data(),
    )
    def claim(
        self,
        token: str,
        lease_ms: int,
        guard_ms: int,
        wanted: Versions,
        data: st.DataObject,
    ) -> Any:
        fences = st.sampled_from([0, *self._stored_fences()])
        asked = claim(
            token,
            lease_ms=lease_ms,
            guard_ms=guard_ms,
            wanted=wanted,
            seen_fence=data.draw(fences, "seen_fence"),
            wanted_fence=data.draw(fences, "wanted_fence"),
        )
        reply = self.both(lambda world: world.store.claim(asked))
        return reply.lease if isinstance(reply, Claimed) else multiple()

    @rule(lease=leases, lease_ms=lives)
    def renew(self, lease: Lease, lease_ms: int) -> None:
        self.both(lambda world: world.store.renew(lease, lease_ms))

    @rule(
        lease=leases,
        versions=vectors(),
        content=contents,
        fresh_ms=spans,
        stale_ms=spans,
        error_ms=spans,
        settle_ms=spans,
        guard_ms=lives,
    )
    def publish(
        self, lease: Lease, versions: Versions, content: Content, **windows: int
    ) -> None:
        body = publication(versions, content=content, **windows)
        self.both(lambda world: world.store.publish(lease, body))

    @rule(target=leases, token=tokens, versions=vectors(), event=st.none() | events())
    def a_load_succeeds(
        self, token: str, versions: Versions, event: Invalidation | None
    ) -> Any:
        """The ordinary course, or one that an event interrupts."""
        reply = self.both(lambda world: world.store.claim(claim(token)))
        if not isinstance(reply, Claimed):
            return multiple()
        if event is not None:
            self.both(lambda world: world.store.invalidate(event))
        body = publication(versions, fresh_ms=100, stale_ms=100, error_ms=100)
        self.both(lambda world: world.store.publish(reply.lease, body))
        return reply.lease

    @rule(lease=leases, retry_ms=st.one_of(st.none(), spans))
    def release(self, lease: Lease, retry_ms: int | None) -> None:
        self.both(lambda world: world.store.release(lease, retry_ms=retry_ms))

    @rule(event=events())
    def invalidate(self, event: Invalidation) -> None:
        self.both(lambda world: world.store.invalidate(event))

    @rule(ms=st.sampled_from([1, 10, 30, 60, 500]))
    def time_passes(self, ms: int) -> None:
        self.both(lambda world: world.advance(ms))

    @rule(what=st.sampled_from(["entry", "lease", "guard"]))
    def something_is_lost(self, what: str) -> None:
        match what:
            case "entry":
                self.both(lambda world: world.lose_entry())
            case "lease":
                self.both(lambda world: world.lose_lease())
            case _:
                self.both(lambda world: world.lose_guard())

    @rule(ms=st.sampled_from([None, 1, 70]), unlock=st.booleans())
    def a_plain_client_comes(self, ms: int | None, unlock: bool) -> None:  # noqa: FBT001
        self.both(lambda world: world.plain_lock("plain", ms=ms))
        if unlock:
            self.both(lambda world: world.plain_unlock("plain"))

    @rule(at=st.sampled_from([0, 2, 3, 8, 61, 63]), data=st.binary(max_size=80))
    def the_entry_is_damaged(self, at: int, data: bytes) -> None:
        """In its magic, format, flags, digest or lengths; or it is another program's."""
        entry = self.reference.store.entries.get(KEY.text)
        damaged = data
        if entry is not None:
            damaged = entry.value[:at] + b"\xf7" + entry.value[at + 1 :]
        self.both(lambda world: world.put_entry(damaged, for_ms=1_000))

    @rule()
    def a_reader_reads(self) -> None:
        self.both(lambda world: world.store.read(KEY))

    @rule()
    def somebody_looks(self) -> None:
        self.both(_inspected)

    # --- what must hold after each ----------------------------------------------------

    @invariant()
    def every_byte_is_the_same(self) -> None:
        self.run(self._compare())

    async def _compare(self) -> None:
        expected = await self.reference.kept()
        assert await self.real.kept() == expected
        # Nothing else is left, such as a staged body.
        family = (expected.entry, expected.lease, expected.guard or None)
        assert await self.real.redis.dbsize() == 3 - family.count(None)


async def _inspected(world: World) -> Family:
    family = await world.store.inspect(KEY)
    return replace(family, guard=in_order(family.guard))


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
@pytest.mark.timeout(120)
def test_the_scripts_do_what_the_reference_does(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """R-LSE-4, R-REC-1, R-INV-2, R-INV-3, CLOCK-1, SCRIPT-4: one contract, kept twice."""

    class OnThisServer(SameAsReference):
        server = request.getfixturevalue(kind)

    OnThisServer.server.renew()
    with asyncio.Runner() as runner:
        OnThisServer.runner = runner
        run_state_machine_as_test(
            OnThisServer,
            settings=settings(
                max_examples=50,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
