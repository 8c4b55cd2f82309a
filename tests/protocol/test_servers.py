"""The servers the other tests stand on do what they are asked."""

import asyncio

import pytest
import redis
import redis.asyncio

from tests.servers import SentinelTrio, ServerProcess, Servers, wait_until


def test_a_server_is_empty_whatever_the_last_test_left(server: ServerProcess) -> None:
    server.command("SET", "left", "over")
    server.kill()

    server.renew()

    assert server.command("DBSIZE") == 0


def test_each_server_is_the_one_its_name_says(
    valkey: ServerProcess, redis7: ServerProcess
) -> None:
    valkey.renew()
    redis7.renew()

    assert valkey.command("INFO", "server")["server_name"] == "valkey"
    assert redis7.command("INFO", "server")["redis_version"].startswith("7.")
    assert "server_name" not in redis7.command("INFO", "server")


def test_appendonly_keeps_a_write_through_a_kill(aof_server: ServerProcess) -> None:
    port = aof_server.port
    aof_server.command("SET", "kept", "yes")

    aof_server.kill()
    aof_server.restart()

    assert aof_server.command("GET", "kept") == b"yes"
    assert aof_server.port == port


def test_without_appendonly_a_kill_loses_everything(start_server: Servers) -> None:
    server = start_server("valkey9")
    server.command("SET", "kept", "no")

    server.restart()

    assert server.command("GET", "kept") is None


def test_a_stopped_server_refuses_and_a_restarted_one_answers(
    start_server: Servers,
) -> None:
    server = start_server("redis7")

    server.stop()

    with pytest.raises(redis.ConnectionError):
        server.command("PING")
    server.restart()
    assert server.command("PING")


async def test_a_paused_server_answers_only_after_it_resumes(
    server: ServerProcess,
) -> None:
    async with redis.asyncio.Redis(port=server.port) as client:
        await client.ping()
        server.pause()
        asked = asyncio.ensure_future(client.get("key"))
        done, _ = await asyncio.wait([asked], timeout=0.05)
        assert not done

        server.resume()

        assert await asked is None


def test_a_unix_socket_reaches_the_same_server(server: ServerProcess) -> None:
    server.command("SET", "key", "value")

    with redis.Redis.from_url(server.unix_url) as client:
        assert client.get("key") == b"value"


def test_maxmemory_is_the_servers(start_server: Servers) -> None:
    server = start_server("valkey9", maxmemory="8mb", maxmemory_policy="allkeys-lru")

    assert server.command("CONFIG GET", "maxmemory") == {"maxmemory": "8388608"}


def test_a_server_that_cannot_start_says_why(start_server: Servers) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        start_server("valkey9", options=("--no-such-option", "1"))


def test_waiting_is_bounded_and_says_for_what() -> None:
    with pytest.raises(AssertionError, match="the moon"):
        wait_until(lambda: False, what="the moon", within_s=0.05)


def test_sentinels_name_the_replica_when_the_primary_is_killed(
    sentinel_trio: SentinelTrio,
) -> None:
    assert sentinel_trio.primary_port() == sentinel_trio.primary.port

    sentinel_trio.primary.kill()
    sentinel_trio.wait_for_failover()

    sentinel_trio.replica.command("SET", "key", "value")
    assert sentinel_trio.replica.command("GET", "key") == b"value"
