"""From a commit in PostgreSQL to a refreshed key: a real Debezium, and everything after it.

`make test-debezium` runs this file; `make test` does not collect it, because the engine is
200 MB and needs Java.
"""

import asyncio
import base64
import json
import os
import statistics
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.debezium.database import Database, Session
from tests.fleet import until
from tests.processes import CHECKOUT, ChildProcess, Children
from tests.servers import Servers, free_port
from warmer import CacheClient
from warmer.clock import SystemClock
from warmer.model.answer import State
from warmer.store.control import ControlServer
from warmer.wiring import configured, open_client, open_control

ENGINE = CHECKOUT / ".venv-debezium" / "bin" / "python"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
CLOCK = SystemClock()

SCHEMA = """
CREATE TABLE product (id int PRIMARY KEY, name text, version bigint NOT NULL DEFAULT 1);
CREATE TABLE note (id int PRIMARY KEY, body text, version bigint NOT NULL DEFAULT 1);
CREATE TABLE orders (id int PRIMARY KEY, state text);
CREATE TABLE order_line (id int PRIMARY KEY, order_id int NOT NULL, quantity int);
ALTER TABLE order_line REPLICA IDENTITY FULL;
CREATE PUBLICATION dbz_publication FOR TABLE product, note, orders, order_line;
SELECT pg_create_logical_replication_slot('warmer', 'pgoutput');
INSERT INTO product SELECT n, 'p' || n FROM generate_series(1, 40) n;
INSERT INTO note SELECT n, 'n' || n FROM generate_series(1, 10) n;
INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 5) n;
INSERT INTO order_line SELECT n, 1 + n % 5, 1 FROM generate_series(1, 20) n;
"""

CONFIG = """
[cache]
url = "{url}"
timeout = "2s"

[origins.shop]
base_url = "http://127.0.0.1:{origin}"
local_limit = 32

# Rows with a version column of their own, which the origin reports.
[sources.rows]
format = "debezium"
version_fields = ["version"]
{rows}

# What several rows make, ordered as committed; no load reports that.
[sources.orders]
format = "debezium"
before = "full"
{orders}
[sources.orders.tables.orders]
entities = ["order:{{id}}"]
[sources.orders.tables.order_line]
entities = ["order:{{order_id}}"]

[worker]
retry_base = "50ms"
retry_cap = "500ms"

[datasets.product]
key = "product:v{{schema}}:{{id}}"
entities = ["rows/product:{{id}}"]
origin = "shop"
path = "/product/{{id}}"
fresh_for = "1h"
stale_for = "1h"
negative_for = "1h"
refresh_on = "all"
jitter = "0%"
[datasets.product.version]
means = "entity"
source = "rows"
entity = "product:{{id}}"
header = "X-Version"

[datasets.note]
key = "note:v{{schema}}:{{id}}"
entities = ["rows/note:{{id}}"]
origin = "shop"
path = "/note/{{id}}"
fresh_for = "1h"
stale_for = "1h"
negative_for = "1h"
refresh_on = "all"
jitter = "0%"
[datasets.note.version]
means = "entity"
source = "rows"
entity = "note:{{id}}"
header = "X-Version"

[datasets.order]
key = "order:v{{schema}}:{{id}}"
entities = ["orders/order:{{id}}"]
origin = "shop"
path = "/order/{{id}}"
fresh_for = "1h"
stale_for = "1h"
negative_for = "1h"
settle_for = "0s"
refresh_on = "all"
jitter = "0%"
"""

SIGNED = """key_header = "X-DEBEZIUM-KEY"
signature = "standard-webhooks"
secrets = ["env:SECRET"]"""
STREAMED = """[sources.{source}.stream]
url = "{url}"
names = {names}"""

ROW = "SELECT row_to_json(t) FROM {table} t WHERE id = {id}"
ORDER = """SELECT json_build_object('id', o.id, 'state', o.state, 'lines',
  (SELECT coalesce(json_agg(json_build_array(l.id, l.quantity) ORDER BY l.id), '[]')
   FROM order_line l WHERE l.order_id = o.id)) FROM orders o WHERE o.id = {id}"""


def sources(via: str, url: str) -> dict[str, str]:
    """How the two sources are reached: over HTTP, or by streams in Redis."""
    if via == "http":
        return {"rows": SIGNED, "orders": SIGNED}
    tables = {"rows": ("product", "note"), "orders": ("orders", "order_line")}
    return {
        source: STREAMED.format(
            source=source,
            url=url,
            names=json.dumps([f"shop.public.{table}" for table in of]),
        )
        for source, of in tables.items()
    }


def query(table: str, id_: int) -> str:
    return (ORDER if table == "order" else ROW).format(table=table, id=id_)


@dataclass(slots=True)
class World:
    """The database, its engine, and the fleet behind it."""

    database: Database
    sql: Session
    client: CacheClient
    control: ControlServer
    children: Children
    directory: Path
    file: Path
    sink: dict[str, Any]
    seconds: list[float] = field(default_factory=list)

    async def row(self, table: str, id_: int) -> Any:
        """What the database has, None for no row."""
        found = await self.sql.run(query(table, id_) + ";")
        return json.loads(found) if found else None

    async def cached(self, table: str, id_: int) -> tuple[bool, Any]:
        """Whether the cache has it fresh, and what it has."""
        answer = await self.client.get(table, id=id_)
        fresh = answer.state in {State.FRESH, State.NEGATIVE}
        return fresh, answer.value

    async def equal(self, table: str, *ids: int, within_s: float = 30) -> None:
        """Return once the cache has each row fresh, and as the database has it."""
        for id_ in ids:

            async def is_equal(id_: int = id_) -> bool:
                return await self.cached(table, id_) == (
                    True,
                    await self.row(table, id_),
                )

            await until(
                is_equal, within_s=within_s, what=partial("{} {}".format, table, id_)
            )

    def start_engine(self) -> ChildProcess:
        """Start the engine, from where its offsets say."""
        settings = {
            **self.sink,
            "properties": {
                "name": "engine",
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "topic.prefix": "shop",
                "plugin.name": "pgoutput",
                "slot.name": "warmer",
                "publication.autocreate.mode": "filtered",
                "table.include.list": "public.product,public.note,public.orders,"
                "public.order_line",
                "snapshot.mode": "initial",
                "skipped.operations": "none",
                "offset.storage": "org.apache.kafka.connect.storage."
                "FileOffsetBackingStore",
                "offset.storage.file.filename": str(self.directory / "offsets"),
                "offset.flush.interval.ms": "200",
                "poll.interval.ms": "10",
                "key.converter.schemas.enable": "false",
                "value.converter.schemas.enable": "false",
                **self.database.connector(),
            },
        }
        file = self.directory / "engine.json"
        file.write_text(json.dumps(settings))
        folder = self.directory / "engine"
        folder.mkdir(exist_ok=True)
        return self.children.run(
            [str(ENGINE), str(CHECKOUT / "tests/debezium/engine.py"), str(file)],
            env={"SECRET": SECRET},
            cwd=folder,
        )

    async def settled(self) -> None:
        """Return once nothing waits in the log or is due."""

        async def empty() -> bool:
            state = await self.control.events.state()
            return not (state.pending or state.lag)

        await until(empty, within_s=60, what=lambda: "the log is not drained")


@asynccontextmanager
async def origin_of(session: Session) -> AsyncIterator[int]:
    """An HTTP service that reads its answers from the database."""
    turn = asyncio.Lock()

    async def answer(request: web.Request) -> web.Response:
        table, id_ = request.match_info["table"], int(request.match_info["id"])
        async with turn:
            found = await session.run(query(table, id_) + ";")
        if not found:
            return web.Response(status=404)
        value = json.loads(found)
        version = {"X-Version": str(value["version"])} if "version" in value else {}
        return web.json_response(value, headers=version)

    app = web.Application()
    app.router.add_get("/{table}/{id}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


PATHS = {
    "product": "/v1/events/rows",
    "note": "/v1/events/rows",
    "*": "/v1/events/orders",
}


@pytest.fixture(params=["http", "redis"])
async def world(
    request: pytest.FixtureRequest,
    start_server: Servers,
    children: Children,
    tmp_path: Path,
) -> AsyncIterator[World]:
    server = start_server("valkey9")
    database = Database().start()
    async with AsyncExitStack() as stack:
        stack.callback(database.discard)
        stack.push_async_callback(database.close)
        sql = await database.session()
        await sql.run(SCHEMA)
        origin = await stack.enter_async_context(origin_of(await database.session()))
        file = tmp_path / "warmer.toml"
        reached = sources(request.param, server.url)
        file.write_text(CONFIG.format(url=server.url, origin=origin, **reached))
        env = {"SECRET": SECRET}
        os.environ["SECRET"] = SECRET
        door = children.warmer(
            "serve", "-c", str(file), "--listen", "127.0.0.1:0", env=env
        )
        for _ in range(2):
            worker = children.warmer("worker", "-c", str(file), env=env)
            await worker.line("worker_ready", within_s=30)
        found = await door.line(r"server_ready listen=\S+:(\d+)", within_s=30)
        configuration = configured(str(file))
        yield World(
            database=database,
            sql=sql,
            client=await stack.enter_async_context(open_client(configuration)),
            control=await stack.enter_async_context(
                open_control(configuration, clock=CLOCK)
            ),
            children=children,
            directory=tmp_path,
            file=file,
            sink={"door": ["127.0.0.1", int(found[1])], "paths": PATHS}
            if request.param == "http"
            else {"redis": ["127.0.0.1", server.port]},
        )


async def streaming(world: World) -> None:
    """Return once changes arrive: the snapshot is over."""

    async def arrived() -> bool:
        await world.sql.run("UPDATE product SET version = version + 1 WHERE id = 40;")
        with_version = await world.row("product", 40)
        for _ in range(20):
            if await world.cached("product", 40) == (True, with_version):
                return True
            await CLOCK.sleep(0.05)
        return False

    await until(arrived, within_s=120, what=lambda: "the engine streams nothing")


async def timed(world: World, change: str, id_: int) -> None:
    """Note how long it takes from a commit to a fresh key."""
    await world.sql.run(change)
    began = CLOCK.monotonic()
    await world.equal("product", id_)
    world.seconds.append(CLOCK.monotonic() - began)


@pytest.mark.timeout(400)
async def test_no_key_is_older_than_its_row_whatever_happens(world: World) -> None:
    """R-INV-1, R-INV-2, R-INV-3, R-FT-7, CDC-ORDER-1, CDC-SHAPE-1, CDC-GAP-1."""
    run = world.sql.run
    for table, last in (("product", 40), ("note", 10), ("order", 5)):
        for id_ in range(1, last + 1):
            await world.client.get(table, id=id_)

    # A snapshot while a transaction is open, which commits with a lower LSN; and after
    # changes nobody was told of. (A new slot would wait for it: this one is there before.)
    await run("UPDATE product SET name = 'before', version = 2 WHERE id = 1;")
    open_one = await world.database.session()
    await open_one.run("BEGIN; UPDATE product SET name='open', version=2 WHERE id=2;")
    engine = world.start_engine()
    await engine.line("engine_starting", within_s=60)
    await engine.line("delivered", within_s=120)
    await open_one.run("COMMIT;")
    await streaming(world)
    await world.equal("product", 2)

    # Changes of every kind.
    for id_ in range(3, 33):
        await timed(
            world,
            f"UPDATE product SET name='x{id_}', version=version+1 WHERE id={id_};",
            id_,
        )
    await run("INSERT INTO product VALUES (100, 'new', 1);")
    await run("DELETE FROM product WHERE id = 33;")
    await run("UPDATE product SET id = 134, version = version + 1 WHERE id = 34;")
    await run(
        "BEGIN; UPDATE product SET name='never', version=99 WHERE id=35; ROLLBACK;"
    )
    await run("UPDATE product SET name='after', version=version+1 WHERE id=36;")
    await world.equal("product", 33, 34, 35, 36, 100, 134)

    # A whole table at once.
    await run("TRUNCATE note;")
    await world.equal("note", *range(1, 11))
    await run("INSERT INTO note VALUES (3, 'again', 1);")
    await world.equal("note", 3)

    # Two transactions on one aggregate: the one that wrote first commits last.
    first, second = await world.database.session(), await world.database.session()
    for number in range(10):
        await first.run(
            f"BEGIN; UPDATE order_line SET quantity = {number + 10} WHERE id = 5;"
        )
        await second.run(
            f"BEGIN; UPDATE orders SET state = 'state{number}' WHERE id = 1; COMMIT;"
        )
        await first.run("COMMIT;")
    await run("UPDATE order_line SET order_id = 2 WHERE id = 10;")
    await world.equal("order", *range(1, 6))

    # The engine dies in the middle of a stream, and tells some of it again.
    async def keep_changing() -> None:
        for number in range(200):
            id_ = 1 + number % 20
            await run(
                f"UPDATE product SET name='s{number}', version=version+1 WHERE id={id_};"
            )

    changing = asyncio.create_task(keep_changing())
    await engine.line("delivered product", after=len(engine.lines), within_s=60)
    engine.kill()
    await changing
    again = world.start_engine()
    await again.line("delivered", within_s=120)
    await streaming(world)
    await world.equal("product", *range(1, 33))

    # At rest.
    await world.settled()
    for table, ids in (
        ("product", [*range(1, 41), 100, 134]),
        ("note", range(1, 11)),
        ("order", range(1, 6)),
    ):
        await world.equal(table, *ids)
    letters = await world.control.parked()
    assert [letter.fields for letter in letters] == []
    again.kill()
    seconds = sorted(world.seconds)
    print(
        f"commit to fresh key: median {statistics.median(seconds):.3f} s, "
        f"largest {seconds[-1]:.3f} s, of {len(seconds)}"
    )
