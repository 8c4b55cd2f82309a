"""All that a script touches lies in one Cluster slot, whatever the key is."""

from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tests.protocol.world import KEY, change, claimed, on, publication, rows
from tests.servers import HOST, KINDS, ServerProcess, free_port, running, wait_until
from warmer.errors import BadKey
from warmer.model.entry import encode_value
from warmer.model.key import KeyTemplate, Part
from warmer.model.outcome import (
    InvalidateResult,
    PublishReply,
    ReleaseReply,
    RenewReply,
)
from warmer.store.keyspace import Keyspace

TEMPLATES = ("lock:{key}", "{key}:lock", "warmer/{key}/lease")
PRODUCT = KeyTemplate("product:v{schema}:{locale}:{id}")

parts = st.one_of(st.text(), st.binary(), st.integers(), st.booleans())


@pytest.fixture(scope="module", params=sorted(KINDS))
def cluster(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A Cluster of one server, which has every slot."""
    # The default, 10,000 above the server's, is where the kernel puts connections.
    bus = str(free_port())
    server = KINDS[request.param](
        options=("--cluster-enabled", "yes", "--cluster-port", bus)
    )
    with running(server):
        server.command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        yield server


@pytest.fixture(scope="module")
def slots_of(cluster: ServerProcess) -> Iterator["Slots"]:
    with redis.Redis(host=HOST, port=cluster.port) as client:
        yield Slots(client)


class Slots:
    """The server's own answer."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def __call__(self, *names: str) -> set[int]:
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.cluster("KEYSLOT", name.encode())
        return set(pipeline.execute())


def side_keys(keyspace: Keyspace, key: str) -> tuple[str, ...]:
    return (
        keyspace.lease(key),
        keyspace.guard(key),
        keyspace.staged(key, "0123456789abcdef"),
        keyspace.channel(key),
    )


@given(locale=parts, number=parts, template=st.sampled_from(TEMPLATES))
@settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(locale="{", number="}", template="lock:{key}")
@example(locale="{}", number=b"\xff{x}", template="{key}:lock")
@example(locale="x" * 600, number=1, template="lock:{key}")
def test_side_keys_of_any_parts_share_their_keys_slot(
    slots_of: Slots, locale: Part, number: Part, template: str
) -> None:
    """R-REC-3, CLUSTER-3: arbitrary text and bytes, keys too long for themselves too."""
    try:
        key = PRODUCT.key("product", 3, {"locale": locale, "id": number}).text
    except BadKey:
        # Surrogates: not text.
        assume(False)  # noqa: FBT003

    assert len(slots_of(key, *side_keys(Keyspace(template), key))) == 1


@given(key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(key="tenant:{42}:product")
@example(key="{42}")
@example(key="{{42}}")
@example(key="a}b{c}d")
@example(key="{}{42}")
@example(key="{}")
@example(key="{")
@example(key="}")
def test_a_key_of_any_text_shares_its_slot_or_is_refused(
    slots_of: Slots, key: str
) -> None:
    """CLUSTER-3: keys of a request path that were there before, hash tags and all."""
    try:
        names = side_keys(Keyspace(), key)
    except BadKey:
        assert "{" in key or "}" in key
        return

    assert len(slots_of(key, *names)) == 1


async def test_every_script_runs_on_a_cluster(cluster: ServerProcess) -> None:
    """CLUSTER-1, CLUSTER-3: one shard, small and staged bodies."""
    # A server takes its slots in, and then waits two seconds for others to object.
    wait_until(
        lambda: cluster.command("CLUSTER INFO")["cluster_state"] == "ok",
        what="the cluster is up",
    )
    large = encode_value(b"x" * 50_000, compress_above=None)
    async with on(cluster) as world:
        store = world.store
        lease = await claimed(world)
        assert await store.renew(lease, 9_000) is RenewReply.RENEWED
        published = await store.publish(lease, publication(rows(1)))
        assert published is PublishReply.PUBLISHED
        applied = await store.invalidate(change(2))
        assert applied.result is InvalidateResult.PURGED
        again = await claimed(world, "again")
        staged = await store.publish(again, publication(rows(2), content=large))
        assert staged is PublishReply.PUBLISHED
        await store.invalidate(change(3))
        last = await claimed(world, "last")
        assert await store.release(last, retry_ms=5) is ReleaseReply.RELEASED
        entry = await store.read(KEY)

    assert entry is not None
    assert entry.content() == large
