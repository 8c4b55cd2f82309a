"""Scripts are files that say what they take and reply, and are there when they are needed."""

import asyncio
import re
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

import warmer.store
from tests.protocol.world import KEY, RedisWorld, change, claimed, publication, rows
from warmer.model.outcome import InvalidateResult, PublishReply
from warmer.store import reference
from warmer.store.script import Script, pipelined, run

LUA = Path(warmer.store.__file__).with_name("lua")
FAMILY = ("claim", "renew", "publish", "release", "invalidate")
"""The scripts of the cache server."""

TAG = re.compile(r"\[([a-z]+(?:\.[a-z_]+)?)\]")


def text_of(name: str) -> str:
    return (LUA / f"{name}.lua").read_text()


def functions_in(text: str) -> dict[str, str]:
    """Top-level functions of a script by name, with the comment before them."""
    found = re.finditer(
        r"((?:^--.*\n)*)^local function (\w+)\((?:.*\n)+?^end$", text, re.MULTILINE
    )
    return {match[2]: match[0] for match in found}


# --- the files ------------------------------------------------------------------------


def test_functions_of_one_name_are_copies_of_each_other() -> None:
    """R-INV-2, SCRIPT-4: versions are compared in one way, wherever that is written."""
    copies: dict[str, set[str]] = {}
    holders: dict[str, set[str]] = {}
    for name in sorted(path.stem for path in LUA.glob("*.lua")):
        for function, text in functions_in(text_of(name)).items():
            copies.setdefault(function, set()).add(text)
            holders.setdefault(function, set()).add(name)

    assert {"read_entry", "versions_of", "server_us", "clock"} <= set(copies)
    assert holders["order"] >= {"claim", "publish", "invalidate", "due_add"}
    assert {name for name, texts in copies.items() if len(texts) > 1} == set()


@pytest.mark.parametrize("name", FAMILY)
def test_every_clause_of_the_reference_is_one_line_of_its_script(name: str) -> None:
    """R-CARD-4: a test can remove a clause by removing its line."""
    source = Path(reference.__file__).read_text()
    of_reference = {tag for tag in TAG.findall(source) if tag.startswith(f"{name}.")}
    tagged = [line for line in text_of(name).splitlines() if "-- [" in line]
    of_script = [tag for line in tagged for tag in TAG.findall(line)]

    assert sorted(set(of_script) - {"bounded"}) == sorted(of_reference)
    assert len(of_script) == len(set(of_script))
    assert all(not line.startswith("--") for line in tagged)


@pytest.mark.parametrize("name", FAMILY)
def test_the_header_lists_every_reply(name: str) -> None:
    """R-CARD-4: who writes a client reads the header."""
    text = text_of(name)
    header, _, body = text.partition("\nlocal function ")
    replies = re.compile(r'"([A-Z_]{4,})"')

    commands = {word for word in replies.findall(body) if f'call("{word}"' in body}

    written = set(replies.findall(body)) - commands - {"PXAT", "WRONGTYPE"}

    assert set(replies.findall(header)) == written


@pytest.mark.parametrize("name", FAMILY)
def test_a_script_names_only_the_keys_it_is_given(name: str) -> None:
    """CLUSTER-1: and none of them is an argument."""
    script = Script(name)

    assert set(script.keys) <= {"entry", "lease", "guard", "staged"}
    assert script.arguments[-1] == "now_ms"
    assert not re.search(r"KEYS\b", text_of(name).split("\n", 1)[1])
    assert not re.search(r'"(KEYS|SCAN)"', text_of(name))


# --- calls ----------------------------------------------------------------------------


def test_a_missing_name_is_refused_before_anything_is_sent() -> None:
    """R-LSE-2."""
    with pytest.raises(TypeError, match="missing"):
        Script("renew").call(lease="lock", token="mine")  # noqa: S106


def test_an_unknown_name_is_refused_before_anything_is_sent() -> None:
    """R-LSE-2."""
    with pytest.raises(TypeError, match="lease_s"):
        Script("renew").call(lease="lock", token="mine", lease_s=5)  # noqa: S106


def test_a_file_that_does_not_name_its_keys_is_no_script() -> None:
    """CLUSTER-1."""
    with pytest.raises(ValueError, match="KEYS"):
        Script("positional", "return redis.call('GET', KEYS[1])")


async def test_a_server_without_the_script_gets_it_within_the_call(
    redis_world: RedisWorld,
) -> None:
    """SCRIPT-1: a new server, or SCRIPT FLUSH."""
    call = Script("renew").call(lease="lock", token="mine", lease_ms=5)  # noqa: S106

    assert await run(redis_world.redis, call) == b"LOST"


async def test_the_rest_of_a_pipeline_is_sent_once_when_a_script_is_missing(
    redis_world: RedisWorld,
) -> None:
    """SCRIPT-1."""
    redis = redis_world.redis
    renew = Script("renew").call(lease="lock", token="mine", lease_ms=5)  # noqa: S106

    replies = await pipelined(redis, [("INCR", "n"), renew, ("INCR", "n"), renew])

    assert replies == [1, b"LOST", 2, b"LOST"]


async def test_an_error_in_a_pipeline_is_the_reply_of_its_command_alone(
    redis_world: RedisWorld,
) -> None:
    """R-INV-4: one bad key does not undo the others."""
    redis = redis_world.redis
    await redis.set("text", "x")

    first, second = await pipelined(redis, [("INCR", "text"), ("INCR", "n")])

    assert isinstance(first, ResponseError)
    assert second == 1


async def test_a_flush_of_scripts_in_the_middle_of_a_run_loses_nothing(
    redis_world: RedisWorld,
) -> None:
    """SCRIPT-1, R-LSE-4: 200 events and loads, flushed all the while."""
    store = redis_world.store
    flushing = True

    async def flush() -> None:
        while flushing:
            await redis_world.redis.script_flush()

    flusher = asyncio.create_task(flush())
    results = []
    for number in range(100):
        lease = await claimed(redis_world, f"load-{number}")
        reply = await store.publish(lease, publication(rows(number)))
        assert reply is PublishReply.PUBLISHED
        results.append(await store.invalidate(change(number + 1)))
    flushing = False
    await flusher

    assert {reply.result for reply in results} == {InvalidateResult.PURGED}
    entry = await store.read(KEY)
    assert entry is not None
    assert entry.versions() == rows(99)


async def test_scripts_of_two_releases_share_a_server(redis_world: RedisWorld) -> None:
    """R-CARD-4: named by content, so a rolling deploy needs compatible data only."""
    older = Script("renew", text_of("renew") + "-- the release before\n")
    newer = Script("renew")
    lease = await claimed(redis_world)
    arguments: dict[str, str | int] = {
        "lease": redis_world.keyspace.lease(KEY.text),
        "token": lease.token,
        "lease_ms": 5_000,
        "now_ms": redis_world.now(),
    }

    replies = [
        await run(redis_world.redis, script.call(**arguments))
        for script in (older, newer, older)
    ]

    assert replies == [b"RENEWED"] * 3
    assert older.sha != newer.sha
