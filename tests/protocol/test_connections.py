"""A client finds its server, keeps secrets, and follows the primary wherever it goes."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.control import control_of
from tests.protocol.world import KEY, change, claim, publication, rows
from tests.servers import (
    HOST,
    SentinelTrio,
    ServerProcess,
    Servers,
    free_port,
    wait_until,
)
from warmer.clock import SystemClock
from warmer.errors import ConfigError, StoreError, StoreRefused
from warmer.model.key import Key
from warmer.model.lease import new_token
from warmer.model.outcome import Claimed, InvalidateResult, PublishReply
from warmer.signals import Counters
from warmer.store.connections import Endpoint, connect, redacted
from warmer.store.keyspace import Keyspace
from warmer.store.read_lane import ReadLane
from warmer.store.redis_store import RedisStore
from warmer.store.wakeups import Wakeups


@asynccontextmanager
async def client_of(endpoint: Endpoint) -> AsyncIterator[Redis]:
    client = connect(endpoint)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def store_at(endpoint: Endpoint) -> AsyncIterator[RedisStore]:
    clock = SystemClock()
    async with client_of(endpoint) as redis:
        lane = ReadLane(redis, timeout_ms=endpoint.timeout_ms)
        wakeups = Wakeups(redis, clock=clock)
        store = RedisStore(
            redis,
            keyspace=Keyspace(),
            lane=lane,
            wakeups=wakeups,
            clock=clock,
            signals=Counters(),
            timeout_ms=endpoint.timeout_ms,
        )
        try:
            yield store
        finally:
            await store.aclose()
            await wakeups.aclose()
            await lane.aclose()


# --- addresses and secrets ------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://app:s3cret@cache:6379/0", "redis://app:***@cache:6379/0"),
        ("rediss://:s3cret@cache:6379", "rediss://:***@cache:6379"),
        ("redis://app:s3/c@ret@cache:6379", "redis://app:***@cache:6379"),
        ("unix:///run/redis.sock?password=s3cret&db=1", "unix:///run/redis.sock"),
        ("redis://cache:6379/2", "redis://cache:6379/2"),
    ],
)
def test_a_url_is_shown_without_its_secret(url: str, shown: str) -> None:
    """R-CARD-6: logs and tracebacks are read by many."""
    assert redacted(url) == shown


def test_an_endpoint_is_shown_without_its_secrets() -> None:
    """R-CARD-6."""
    endpoint = Endpoint(
        url="redis://app:s3cret@cache:6379",
        password="s3cret",  # noqa: S106
        sentinel_password="s3cret",  # noqa: S106
    )

    assert "s3cret" not in repr(endpoint)
    assert "s3cret" not in repr(connect(endpoint))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"url": "redis://cache", "sentinels": (("sentinel", 26379),)},
        {"sentinels": (("sentinel", 26379),)},
    ],
)
def test_an_endpoint_names_one_server(wrong: dict[str, object]) -> None:
    """R-CARD-6."""
    with pytest.raises(ConfigError):
        Endpoint(**wrong)  # type: ignore[arg-type]


async def test_replies_are_bytes_whatever_the_url_asks_for(
    server: ServerProcess,
) -> None:
    """SERIAL-7: compressed bodies are no text."""
    url = f"{server.url}?decode_responses=True&protocol=3"
    async with client_of(Endpoint(url=url)) as redis:
        await redis.set("key", b"\xff")

        assert await redis.get("key") == b"\xff"


async def test_credentials_beside_the_url_are_used(server: ServerProcess) -> None:
    """R-CARD-6: from a file of secrets, and not percent-encoded there."""
    server.command("ACL SETUSER", "app", "on", ">p@ss:w/rd", "~*", "+@all")
    endpoint = Endpoint(url=server.url, username="app", password="p@ss:w/rd")  # noqa: S106
    async with client_of(endpoint) as redis:
        assert await redis.acl_whoami() == "app"


async def test_a_unix_socket_is_an_address(server: ServerProcess) -> None:
    """R-CARD-6."""
    async with client_of(Endpoint(url=server.unix_url)) as redis:
        assert await redis.ping()


@pytest.fixture
def tls_server(start_server: Servers, tmp_path: Path) -> tuple[ServerProcess, int]:
    """A server behind TLS, whose certificate says `localhost`."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", "server.key", "-out", "server.crt", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    port = free_port()
    server = start_server(
        "redis7",
        options=(
            *("--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(tmp_path / "server.crt")),
            *("--tls-key-file", str(tmp_path / "server.key")),
            *("--tls-ca-cert-file", str(tmp_path / "server.crt")),
        ),
    )
    return server, port


async def test_tls_is_spoken_with_a_server_that_its_certificate_names(
    tls_server: tuple[ServerProcess, int], tmp_path: Path
) -> None:
    """R-CARD-6: by scheme, or by setting."""
    _, port = tls_server
    trusted = str(tmp_path / "server.crt")
    for endpoint in (
        Endpoint(url=f"rediss://localhost:{port}", tls_ca_file=trusted),
        Endpoint(url=f"redis://localhost:{port}", tls=True, tls_ca_file=trusted),
    ):
        async with client_of(endpoint) as redis:
            assert await redis.ping()


@pytest.mark.parametrize("how", ["another name", "not trusted"])
async def test_tls_with_a_doubtful_server_is_refused(
    tls_server: tuple[ServerProcess, int], tmp_path: Path, how: str
) -> None:
    """R-CARD-6: redis-py's default is not to look at the name."""
    _, port = tls_server
    endpoint = (
        Endpoint(
            url=f"rediss://{HOST}:{port}", tls_ca_file=str(tmp_path / "server.crt")
        )
        if how == "another name"
        else Endpoint(url=f"rediss://localhost:{port}")
    )
    async with client_of(endpoint) as redis:
        with pytest.raises(RedisConnectionError, match="certificate"):
            await redis.ping()


# --- the primary moves ----------------------------------------------------------------

SYNC_AT_ONCE = ("--repl-diskless-sync-delay", "0")


async def test_the_first_refused_write_follows_the_name_to_the_new_primary(
    start_server: Servers, tmp_path: Path
) -> None:
    """FAILOVER-1, FAILOVER-5: demoted alive, no connection closed; reads move as well."""
    old, new = (start_server("valkey9", options=SYNC_AT_ONCE) for _ in range(2))
    name = tmp_path / "cache.sock"
    name.symlink_to(old.socket_path)
    async with store_at(Endpoint(url=f"unix://{name}", timeout_ms=5_000)) as store:
        first = await store.claim(claim("first"))
        assert isinstance(first, Claimed)
        await store.publish(first.lease, publication(rows(1)))
        assert await store.read(KEY) is not None
        old.command("REPLICAOF", HOST, new.port)
        wait_until(
            lambda: old.command("INFO", "replication")["master_link_status"] == "up",
            what="the old primary follows the new one",
        )
        name.unlink()
        name.symlink_to(new.socket_path)

        reply = await store.invalidate(change(2))

        assert reply.result is InvalidateResult.NOTED
        assert new.command("EXISTS", Keyspace().guard(KEY.text)) == 1
        old.kill()
        assert await store.read(KEY) is None


async def test_a_server_that_stays_a_replica_refuses_and_recovers(
    start_server: Servers,
) -> None:
    """FAILOVER-5: said as what it is, and over without a restart of the process."""
    server, other = (start_server("redis7", options=SYNC_AT_ONCE) for _ in range(2))
    async with store_at(Endpoint(url=server.url, timeout_ms=5_000)) as store:
        await store.claim(claim("before"))
        server.command("REPLICAOF", HOST, other.port)
        with pytest.raises(StoreRefused) as refused:
            await store.invalidate(change(1))
        server.command("REPLICAOF", "NO", "ONE")

        assert refused.value.code == "READONLY"
        await store.invalidate(change(1))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (("SET", "warmer:events", "no stream"), "WRONGTYPE"),
        (("CONFIG SET", "maxmemory", "1"), "OOM"),
    ],
)
async def test_a_refused_event_is_told_by_its_code_and_quoted_nowhere(
    start_server: Servers, spoil: tuple[str, ...], code: str
) -> None:
    """R-INV-3, OBS-6: what is logged of it holds no value."""
    server = start_server("redis7")
    server.command(*spoil)
    async with control_of(server) as control:
        with pytest.raises(StoreRefused) as refused:
            await control.events.append([b'{"secret":"it\'s of no concern"}'])

    assert refused.value.code == code
    assert str(refused.value).startswith(f"{code}: ")
    assert "XADD" not in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_sentinel_that_hangs_does_not_keep_the_next_from_being_asked(
    sentinel_trio: SentinelTrio,
) -> None:
    """FAILOVER-1: within the timeout of the call."""
    endpoint = Endpoint(
        sentinels=tuple(sentinel_trio.sentinels),
        sentinel_service=sentinel_trio.service,
        timeout_ms=1_000,
    )
    sentinel_trio.sentinel_processes[0].pause()
    async with store_at(endpoint) as store:
        assert isinstance(await store.claim(claim()), Claimed)
    sentinel_trio.sentinel_processes[0].resume()


def _is_replica(server: ServerProcess) -> bool:
    try:
        return bool(server.command("INFO", "replication")["role"] == "slave")
    except RedisConnectionError:
        # Demoting it, the sentinels cut all connections, this one among them.
        return False


def connections_of(server: ServerProcess) -> int:
    return len(server.command("CLIENT LIST"))


class Load:
    """Loads and events of one key, one after the other, for as long as it runs."""

    def __init__(self, store: RedisStore, key: Key) -> None:
        self._store = store
        self._key = key
        self.number = 0
        self.errors: list[StoreError] = []
        self.done = asyncio.Event()

    async def run(self) -> None:
        while not self.done.is_set():
            try:
                await self.step()
            except StoreError as exc:
                self.errors.append(exc)

    async def step(self) -> None:
        self.number += 1
        key, versions = self._key, rows(self.number)
        await self._store.invalidate(change(self.number, key=key))
        reply = await self._store.claim(claim(new_token(), key=key, lease_ms=100))
        if isinstance(reply, Claimed):
            await self._store.publish(reply.lease, publication(versions, key=key))
        await self._store.read(key)


@pytest.mark.parametrize("how", ["killed", "demoted"])
@pytest.mark.timeout(60)
async def test_a_failover_under_load_is_survived_without_a_restart(
    sentinel_trio: SentinelTrio, how: str
) -> None:
    """FAILOVER-1, RPOOL-7: errors end with the failover, and no connection is left over."""
    endpoint = Endpoint(
        sentinels=tuple(sentinel_trio.sentinels),
        sentinel_service=sentinel_trio.service,
        timeout_ms=1_000,
    )
    async with store_at(endpoint) as store:
        loads = [Load(store, replace(KEY, text=f"product:v3:{at}")) for at in range(5)]
        async with asyncio.TaskGroup() as group:
            for load in loads:
                group.create_task(load.run())
            await _every(loads, reaches=20)
            await _failed_over(sentinel_trio, how)
            # What was under way meets the old primary once; from here on nothing does.
            reached = max(load.number for load in loads)
            await _every(loads, reaches=reached + 20)
            settled = [len(load.errors) for load in loads]
            await _every(loads, reaches=reached + 60)
            for load in loads:
                load.done.set()

        assert [len(load.errors) for load in loads] == settled
        last = await store.claim(claim("last"))
        assert isinstance(last, Claimed)
        published = await store.publish(last.lease, publication(rows(1)))
        assert published is PublishReply.PUBLISHED
        assert sentinel_trio.replica.command("EXISTS", KEY.text) == 1
        assert connections_of(sentinel_trio.replica) < 20
    for sentinel in sentinel_trio.sentinel_processes:
        assert connections_of(sentinel) < 20


async def _failed_over(trio: SentinelTrio, how: str) -> None:
    if how == "killed":
        trio.primary.kill()
        await asyncio.to_thread(trio.wait_for_failover)
        return
    trio.sentinel_processes[0].command("SENTINEL FAILOVER", trio.service)
    await asyncio.to_thread(trio.wait_for_failover)
    # It takes writes, and loses them, until the sentinels have told it.
    await _until(lambda: _is_replica(trio.primary), what="it is demoted")


async def _every(loads: list[Load], *, reaches: int) -> None:
    def reached() -> bool:
        return all(load.number > reaches for load in loads)

    await _until(reached, what=f"{reaches} loads of each key")


async def _until(happened: Callable[[], bool], *, what: str) -> None:
    await asyncio.to_thread(wait_until, happened, what=what, within_s=20)
