"""Loads from an `OriginServer` as a process makes them: over the real loader."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.datasets import product
from tests.origin_server import OriginServer
from warmer.clock import SystemClock
from warmer.model.dataset import Dataset, LoaderVersion
from warmer.model.outcome import Loaded
from warmer.origin.loader import Origin
from warmer.origin.target import OriginTarget
from warmer.signals import Counters

PLAIN = product(version=LoaderVersion())
"""Products whose loads report no version."""


class OriginClient:
    """Loads of one process from one origin server."""

    def __init__(self, server: OriginServer) -> None:
        self.server = server
        self.signals = Counters()
        self._origins: list[Origin] = []

    def origin(self, *, base: str = "", **settings: Any) -> Origin:
        """One with these settings (see OriginTarget), closed at the end."""
        target = OriginTarget("shop", self.server.url + base, **settings)
        origin = Origin(target, clock=SystemClock(), signals=self.signals)
        self._origins.append(origin)
        return origin

    async def load(
        self,
        *,
        origin: Origin | None = None,
        dataset: Dataset = PLAIN,
        **settings: Any,
    ) -> Loaded:
        """Product 42: the answer to /products/42."""
        origin = origin or self.origin(**settings)
        return await origin.load_of(dataset)(dataset.key({"id": 42}), {})

    async def aclose(self) -> None:
        for origin in self._origins:
            await origin.aclose()


@asynccontextmanager
async def origin_client() -> AsyncIterator[OriginClient]:
    async with OriginServer() as server:
        client = OriginClient(server)
        try:
            yield client
        finally:
            await client.aclose()
