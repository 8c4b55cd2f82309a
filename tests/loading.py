"""A process that loads from an origin within the fleet's limit: `python -m tests.loading JSON`.

So many tasks, each with one load under way or in line; on SIGTERM, or when its time is up,
it says as JSON what became of them.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.datasets import product
from warmer.clock import SystemClock
from warmer.dispatch import Jobs
from warmer.errors import NoPermit, OriginError
from warmer.model.dataset import LoaderVersion
from warmer.model.permit import TTL_MS, Errand, OriginLimits, Purpose
from warmer.origin.admission import Admission
from warmer.origin.loader import Origin
from warmer.origin.target import OriginTarget
from warmer.signals import Counters
from warmer.store.connections import Endpoint, connect
from warmer.store.control import ControlServer

CLOCK = SystemClock()
PLAIN = product(version=LoaderVersion(), load_timeout_ms=5_000)
SHARED = product(version=LoaderVersion(), load_timeout_ms=5_000, tenant="id")
HOST, GUEST = 0, 1
"""Who asks for what, where tenants are told apart: by the id, which is the tenant's."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process is told."""

    control: str
    origin: str
    name: str = "process"
    limit: int = 32
    local_limit: int = 4
    tasks: int = 64
    purpose: str = "request"
    for_s: float = 60.0
    settles_s: float = 0.0
    pause_s: float = 0.0
    adaptive: bool = False
    reserve_ratio: float = 0.2
    rate: float = 0.0
    guests: int = 0
    """Tasks of a second tenant, beside those of the first."""


@dataclass(slots=True)
class Done:
    """What became of its loads."""

    loads: int = 0
    failed: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    reports: int = 0
    waits_ms: list[int] = field(default_factory=list)
    guests_ms: list[int] = field(default_factory=list)
    signals: dict[str, int] = field(default_factory=dict)


async def work(orders: Orders, origin: Origin, done: Done, stop: asyncio.Event) -> None:
    settled = CLOCK.monotonic() + orders.settles_s
    dataset = SHARED if orders.guests else PLAIN
    load = origin.load_of(dataset, Errand(Purpose(orders.purpose)))
    ids = itertools.repeat(HOST) if orders.guests else itertools.cycle(range(1_000))

    async def loader(ids: Iterator[int], waits_ms: list[int]) -> None:
        while not stop.is_set():
            began = CLOCK.monotonic()
            try:
                loaded = await load(dataset.key({"id": next(ids)}), {})
            except NoPermit as exc:
                done.refused[exc.why] = done.refused.get(exc.why, 0) + 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min((exc.retry_in_ms or 0) / 1000, 0.5)):
                        await stop.wait()
            except OriginError:
                done.failed += 1
                await CLOCK.sleep(0.02)
            else:
                done.loads += 1
                if began < settled:
                    continue
                took_ms = int((CLOCK.monotonic() - began) * 1000)
                waits_ms.append(took_ms - loaded.load_ms)
            if orders.pause_s:
                await CLOCK.sleep(orders.pause_s)

    hosts = (loader(ids, done.waits_ms) for _ in range(orders.tasks))
    guest = itertools.repeat(GUEST)
    guests = (loader(guest, done.guests_ms) for _ in range(orders.guests))
    await asyncio.gather(*hosts, *guests)


async def main(orders: Orders) -> None:
    redis = connect(Endpoint(orders.control, timeout_ms=500))
    control = ControlServer(redis, drain_job=Jobs(CLOCK).refresh_due)
    limits = OriginLimits(
        limit=orders.limit,
        floor=max(1, orders.limit // 8),
        reserve_ratio=orders.reserve_ratio,
        adaptive=orders.adaptive,
        rate=orders.rate,
    )
    signals = Counters()
    admission = Admission(
        "shop",
        control.permits("shop", limits, ttl_ms=TTL_MS),
        limits,
        local_limit=orders.local_limit,
        max_waiting=1_000,
        clock=CLOCK,
        signals=signals,
    )
    target = OriginTarget(
        "shop",
        orders.origin,
        headers={"X-From": orders.name},
        local_limit=orders.local_limit,
        fleet_limit=orders.limit,
    )
    origin = Origin(target, clock=CLOCK, signals=signals, admission=admission)
    done, stop = Done(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_later(orders.for_s, stop.set)
    say("ready")
    try:
        await work(orders, origin, done, stop)
    finally:
        await origin.aclose()
        await redis.aclose()
    done.reports = admission._number
    done.signals = {" ".join(name): count for name, count in signals.counts.items()}
    say(
        "done "
        + json.dumps({name: getattr(done, name) for name in Done.__dataclass_fields__})
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Orders(**json.loads(sys.argv[1]))))
