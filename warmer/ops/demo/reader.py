"""One reader process of the demo: request paths that read through `CacheClient`.

It obeys lines of JSON on its standard input, and reports in lines of JSON:

    {"do": "burst", "asks": […], "callers": 25}    that many callers for each ask, at once
    {"do": "watch", "asks": […], "every_ms": 5}    one caller for each ask, over and over;
                                                   answers once each has read once
    {"do": "until", "versions": […], "after_ms": 200, "within_ms": 8000}
                                                   ends the watch once each ask was given
                                                   its version, and that much later
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import orjson

from warmer.client import CacheClient
from warmer.clock import Clock, SystemClock
from warmer.errors import NothingToServe
from warmer.ops.demo.reads import Ask, Read, version_of
from warmer.settings import load_settings
from warmer.wiring import open_client

DEADLINE = timedelta(seconds=15)


class Watch:
    """One caller for each ask, reading over and over; everything it sees is kept."""

    def __init__(self, reader: "Reader", asks: Sequence[Ask], every_ms: int) -> None:
        self._reader = reader
        self._every_ms = every_ms
        self._reads: list[Read] = []
        self._seen = dict.fromkeys(range(len(asks)), 0)
        self._changed = asyncio.Condition()
        self._callers = [
            asyncio.create_task(self._call(number, ask))
            for number, ask in enumerate(asks)
        ]

    async def begun(self) -> None:
        """Return when every ask has been answered once."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: len({read.ask for read in self._reads}) == len(self._seen)
            )

    async def until(
        self, versions: Sequence[int], *, after_ms: int, within_ms: int
    ) -> list[Read]:
        """Return what was seen, once each ask was given its version and `after_ms` passed."""
        try:
            async with asyncio.timeout(within_ms / 1000), self._changed:
                await self._changed.wait_for(lambda: self._reached(versions))
            await self._reader.clock.sleep(after_ms / 1000)
        except TimeoutError:
            pass
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        return self._reads

    def _reached(self, versions: Sequence[int]) -> bool:
        return all(
            self._seen[number] >= version for number, version in enumerate(versions)
        )

    async def _call(self, number: int, ask: Ask) -> None:
        while True:
            read = await self._reader.read(number, ask)
            self._reads.append(read)
            async with self._changed:
                self._seen[number] = max(self._seen[number], read.version)
                self._changed.notify_all()
            await self._reader.clock.sleep(self._every_ms / 1000)


class Reader:
    """Reads on command."""

    def __init__(self, client: CacheClient, clock: Clock) -> None:
        self.clock = clock
        self._client = client
        self._watch: Watch | None = None

    async def obey(self, command: dict[str, Any]) -> list[Read]:
        """Carry out one command; returns what was read."""
        match command["do"]:
            case "burst":
                return await self._burst(_asks(command), command["callers"])
            case "watch":
                self._watch = Watch(self, _asks(command), command["every_ms"])
                await self._watch.begun()
                return []
            case _:
                if self._watch is None:
                    raise ValueError(f"no watch to end: {command}")
                return await self._watch.until(
                    command["versions"],
                    after_ms=command["after_ms"],
                    within_ms=command["within_ms"],
                )

    async def read(self, number: int, ask: Ask) -> Read:
        """Read once."""
        began = self.clock.monotonic()
        try:
            answer = await self._client.get(ask.dataset, deadline=DEADLINE, **ask.parts)
        except NothingToServe as exc:
            state, version = f"failed: {exc.reason}", 0
        else:
            state, version = str(answer.state), version_of(answer.value)
        return Read(number, began, self.clock.monotonic(), state, version)

    async def _burst(self, asks: Sequence[Ask], callers: int) -> list[Read]:
        async with asyncio.TaskGroup() as group:
            reads = [
                group.create_task(self.read(number, ask))
                for _ in range(callers)
                for number, ask in enumerate(asks)
            ]
        return [read.result() for read in reads]


def _asks(command: dict[str, Any]) -> list[Ask]:
    return [Ask(**ask) for ask in command["asks"]]


async def obey_all(config: Path, clock: Clock) -> None:
    """Carry out the commands on standard input, until it closes."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    async with open_client(load_settings(config)) as client:
        reader = Reader(client, clock)
        click.echo("ready")
        while line := await commands.readline():
            reads = await reader.obey(orjson.loads(line))
            click.echo(orjson.dumps([astuple(read) for read in reads]))


def main() -> None:
    """Read as told."""
    parser = argparse.ArgumentParser(prog="python -m warmer.ops.demo.reader")
    parser.add_argument("--config", type=Path, required=True)
    asyncio.run(obey_all(parser.parse_args().config, SystemClock()))


if __name__ == "__main__":
    main()
