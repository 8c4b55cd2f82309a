"""An origin's limit, shared by four processes: how much of it is used, and what that costs.

    make bench-admission

A limit of 32 at once before an origin of 50 ms. Equal: 64 tasks in each process. Skewed:
200, 2, 2 and 2. Reserve: three processes warm with 64 tasks each, one asks for requests with
two; how long those wait for their permits. The use is what the origin sees at once, looked at
every millisecond; the most is noted by the origin at each start of a request.
"""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

from tests.control import control_of
from tests.origin_server import OriginServer, json_answer
from tests.processes import Children
from tests.servers import ServerProcess, ValkeyProcess, running
from warmer.clock import SystemClock
from warmer.model.permit import (
    Counts,
    Demand,
    Grant,
    OriginLimits,
    Phase,
    Purpose,
    Report,
)
from warmer.origin.admission import Admission
from warmer.origin.line import Group
from warmer.signals import Counters

LIMIT, ORIGIN_S = 32, 0.05
SETTLES_S, MEASURED_S = 3.5, 5.0
PERMITS = 50_000


@dataclass(frozen=True, slots=True)
class Run:
    """One set of processes: the share of the limit in use, and their own words."""

    used: float
    most: int
    loads: int
    commands: int
    said: list[dict[str, Any]]


async def run(server: ServerProcess, processes: list[dict[str, Any]]) -> Run:
    """Start them, let them settle, look."""
    children = Children()
    server.command("FLUSHALL")
    try:
        async with OriginServer() as origin:
            for id_ in range(1_000):
                answer = json_answer({"id": id_}, delay_s=ORIGIN_S)
                origin.on(f"/products/{id_}", answer)
            shared = {
                "control": server.url,
                "origin": origin.url,
                "limit": LIMIT,
                "settles_s": SETTLES_S,
            }
            started = [
                children.python("tests.loading", json.dumps(shared | process))
                for process in processes
            ]
            for child in started:
                await child.line("ready", within_s=30)
            await asyncio.sleep(SETTLES_S)
            began, calls = len(origin.requests), reports(server)
            at_once = []
            end = time.monotonic() + MEASURED_S
            while time.monotonic() < end:
                at_once.append(origin.running)
                await asyncio.sleep(0.001)
            loads = len(origin.requests) - began
            commands = reports(server) - calls
            for child in started:
                child.terminate()
            said = [
                json.loads((await child.line("^done (.*)", within_s=30))[1])
                for child in started
            ]
            used = statistics.mean(at_once) / LIMIT
            return Run(used, origin.max_running, loads, commands, said)
    finally:
        children.kill_all()


def reports(server: ServerProcess) -> int:
    """How many scripts the server has run."""
    stats: dict[str, dict[str, int]] = server.command("INFO", "commandstats")
    calls = [stats.get(f"cmdstat_{name}", {}) for name in ("evalsha", "eval")]
    return sum(int(call.get("calls", 0)) for call in calls)


class Generous:
    """A fleet of one: whatever is wanted is granted."""

    async def share(self, report: Report) -> Grant:
        shares = {name: Counts(64) for name in report.pools}
        return Grant(shares, -1, 64, Phase.CLOSED, 0, 0)


async def permit_us() -> float:
    """What a permit inside the share costs this process."""
    limits = OriginLimits(limit=64)
    admission = Admission(
        "shop",
        Generous(),
        limits,
        local_limit=1,
        max_waiting=1,
        clock=SystemClock(),
        signals=Counters(),
    )
    group = Group("", ("",))
    began = time.process_time()
    for _ in range(PERMITS):
        async with admission.permit(
            group, Purpose.REQUEST, within_ms=1_000, load_timeout_ms=1_000
        ):
            pass
    took = time.process_time() - began
    await admission.aclose()
    return took / PERMITS * 1e6


async def report_us(server: ServerProcess, processes: int) -> float:
    """What one report costs the server beside so many processes, when nothing else runs."""
    server.command("FLUSHALL")
    demand = Demand(Counts(64, 3), Counts(2), Counts(2))
    async with control_of(server) as control:
        permits = control.permits("shop", OriginLimits(limit=LIMIT), ttl_ms=600_000)
        for process in range(processes):
            await permits.share(Report(f"{process:016x}", 1, {"": demand}))
        server.command("CONFIG", "RESETSTAT")
        for number in range(200):
            await permits.share(Report(f"{0:016x}", 2 + number, {"": demand}))
    stats: dict[str, dict[str, float]] = server.command("INFO", "commandstats")
    return float(stats["cmdstat_evalsha"]["usec_per_call"])


async def main() -> None:
    print(f"permit inside the share: {await permit_us():.1f} us CPU")
    with running(ValkeyProcess()) as server:
        equal = await run(server, [{"tasks": 64}] * 4)
        skewed = await run(server, [{"tasks": tasks} for tasks in (200, 2, 2, 2)])
        reserve = await run(
            server,
            [{"tasks": 64, "purpose": "warm"}] * 3 + [{"tasks": 2, "pause_s": 0.02}],
        )
        costs = {count: await report_us(server, count) for count in (1, 12, 100)}
    waits = sorted(reserve.said[-1]["waits_ms"])
    for count, cost_us in costs.items():
        print(f"one report of {count} processes: {cost_us:.0f} us on the server")
    for name, one in (("equal", equal), ("skewed", skewed), ("reserve", reserve)):
        loads = [said["loads"] for said in one.said]
        rate = one.loads / MEASURED_S
        print(f"{name}: {rate:.0f} loads/s, {one.used:.1%} used, most {one.most}")
        print(
            f"  loads of each {loads}, {one.commands / one.loads:.2f} commands a load"
        )
    print(
        json.dumps(
            {
                "commands_per_load": round(equal.commands / equal.loads, 3),
                "utilisation_equal": round(equal.used, 3),
                "utilisation_skewed": round(skewed.used, 3),
                "overshoot": max(equal.most, skewed.most, reserve.most) - LIMIT,
                "reserve_p99_ms": waits[int(len(waits) * 0.99)],
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
