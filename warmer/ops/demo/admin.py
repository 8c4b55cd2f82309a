"""What the demo may do to its origin: change rows, hold a query, read the meter."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from warmer.ops.demo.shop import Change

_ANSWERS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The meter at one moment: queries by name, and the most that ever ran at once."""

    limit: int
    running: int
    max_concurrency: int
    queries: Mapping[str, int]

    def since(self, earlier: "Reading") -> dict[str, int]:
        """Return the queries, by name, between an earlier reading and this one."""
        return {
            name: count - earlier.queries.get(name, 0)
            for name, count in self.queries.items()
            if count > earlier.queries.get(name, 0)
        }


class OriginAdmin:
    """The origin's `/admin`, over one HTTP session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @classmethod
    @asynccontextmanager
    async def of(cls, base_url: str) -> AsyncIterator[Self]:
        """Open a session with the origin at `base_url`."""
        timeout = aiohttp.ClientTimeout(total=_ANSWERS_WITHIN_S)
        async with aiohttp.ClientSession(
            base_url, raise_for_status=True, timeout=timeout
        ) as session:
            yield cls(session)

    async def reprice(self, product_id: int, price_cents: int) -> Change:
        """Give a product a new price; returns when it is committed."""
        body = {"price_cents": price_cents}
        return Change(**await self._post(f"/admin/products/{product_id}", body))

    async def retitle(self, note_id: int, title: str) -> Change:
        """Give a note a new title; returns when it is committed."""
        return Change(**await self._post(f"/admin/notes/{note_id}", {"title": title}))

    async def changes_after(self, lsn: int) -> list[Change]:
        """Return the changes after `lsn` as soon as there are any; none after some seconds."""
        changes = await self._get(f"/admin/changes?after={lsn}")
        return [Change(**change) for change in changes]

    async def hold(self, query: str) -> None:
        """Hold the next query of this name between its read and its answer."""
        await self._post("/admin/hold", {"query": query})

    async def held(self) -> None:
        """Return when a query is held."""
        await self._get("/admin/held")

    async def let_go(self) -> None:
        """Let the held query answer."""
        await self._post("/admin/let-go", None)

    async def meter(self) -> Reading:
        """Read the meter."""
        return Reading(**await self._get("/admin/meter"))

    async def _get(self, path: str) -> Any:
        async with self._session.get(path) as response:
            return await response.json()

    async def _post(self, path: str, body: Mapping[str, object] | None) -> Any:
        async with self._session.post(path, json=body) as response:
            return await response.json()
