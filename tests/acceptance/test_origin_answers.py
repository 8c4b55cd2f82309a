"""Answers of a real HTTP origin, and what becomes of them."""

import asyncio
import gzip
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from tests.datasets import product
from tests.origin_client import PLAIN, OriginClient, origin_client
from tests.origin_server import Reply, gzip_bomb, gzipped, json_answer
from warmer.errors import OriginError, OriginInvalid, OriginRefused
from warmer.model.dataset import Dataset, LoaderVersion, VersionMeans
from warmer.model.entry import NOT_FOUND, Content, Flag, encode_payload
from warmer.model.version import SourceVersion
from warmer.origin import loader

MIB = 1024 * 1024
VERSIONED = product(
    version=LoaderVersion(
        VersionMeans.ENTITY, "shop-db", "product:{id}", header="X-Version"
    )
)
POINTED = product(
    version=LoaderVersion(VersionMeans.POSITION, "shop-db", pointer="/lsn")
)
ROW_42 = {"shop-db/product:42": SourceVersion.of("shop-db", 42)}


@pytest.fixture
async def client() -> AsyncIterator[OriginClient]:
    async with origin_client() as running:
        yield running


async def test_json_is_kept_as_it_came_with_its_version(client: OriginClient) -> None:
    """R-REC-1, R-INV-1: and how long the load took."""
    body = b'{ "price": 1990,\n "name": "K\xc3\xa4se" }'
    client.server.on(
        "/products/42",
        Reply(
            body=body,
            headers={"Content-Type": "application/json", "X-Version": "42"},
            delay_s=0.05,
        ),
    )
    loaded = await client.load(dataset=VERSIONED)

    assert loaded.content == Content(0, body)
    assert loaded.content.value() == {"price": 1990, "name": "Käse"}
    assert loaded.versions == ROW_42
    assert loaded.load_ms >= 50


async def test_a_position_may_stand_in_the_body(client: OriginClient) -> None:
    """R-INV-1: digits beyond 2^53 are kept."""
    client.server.on("/products/42", json_answer({"lsn": str(2**63 + 1)}))
    loaded = await client.load(dataset=POINTED)

    assert loaded.versions == {"shop-db": SourceVersion.of("shop-db", 2**63 + 1)}


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (Reply(body=b"\x89PNG", headers={"Content-Type": "image/png"}), b"\x89PNG"),
        (Reply(body=b"{}"), b"{}"),
        (Reply(status=204), b""),
        (Reply(), b""),
        (Reply(body=b"until the end", declared=None), b"until the end"),
        (json_answer(None), None),
        (json_answer([]), []),
        (gzipped(json_answer({"a": 1})), {"a": 1}),
        (json_answer("x" * 400_000), "x" * 400_000),
        (gzipped(json_answer("x" * 400_000)), "x" * 400_000),
    ],
    ids=[
        "bytes",
        "JSON not called so",
        "no content",
        "empty",
        "no length",
        "null",
        "empty list",
        "gzip",
        "large",
        "large gzip",
    ],
)
async def test_a_value_reads_back_as_it_was(
    client: OriginClient, reply: Reply, value: object
) -> None:
    """R-REC-2, EMPTY-1: bytes stay bytes, and nothing empty is a miss."""
    client.server.on("/products/42", reply)
    loaded = await client.load()

    assert loaded.content.value() == value
    assert not loaded.content.negative


@pytest.mark.parametrize("status", [404, 410])
async def test_what_is_not_there_is_a_negative_value(
    client: OriginClient, status: int
) -> None:
    """R-POL-7: with the version of its deletion, if the origin tells it."""
    told = {"X-Version": "42"}
    client.server.on(
        "/products/42", Reply(status, headers=told), Reply(status, body=b"no such row")
    )
    deleted = await client.load(dataset=VERSIONED)
    unknown = await client.load(dataset=VERSIONED)

    assert (deleted.content, deleted.versions) == (NOT_FOUND, ROW_42)
    assert (unknown.content, unknown.versions) == (NOT_FOUND, {})


async def test_credentials_that_were_refused_are_no_not_found(
    client: OriginClient,
) -> None:
    """NEGATIVE-4, NEGATIVE-1: and the next load gets the value."""
    client.server.on(
        "/products/42", Reply(401), Reply(500), json_answer({"price": 1990})
    )
    with pytest.raises(OriginRefused):
        await client.load()
    with pytest.raises(OriginError):
        await client.load()
    loaded = await client.load()

    assert loaded.content.value() == {"price": 1990}
    assert client.signals.total("origin_answers", "shop", "4xx") == 1


@pytest.mark.parametrize(
    ("reply", "dataset"),
    [
        (Reply(body=b"<html>", headers={"Content-Type": "application/json"}), PLAIN),
        (json_answer({"price": 1}), VERSIONED),
        (json_answer({"price": 1}), POINTED),
        (Reply(status=204), POINTED),
        (Reply(headers={"Set-Cookie": "csrf=1"}), PLAIN),
        (Reply(headers={"Cache-Control": "private"}), PLAIN),
        (Reply(headers={"Content-Encoding": "br"}), PLAIN),
    ],
    ids=[
        "not JSON",
        "no header",
        "no pointer",
        "nothing to point into",
        "a cookie",
        "private",
        "an encoding nobody asked for",
    ],
)
async def test_an_answer_that_must_not_be_stored_is_invalid(
    client: OriginClient, reply: Reply, dataset: Dataset
) -> None:
    """VARIANT-6, R-REC-1: and says which, without a word of its content."""
    client.server.on("/products/42", reply)
    with pytest.raises(OriginInvalid) as refused:
        await client.load(dataset=dataset, headers={"Authorization": "Bearer s3cret"})

    assert "s3cret" not in str(refused.value)
    assert "html" not in str(refused.value)


# --- sizes ----------------------------------------------------------------------------


async def test_a_gzip_bomb_is_cut_with_memory_flat(client: OriginClient) -> None:
    """HTTPBODY-1: 1 MiB on the wire, 1 GiB in memory."""
    bomb = gzip_bomb(1024 * MIB)
    assert len(bomb.body) <= 1.1 * MIB
    client.server.on("/products/42", bomb)
    roomy = product(version=LoaderVersion(), max_body_bytes=8 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(OriginInvalid, match="inflated"):
            await client.load(dataset=roomy)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 32 * MIB


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"x", declared=10**12),
        Reply(body=b"x" * (2 * MIB), declared=None),
        Reply(body=b"x" * (MIB + 1)),
    ],
    ids=["declared", "not declared", "one byte"],
)
async def test_an_answer_too_large_is_not_read_to_its_end(
    client: OriginClient, reply: Reply
) -> None:
    """PAYLOAD-1: refused at once where its size is told, cut where it is not."""
    client.server.on("/products/42", reply)
    with pytest.raises(OriginInvalid, match="more than 1048576 bytes"):
        await client.load(max_bytes=MIB)
    await client.server.sees(running=0)


async def test_a_dataset_may_allow_less_than_its_origin(client: OriginClient) -> None:
    """PAYLOAD-1: the smaller bound holds."""
    client.server.on("/products/42", Reply(body=b"x" * 1001))
    small = product(version=LoaderVersion(), max_body_bytes=1000)
    with pytest.raises(OriginInvalid, match="more than 1000 bytes"):
        await client.load(dataset=small)


async def test_large_values_are_compressed_off_the_loop(
    client: OriginClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-REC-2, SYSTEMD-3: small ones on it, because a thread costs more than they do."""
    threads: list[int] = []

    def watched(payload: bytes, *, raw: bool, compress_above: int | None) -> Content:
        threads.append(threading.get_ident())
        return encode_payload(payload, raw=raw, compress_above=compress_above)

    monkeypatch.setattr(loader, "encode_payload", watched)
    rows = [{"id": number, "name": f"product {number}"} for number in range(20_000)]
    squeezed = product(version=LoaderVersion(), compress_above=1024)
    client.server.on("/products/42", json_answer(rows[:5]), json_answer(rows))
    small = await client.load(dataset=squeezed)
    large = await client.load(dataset=squeezed)

    assert small.content.flags == 0
    assert large.content.flags == Flag.ZSTD
    assert len(large.content.body) < len(json.dumps(rows)) / 4
    assert large.content.value() == rows
    assert threads[0] == threading.get_ident() != threads[1]


async def test_a_slow_trickle_is_read_to_its_end(client: OriginClient) -> None:
    """HTTPBODY-4: pieces of gzip as small as they come."""
    body = gzip.compress(b"a value in pieces")
    client.server.on(
        "/products/42",
        Reply(body=body, headers={"Content-Encoding": "gzip"}, trickle_s=0.001),
    )
    loaded = await client.load()

    assert loaded.content.value() == b"a value in pieces"


async def test_a_cancelled_load_ends_at_the_origin(client: OriginClient) -> None:
    """HTTPPOOL-1: its connection is closed, so the origin can stop working."""
    client.server.on("/products/42", Reply(hang=True))
    load = asyncio.create_task(client.load())
    await client.server.sees(running=1)
    load.cancel()
    await asyncio.wait((load,))
    await client.server.sees(running=0)

    assert load.cancelled()
