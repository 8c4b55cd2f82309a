"""The demo's origin counts honestly, and its change feed tells what was committed."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.formats import arrived
from tests.processes import ChildProcess, Children
from warmer.clock import SystemClock
from warmer.ingest.formats import Message
from warmer.model.source import Source
from warmer.model.version import SourceVersion
from warmer.ops.demo.admin import OriginAdmin
from warmer.ops.demo.change_feed import SOURCE, ChangeFeed
from warmer.ops.demo.origin import price_text
from warmer.ops.demo.shop import LOCALES, PRODUCTS

ORIGIN = "warmer.ops.demo.origin"
LIMIT = 4


@pytest.fixture
def origin(children: Children, tmp_path: Path) -> Iterator[str]:
    """The base URL of an origin whose queries take 20 ms."""
    child = children.python(
        ORIGIN,
        *("--database", str(tmp_path / "shop.sqlite")),
        *("--limit", str(LIMIT)),
        *("--query-ms", "20"),
    )
    yield child.wait_for_line(r"http://127\.0\.0\.1:\d+").group()
    _ends_well(child)


@pytest.fixture
async def admin(origin: str) -> AsyncIterator[OriginAdmin]:
    async with OriginAdmin.of(origin) as admin:
        yield admin


@pytest.fixture
async def visitor(origin: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(origin) as session:
        yield session


def _ends_well(child: ChildProcess) -> None:
    child.terminate()
    assert child.wait() == 0, child.output


async def _get(visitor: aiohttp.ClientSession, path: str) -> dict[str, object]:
    async with visitor.get(path, raise_for_status=True) as response:
        return dict(await response.json())


async def test_a_product_carries_its_row_version(
    admin: OriginAdmin, visitor: aiohttp.ClientSession
) -> None:
    change = await admin.reprice(7, 123_456)

    async with visitor.get("/products/7?locale=de") as response:
        product = await response.json()

    assert response.headers["X-Version"] == str(change.lsn)
    assert product["version"] == change.lsn
    assert product["price"] == "1.234,56 €"


async def test_a_row_that_is_not_there_is_404(visitor: aiohttp.ClientSession) -> None:
    async with visitor.get(f"/products/{PRODUCTS + 1}?locale=en") as response:
        assert response.status == 404
    async with visitor.get("/products/1?locale=xx") as response:
        assert response.status == 400


async def test_a_list_carries_the_position_of_its_snapshot(
    admin: OriginAdmin, visitor: aiohttp.ClientSession
) -> None:
    change = await admin.retitle(3_000, "Retitled")
    lists = {
        locale: await _get(visitor, f"/notes?locale={locale}") for locale in LOCALES
    }

    listed = lists[str(change.row["locale"])]["notes"]
    assert isinstance(listed, list)
    assert listed[0]["title"] == "Retitled"
    assert {each["position"] for each in lists.values()} == {change.lsn}


async def test_the_meter_notes_every_query_and_the_peak(
    admin: OriginAdmin, visitor: aiohttp.ClientSession
) -> None:
    before = await admin.meter()
    async with asyncio.TaskGroup() as visits:
        for product in (1, 1, 1, 2, 3):
            visits.create_task(_get(visitor, f"/products/{product}?locale=en"))
    after = await admin.meter()

    assert after.since(before) == {
        "/products/1?locale=en": 3,
        "/products/2?locale=en": 1,
        "/products/3?locale=en": 1,
    }
    # It counts what its callers do; it does not hold them to the limit itself.
    assert (after.limit, after.max_concurrency, after.running) == (LIMIT, 5, 0)


async def test_a_held_query_answers_with_what_it_had_read(
    admin: OriginAdmin, visitor: aiohttp.ClientSession
) -> None:
    await admin.hold("/products/9?locale=en")
    held = asyncio.create_task(_get(visitor, "/products/9?locale=en"))
    await admin.held()
    change = await admin.reprice(9, 1_000)
    unheld = await _get(visitor, "/products/9?locale=en")
    await admin.let_go()

    assert unheld["version"] == change.lsn
    assert int(str((await held)["version"])) < change.lsn


async def test_the_feed_tells_commits_in_their_order(admin: OriginAdmin) -> None:
    told: asyncio.Queue[Message] = asyncio.Queue()

    async def deliver(messages: list[Message]) -> None:
        for message in messages:
            told.put_nowait(message)

    feed = ChangeFeed(admin, deliver=deliver, clock=SystemClock())
    async with feed.following():
        changes = [
            await admin.reprice(5, 500),
            await admin.retitle(8, "Eight"),
            await admin.reprice(5, 600),
        ]
        values: list[Any] = [(await told.get()).value for _ in changes]

    assert [value["after"] for value in values] == [change.row for change in changes]
    assert [value["source"]["lsn"] for value in values] == [
        change.lsn for change in changes
    ]
    sequences = [json.loads(value["source"]["sequence"]) for value in values]
    assert sequences == sorted(sequences, key=lambda pair: [*map(int, pair)])


async def test_the_feed_can_tell_an_older_change_after_a_newer_one(
    admin: OriginAdmin,
) -> None:
    source = Source(SOURCE, "debezium")
    told: list[tuple[SourceVersion | None, tuple[str, ...]]] = []

    async def deliver(messages: list[Message]) -> None:
        for message in messages:
            found = arrived(source, message.value, key=message.key)
            told.extend((each.event.version, each.event.entities) for each in found)

    feed = ChangeFeed(admin, deliver=deliver, clock=SystemClock())
    await admin.reprice(5, 500)
    await admin.reprice(5, 600)
    older, newer = await feed.take(2)
    await feed.emit(newer)
    await feed.emit(older)

    assert told == [
        (SourceVersion.of(SOURCE, newer.lsn), ("product:5",)),
        (SourceVersion.of(SOURCE, older.lsn), ("product:5",)),
    ]
    assert newer.lsn > older.lsn


@pytest.mark.parametrize(
    ("locale", "text"),
    [("de", "1.234,50 €"), ("en", "€1,234.50"), ("fr", "1 234,50 €")],
)
def test_a_price_is_written_as_its_language_does(locale: str, text: str) -> None:
    assert price_text(123_450, locale) == text
