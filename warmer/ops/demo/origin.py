"""The demo's origin: an HTTP service over the shop's database, as a process of its own.

Holds: every query takes the time of a database, begins with the read and counts; the
meter notes each start, so no peak is missed; `/admin` answers on loopback only.
Does not hold: that it defends itself. It never queues or refuses a query: how many run
at once is what its callers made of it, and the meter shows whether they kept its limit.

    GET  /products/{id}?locale=de        one product; X-Version is its row's version
    GET  /notes?locale=de                the newest notes; X-Position is the snapshot's
    POST /admin/products/{id}            {"price_cents": 1990}: a new price, as a change
    POST /admin/notes/{id}               {"title": "…"}: a new title, as a change
    GET  /admin/changes?after=LSN        the changes after LSN; waits a while for the first
    POST /admin/hold                     {"query": "/products/7?locale=de"}: the next one
                                         is held between its read and its answer
    GET  /admin/held                     waits until a query is held
    POST /admin/let-go                   lets it go
    GET  /admin/meter                    queries so far, and how many ran at once
"""

import argparse
import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from aiohttp import web

from warmer.clock import Clock, SystemClock
from warmer.ops.demo.shop import LOCALES, Change, Shop

HOST = "127.0.0.1"
_ABSENT = "no such row"
_FOLLOW_S = 5.0
_Found = TypeVar("_Found")


class Meter:
    """Queries counted, and how many ran at once, noted at every start."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self.max_concurrency = 0
        # Bounded by the shop: queries of rows that are not there share one name.
        self.queries: Counter[str] = Counter()

    @contextmanager
    def query(self, name: str) -> Iterator[None]:
        """Count one query while it runs."""
        self.queries[name] += 1
        self.running += 1
        self.max_concurrency = max(self.max_concurrency, self.running)
        try:
            yield
        finally:
            self.running -= 1


class Barrier:
    """Holds one query between its read and its answer, until it is let go."""

    def __init__(self) -> None:
        self._wanted: str | None = None
        self._held = asyncio.Event()
        self._let_go = asyncio.Event()

    def hold(self, name: str) -> None:
        """Hold the next query of this name."""
        self._wanted = name
        self._held.clear()
        self._let_go.clear()

    def let_go(self) -> None:
        """Let the held query answer, and hold no other."""
        self._wanted = None
        self._let_go.set()

    async def held(self) -> None:
        """Return when a query is held."""
        await self._held.wait()

    async def passes(self, name: str) -> None:
        """Return at once, unless this query is to be held."""
        if name != self._wanted:
            return
        self._wanted = None
        self._held.set()
        await self._let_go.wait()


class Origin:
    """The service's handlers."""

    def __init__(self, shop: Shop, *, limit: int, query_ms: int, clock: Clock) -> None:
        self._shop = shop
        self._query_ms = query_ms
        self._clock = clock
        self._meter = Meter(limit)
        self._barrier = Barrier()
        self._changed = asyncio.Condition()

    def application(self) -> web.Application:
        """Return the service."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/products/{id:[0-9]+}", self.product),
                web.get("/notes", self.notes),
                web.post("/admin/products/{id:[0-9]+}", self.reprice),
                web.post("/admin/notes/{id:[0-9]+}", self.retitle),
                web.get("/admin/changes", self.changes),
                web.post("/admin/hold", self.hold),
                web.get("/admin/held", self.held),
                web.post("/admin/let-go", self.let_go),
                web.get("/admin/meter", self.meter),
            ]
        )
        return application

    # --- what the shop's pages are built from -----------------------------------------

    async def product(self, request: web.Request) -> web.Response:
        """Answer with one product, its price as its language writes it."""
        locale = _locale(request)
        product_id = int(request.match_info["id"])
        product = await self._query(
            f"/products/{product_id}?locale={locale}",
            lambda: self._shop.product(product_id),
        )
        if product is None:
            raise web.HTTPNotFound
        price = price_text(int(product["price_cents"]), locale)
        return _json(
            {**product, "price": price, "locale": locale},
            headers={"X-Version": str(product["version"])},
        )

    async def notes(self, request: web.Request) -> web.Response:
        """Answer with the newest notes of one language, and the snapshot's position."""
        locale = _locale(request)
        notes, position = await self._query(
            f"/notes?locale={locale}",
            lambda: (self._shop.notes(locale), self._shop.position()),
        )
        return _json(
            {"locale": locale, "position": position, "notes": notes},
            headers={"X-Position": str(position)},
        )

    async def _query(self, name: str, read: Callable[[], _Found]) -> _Found:
        # The read comes first: while its query runs, an answer can only grow older.
        found = read()
        with self._meter.query(name if found is not None else _ABSENT):
            await self._barrier.passes(name)
            await self._clock.sleep(self._query_ms / 1000)
        return found

    # --- what changes them ------------------------------------------------------------

    async def reprice(self, request: web.Request) -> web.Response:
        """Change a price; answer with the change."""
        product_id, body = int(request.match_info["id"]), await request.json()
        return await self._committed(
            self._shop.reprice(product_id, int(body["price_cents"]))
        )

    async def retitle(self, request: web.Request) -> web.Response:
        """Change a note's title; answer with the change."""
        note_id, body = int(request.match_info["id"]), await request.json()
        return await self._committed(self._shop.retitle(note_id, str(body["title"])))

    async def _committed(self, change: Change | None) -> web.Response:
        if change is None:
            raise web.HTTPNotFound
        async with self._changed:
            self._changed.notify_all()
        return _json(asdict(change))

    async def changes(self, request: web.Request) -> web.Response:
        """Answer with the changes after a position, as soon as there are any."""
        after = int(request.query["after"])
        # A follower that went away must not leave its wait behind.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FOLLOW_S), self._changed:
                await self._changed.wait_for(lambda: self._shop.changes_after(after))
        return _json([asdict(change) for change in self._shop.changes_after(after)])

    # --- what the play needs to see and to hold ---------------------------------------

    async def hold(self, request: web.Request) -> web.Response:
        """Hold the next query of this name."""
        self._barrier.hold((await request.json())["query"])
        return _json({})

    async def held(self, _: web.Request) -> web.Response:
        """Answer when a query is held."""
        await self._barrier.held()
        return _json({})

    async def let_go(self, _: web.Request) -> web.Response:
        """Let the held query answer."""
        self._barrier.let_go()
        return _json({})

    async def meter(self, _: web.Request) -> web.Response:
        """Answer with the queries so far."""
        meter = self._meter
        return _json(
            {
                "limit": meter.limit,
                "running": meter.running,
                "max_concurrency": meter.max_concurrency,
                "queries": dict(meter.queries),
            }
        )


def price_text(cents: int, locale: str) -> str:
    """Return a price as the language writes it."""
    text = f"{cents / 100:,.2f}"
    match locale:
        case "de":
            return f"{text.translate(str.maketrans(',.', '.,'))} €"
        case "fr":
            return f"{text.translate(str.maketrans(',.', ' ,'))} €"
        case _:
            return f"€{text}"


def _locale(request: web.Request) -> str:
    locale = request.query.get("locale", "en")
    if locale not in LOCALES:
        raise web.HTTPBadRequest(text=f"locale is one of {', '.join(LOCALES)}")
    return locale


def _json(value: Any, *, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(value), content_type="application/json", headers=headers
    )


async def serve(database: Path, *, limit: int, query_ms: int, clock: Clock) -> None:
    """Answer until SIGTERM or SIGINT; the first line printed is the base URL."""
    ended = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    with Shop.founded(database, clock) as shop:
        origin = Origin(shop, limit=limit, query_ms=query_ms, clock=clock)
        # A held or waiting request must not hold up the end.
        runner = web.AppRunner(origin.application(), shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, 0)
            await site.start()
            click.echo(f"http://{HOST}:{runner.addresses[0][1]}")
            await ended.wait()
        finally:
            await runner.cleanup()


def main() -> None:
    """Run the origin as its command line says."""
    parser = argparse.ArgumentParser(prog="python -m warmer.ops.demo.origin")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--query-ms", type=int, default=60)
    chosen = parser.parse_args()
    asyncio.run(
        serve(
            chosen.database,
            limit=chosen.limit,
            query_ms=chosen.query_ms,
            clock=SystemClock(),
        )
    )


if __name__ == "__main__":
    main()
