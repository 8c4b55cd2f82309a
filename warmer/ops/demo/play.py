"""`warmer demo`: a server, an origin, workers and readers, and four scenes on them.

Holds: every number it shows was measured in this run; what it started and wrote is gone
when it ends, however it ends. Nothing but loopback is used.
Does not hold: that its times are those of your machines. Its processes share this one.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import click

from warmer.clock import Clock, SystemClock
from warmer.ops.demo import scenes
from warmer.ops.demo.findings import Findings, Scene
from warmer.ops.demo.household import Household
from warmer.ops.demo.shop import NOTES, PRODUCTS
from warmer.ops.demo.stage import (
    ORIGIN_LIMIT,
    QUERY_MS,
    READERS,
    WORKERS,
    Stage,
    set_up,
)
from warmer.ops.demo.telling import Teller

_CAST = (
    "On this machine only, and gone when it ends: a Valkey server, an HTTP origin over",
    f"SQLite with {PRODUCTS:,} products and {NOTES:,} notes, {QUERY_MS} ms a query,",
    f"{ORIGIN_LIMIT} at once, {WORKERS} workers, {READERS} reader processes.",
)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_S = TypeVar("_S", bound=Scene)


def run(*, as_json: bool, keep: bool) -> int:
    """Play; returns 0 if every promise held, else 1. KeyboardInterrupt if it was ended."""
    # With --json, standard output holds the object and nothing else.
    teller = Teller(sys.stderr if as_json else sys.stdout)
    try:
        findings = asyncio.run(_play(teller, SystemClock(), as_json=as_json, keep=keep))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return 1 if findings.broken() else 0


async def _play(teller: Teller, clock: Clock, *, as_json: bool, keep: bool) -> Findings:
    if (task := asyncio.current_task()) is not None:
        _on_ending(task.cancel)
    teller.opening("warmer demo", *_CAST)
    async with Household.open() as house:
        return await house.while_all_run(
            _on_stage(house, teller, clock, as_json=as_json, keep=keep)
        )


async def _on_stage(
    house: Household, teller: Teller, clock: Clock, *, as_json: bool, keep: bool
) -> Findings:
    began = clock.monotonic()
    async with AsyncExitStack() as stack:
        with teller.working("starting"):
            stage = await stack.enter_async_context(set_up(house, clock))
        findings = await _all_scenes(stage, teller)
        teller.closing(findings.broken(), clock.monotonic() - began)
        if as_json:
            click.echo(json.dumps(findings.as_json()))
        if keep:
            await _kept(stage, teller)
    return findings


async def _all_scenes(stage: Stage, teller: Teller) -> Findings:
    async def told(title: str, plot: str, play: Callable[[Stage], Awaitable[_S]]) -> _S:
        with teller.working(title):
            scene = await play(stage)
        teller.scene(title, plot, scene)
        return scene

    return Findings(
        stampede=await told(
            "A cold stampede",
            "Callers in several processes ask at once for keys that nobody has.",
            scenes.stampede,
        ),
        update=await told(
            "A price changes",
            "One UPDATE; its change event, as Debezium writes it, goes through the log.",
            scenes.update,
        ),
        out_of_order=await told(
            "Events out of order",
            "A row changes twice; the older change's event arrives after the newer one's.",
            scenes.out_of_order,
        ),
        invalidated_during_load=await told(
            "A change during a load",
            "A load has read the row; before its answer arrives, the row changes again.",
            scenes.invalidated_during_load,
        ),
        origin=await told(
            "The origin", "What it bore in the whole play.", scenes.origin_load
        ),
    )


async def _kept(stage: Stage, teller: Teller) -> None:
    ended = asyncio.Event()
    _on_ending(ended.set)
    config = f"--config {stage.config}"
    teller.note(
        "It keeps running, with the change feed on. In another terminal:",
        "",
        f"  warmer get product id=42 locale=en {config}",
        f"  curl -X POST {stage.origin_url}/admin/products/42 -d '{{\"price_cents\": 999}}'",
        f"  warmer why product id=42 locale=en {config}",
        f"  warmer invalidate product:42 --source shop-db {config}",
        f"  curl {stage.origin_url}/admin/meter",
        "",
        f"Logs of its processes are in {stage.config.parent}. Ctrl-C ends all of it.",
    )
    async with stage.feed.following():
        await ended.wait()


def _on_ending(do: Callable[[], object]) -> None:
    """Have Ctrl-C, SIGTERM and a closed terminal `do` that, from now on."""
    for each in _ENDING:
        asyncio.get_running_loop().add_signal_handler(each, do)
