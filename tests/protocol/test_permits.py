"""The script that shares out an origin's limit, on both servers."""

from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from tests.control import control_of
from tests.servers import ServerProcess
from warmer.model.permit import (
    Counts,
    Demand,
    Grant,
    OriginLimits,
    Phase,
    Pool,
    Report,
    Seen,
)
from warmer.policy.adaptive import Bearing, borne
from warmer.policy.breaker import PROBES, Breaker, looked_at, told
from warmer.policy.shares import lowered, reserve_of, shares_of, within
from warmer.store.control import ControlServer

TTL_MS = 2_000
START_MS = 4_000_000_000_000
NONE = Counts()
LIMITS = OriginLimits(limit=10, floor=2, reserve_ratio=0.2)


class Process:
    """One process by the rules: it reports what it goes by, and goes by what it is told."""

    def __init__(self, fleet: "ProcessFleet", name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.number = 0
        self.share = NONE
        self.used = NONE

    async def ask(
        self,
        *,
        request: int = 0,
        warm: int = 0,
        used: Counts | None = None,
        seen: Seen | None = None,
        lost: bool = False,
        starts: int = 0,
        **wants: int,
    ) -> Grant:
        """Report, and go by the reply unless it is lost."""
        wanted = Counts(request=request, warm=warm, **wants)
        self.used = NONE if used is None else used
        self.share = lowered(self.share, wanted)
        self.number += 1
        pools = {"": Demand(wanted, self.used, self.share)} if any(wanted) else {}
        report = Report(self.name, self.number, pools, seen or Seen(), starts)
        grant = await self.fleet.share(report)
        if not lost:
            self.share = grant.shares.get("", NONE)
        return grant


class ProcessFleet:
    """Processes before one server, whose clock a test moves."""

    def __init__(self, control: ControlServer, limits: OriginLimits) -> None:
        self.control = control
        self.limits = limits
        self.now_ms = START_MS

    async def share(self, report: Report) -> Grant:
        permits = self.control.permits("shop", self.limits, ttl_ms=TTL_MS)
        return await permits.share(report, now_ms=self.now_ms)

    def process(self, name: str) -> Process:
        return Process(self, name)

    async def settled(self) -> None:
        """Past the time in which the server may not know who holds what."""
        await self.process("first").ask(request=1)
        await self.process("first").ask()
        self.now_ms += TTL_MS


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


@pytest.fixture
async def fleet(control: ControlServer) -> ProcessFleet:
    fleet = ProcessFleet(control, LIMITS)
    await fleet.settled()
    return fleet


async def test_the_first_permit_of_an_idle_process_is_one_round_trip(
    fleet: ProcessFleet,
) -> None:
    """R-ADM-1."""
    await fleet.process("a").ask(request=3)

    assert (await fleet.process("b").ask(request=2)).shares == {"": Counts(2)}


async def test_what_another_has_not_given_back_is_not_granted_again(
    fleet: ProcessFleet,
) -> None:
    """R-ADM-1 R-FT-4: not when the share shrinks, but when its process has said so."""
    a, b = fleet.process("a"), fleet.process("b")
    await a.ask(request=10)
    assert sum(a.share) == 10
    await b.ask(request=10)
    assert sum(b.share) == 0
    await a.ask(request=10, used=Counts(10))
    assert sum(a.share) == 5
    await b.ask(request=10)
    assert sum(b.share) == 0
    await a.ask(request=10, used=Counts(8))
    await b.ask(request=10)
    assert sum(b.share) == 2
    await a.ask(request=10, used=Counts(5))
    await b.ask(request=10)

    assert (sum(a.share), sum(b.share)) == (5, 5)


async def test_a_lost_reply_gives_nothing_to_others(fleet: ProcessFleet) -> None:
    """R-ADM-1: the process that does not know of its smaller share goes by the old one."""
    a, b = fleet.process("a"), fleet.process("b")
    await a.ask(request=10)
    await b.ask(request=10)
    await a.ask(request=10, lost=True)
    await b.ask(request=10)
    assert sum(a.share) + sum(b.share) <= 10
    await a.ask(request=10, lost=True)
    await b.ask(request=10)

    assert sum(a.share) + sum(b.share) <= 10


async def test_an_earlier_report_that_arrives_late_changes_nothing(
    fleet: ProcessFleet,
) -> None:
    """R-ADM-1."""
    a = fleet.process("a")
    await a.ask(request=10)
    late = Report("a", a.number - 1, {"": Demand(Counts(1), NONE, NONE)})
    await fleet.share(late)
    b = fleet.process("b")
    await b.ask(request=10)

    assert (sum(a.share), sum(b.share)) == (10, 0)


async def test_a_dead_process_s_share_comes_back_after_its_term(
    fleet: ProcessFleet,
) -> None:
    """R-ADM-1 R-FT-4."""
    await fleet.process("dead").ask(request=10)
    b = fleet.process("b")
    fleet.now_ms += TTL_MS - 1
    await b.ask(request=10)
    assert sum(b.share) == 0
    fleet.now_ms += 1
    await b.ask(request=10)

    assert sum(b.share) == 10


async def test_a_process_that_wants_nothing_has_given_back(
    fleet: ProcessFleet, server: ServerProcess
) -> None:
    """R-ADM-1: at once, and nothing of it stays."""
    a, b = fleet.process("a"), fleet.process("b")
    await a.ask(request=10)
    await a.ask()
    await b.ask(request=10)

    assert sum(b.share) == 10
    assert server.command("HLEN", "warmer:permits:shop") == 2


async def test_campaigns_leave_the_reserve_and_get_what_requests_leave(
    fleet: ProcessFleet,
) -> None:
    """R-ADM-3."""
    worker, web = fleet.process("worker"), fleet.process("web")
    await worker.ask(warm=100)
    assert worker.share == Counts(warm=8)
    await web.ask(request=6)
    assert web.share == Counts(request=2)
    await worker.ask(warm=100, used=Counts(warm=4))
    await worker.ask(warm=100, used=Counts(warm=4))
    await web.ask(request=6)

    assert (worker.share, web.share) == (Counts(warm=4), Counts(request=6))


async def test_nobody_s_share_grows_while_a_restarted_server_may_lack_others(
    fleet: ProcessFleet, server: ServerProcess
) -> None:
    """R-ADM-1 R-FT-4: the table is gone, and what was granted by it is in use."""
    a = fleet.process("a")
    await a.ask(request=10)
    server.command("FLUSHALL")
    b = fleet.process("b")
    await b.ask(request=10)
    assert sum(b.share) == 0
    await a.ask(request=10, used=Counts(10))
    await b.ask(request=10)
    assert (sum(a.share), sum(b.share)) == (5, 0)
    for _ in range(3):
        fleet.now_ms += TTL_MS - 1
        await a.ask(request=10, used=Counts(5))
        await b.ask(request=10)

    assert (sum(a.share), sum(b.share)) == (5, 5)


async def test_while_open_nobody_is_granted_and_a_few_probe_then(
    fleet: ProcessFleet,
) -> None:
    """R-ADM-4: of the whole fleet; after it, the limit ramps from its floor."""
    a, b = fleet.process("a"), fleet.process("b")
    await a.ask(request=5)
    grant = await a.ask(request=5, seen=Seen(failed=10))
    assert (grant.phase, grant.retry_in_ms) == (Phase.OPEN, 1_000)
    assert grant.shares == {"": NONE}
    fleet.now_ms += 1_000
    await a.ask(request=5)
    grant = await b.ask(request=5)
    assert grant.phase is Phase.PROBING
    assert sum(a.share) + sum(b.share) == PROBES
    grant = await b.ask(request=5, seen=Seen(ok=3, load_ms=30, era=grant.era))

    assert (grant.phase, grant.limit) == (Phase.CLOSED, 3)


async def test_retry_after_holds_for_the_whole_fleet(fleet: ProcessFleet) -> None:
    """R-ADM-4 RETRY-2."""
    seen = Seen(failed=1, pushed_back=1, retry_after_ms=30_000)
    await fleet.process("a").ask(request=5, seen=seen)
    grant = await fleet.process("b").ask(request=5)

    assert (grant.phase, grant.retry_in_ms) == (Phase.OPEN, 30_000)


async def test_no_more_begin_in_a_second_than_the_rate_allows(
    control: ControlServer,
) -> None:
    """R-ADM-1: whatever is asked for, by how many."""
    fleet = ProcessFleet(control, replace(LIMITS, rate=50.0))
    await fleet.settled()
    processes = [fleet.process(name) for name in "abc"]
    begun = 0
    for _ in range(100):
        fleet.now_ms += 10
        for process in processes:
            begun += (await process.ask(request=3, starts=20)).starts

    assert 50 <= begun <= 50 + 10


async def test_a_dataset_and_a_tenant_have_limits_of_their_own(
    control: ControlServer,
) -> None:
    """R-ADM-1."""
    pools = {"dataset:product": Pool(4, 1), "tenant:product": Pool(2, 0)}
    fleet = ProcessFleet(control, replace(LIMITS, pools=pools))
    await fleet.settled()
    demand = Demand(Counts(now=9), NONE, NONE)
    names = ("", "dataset:product", "tenant:product:7")
    grant = await fleet.share(Report("a", 1, dict.fromkeys(names, demand)))

    assert [sum(grant.shares[name]) for name in names] == [8, 3, 2]


async def test_what_the_fleet_goes_by_can_be_seen(control: ControlServer) -> None:
    """R-ADM-1: one published limit, and how much of it is held and wanted."""
    permits = control.permits("shop", LIMITS, ttl_ms=TTL_MS)
    unknown = await permits.look()
    demand = Demand(Counts(4, 0, 2), Counts(1), Counts(2, 0, 1))
    await permits.share(Report("a", 1, {"": demand}))
    known = await permits.look()

    assert (unknown.limit, unknown.processes) == (10, 0)
    assert (known.limit, known.phase, known.processes) == (10, Phase.CLOSED, 1)
    assert (known.held, known.wanted) == (3, 6)


async def test_what_nobody_here_wrote_counts_as_unknown(
    fleet: ProcessFleet, server: ServerProcess
) -> None:
    """R-ADM-1: one corrupt field holds up nobody."""
    server.command("HSET", "warmer:permits:shop", "origin", "{", "p:x", "nonsense")
    fleet.now_ms += TTL_MS
    await fleet.settled()

    assert sum((await fleet.process("a").ask(request=3)).shares[""]) == 3


class Reference:
    """The same in Python, from the pure policies."""

    def __init__(self, limits: OriginLimits, now_ms: int) -> None:
        self.limits = limits
        self.born = now_ms
        self.breaker = Breaker()
        self.bearing = Bearing(float(limits.limit))
        self.records: dict[str, tuple[int, Counts, int, int]] = {}

    def share(self, report: Report, now_ms: int) -> tuple[Counts, int, Phase]:
        for name, (ends, *_) in list(self.records.items()):
            if ends <= now_ms:
                del self.records[name]
        self.learn(report.seen, now_ms)
        limit, reserve = self.pool()
        mine = report.pools.get("")
        others = {n: r for n, r in self.records.items() if n != report.process}
        if mine is None:
            self.records = others
            return NONE, limit, self.breaker.phase
        names = sorted([*others, report.process])
        wants = [mine.wants if n == report.process else others[n][1] for n in names]
        turn = now_ms // 500
        ideal = shares_of(Pool(limit, reserve), wants, turn=turn)
        room = limit - sum(record[2] for record in others.values())
        lend = limit - reserve - sum(record[3] for record in others.values())
        if now_ms - self.born < TTL_MS:
            room = min(room, sum(mine.granted))
            lend = min(lend, sum(mine.granted[1:]))
        share = within(
            ideal[names.index(report.process)],
            room=max(0, room),
            room_to_lend=max(0, lend),
        )
        held = max(map(sum, (share, mine.granted, mine.used)))
        lent = max(sum(each[1:]) for each in (share, mine.granted, mine.used))
        self.records = others | {
            report.process: (now_ms + TTL_MS, mine.wants, held, lent)
        }
        return share, limit, self.breaker.phase

    def learn(self, seen: Seen, now_ms: int) -> None:
        breaker = looked_at(self.breaker, now_ms)
        if seen.era == breaker.era:
            self.bearing = borne(
                self.bearing,
                seen,
                now_ms,
                floor=self.limits.floor,
                ceiling=self.limits.limit,
                adaptive=self.limits.adaptive,
            )
        after = told(breaker, seen, now_ms)
        if after.phase is Phase.OPEN and after.era != breaker.era:
            self.bearing = Bearing(
                float(self.limits.floor), self.bearing.usual_ms, now_ms
            )
        self.breaker = after

    def pool(self) -> tuple[int, int]:
        if self.breaker.phase is Phase.OPEN:
            return 0, 0
        limit = int(self.bearing.limit)
        if self.breaker.phase is Phase.PROBING:
            return min(limit, PROBES), 0
        return limit, reserve_of(limit, self.limits.reserve_ratio)


def some_counts(random: Random, most: int) -> Counts:
    return Counts(*(random.choice((0, random.randint(0, most))) for _ in range(4)))


def some_seen(random: Random, era: int) -> Seen:
    ok, failed = random.randint(0, 12), random.choice((0, 0, 0, 1, 3, 12))
    return Seen(
        ok=ok,
        failed=failed,
        pushed_back=random.randint(0, failed),
        load_ms=ok * random.choice((40, 50, 60, 900)),
        retry_after_ms=random.choice((0,) * 40 + (700,)),
        era=random.choice((era, era, era, era - 1)),
    )


@pytest.mark.parametrize("seed", range(6))
async def test_the_script_decides_as_the_policies_do(
    control: ControlServer, seed: int
) -> None:
    """R-ADM-1 R-ADM-3 R-ADM-4: whatever is reported, in whatever order, and never too much."""
    random = Random(seed)
    limits = OriginLimits(
        limit=random.randint(1, 40), floor=1, reserve_ratio=random.choice((0.0, 0.2))
    )
    fleet = ProcessFleet(control, limits)
    await fleet.settled()
    reference = Reference(limits, START_MS)
    reference.bearing = replace(reference.bearing, since_ms=0)
    processes = [fleet.process(name) for name in "abcde"]
    era = 0
    for _ in range(150):
        fleet.now_ms += random.choice((1, 20, 100, 600))
        process = random.choice(processes)
        wanted: dict[str, Any] = some_counts(random, 20)._asdict()
        seen = some_seen(random, era)
        number, share = process.number + 1, lowered(process.share, Counts(**wanted))
        used = Counts(*(random.randint(0, each) for each in share))
        grant = await process.ask(
            used=used, seen=seen, lost=random.random() < 0.1, **wanted
        )
        demand = {"": Demand(Counts(**wanted), used, share)}
        pools = demand if any(wanted.values()) else {}
        said = reference.share(Report(process.name, number, pools, seen), fleet.now_ms)

        assert (grant.shares.get("", NONE), grant.limit, grant.phase) == said
        assert grant.era == reference.breaker.era
        era = grant.era


async def test_a_report_of_twelve_processes_is_small(server: ServerProcess) -> None:
    """R-ADM-1: what stands in the table is what the reports say, and no more."""
    async with control_of(server) as control:
        fleet = ProcessFleet(control, LIMITS)
        for number in range(12):
            await fleet.process(f"p{number}").ask(request=3)

    fields: list[bytes] = server.command("HVALS", "warmer:permits:shop")
    assert len(fields) == 13
    assert all(len(field) < 700 for field in fields)
    assert all(orjson.loads(field) for field in fields)


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", "7", "{}", '{"ends":9e15,"number":1,"starts":0,"pools":{"":[]}}',
     '{"ends":9e15,"number":1,"starts":0,"pools":{"":["a",0,0,0,0,0]}}',
     '{"ends":9e15,"number":1,"starts":0}', '{"ends":null,"pools":[]}'],
)  # fmt: skip
async def test_a_record_of_another_hand_ends_nobodys_reports(
    fleet: ProcessFleet, server: ServerProcess, record: str
) -> None:
    """It counts as none."""
    server.command("HSET", "warmer:permits:shop", "p:other", record)

    assert (await fleet.process("a").ask(request=2)).shares == {"": Counts(2)}
    assert server.command("HEXISTS", "warmer:permits:shop", "p:other") == 0


async def test_a_clock_that_went_back_grants_nothing_twice_and_holds_nobody_up(
    fleet: ProcessFleet,
) -> None:
    """CLOCK-1: what others hold they hold for one term more, and no longer."""
    await fleet.process("a").ask(request=10)
    fleet.now_ms -= 3_600_000

    assert (await fleet.process("b").ask(request=10)).shares == {"": Counts(0)}
    fleet.now_ms += TTL_MS
    assert (await fleet.process("b2").ask(request=10)).shares != {"": Counts(0)}
