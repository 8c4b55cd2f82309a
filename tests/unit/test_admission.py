"""Permits in one process: what begins, who waits, who is told no, and what is reported."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from warmer.clock import SystemClock
from warmer.errors import (
    NoPermit,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
    StoreTimeout,
)
from warmer.model.permit import (
    TTL_MS,
    Counts,
    Grant,
    OriginLimits,
    Phase,
    Pool,
    Purpose,
    Report,
)
from warmer.origin.admission import SAFE, Admission
from warmer.origin.line import Group, Line, Waiting
from warmer.policy.shares import shares_of
from warmer.signals import Counters

TURNS = SystemClock()
WHOLE = Group("", ("",))
LIMITS = OriginLimits(limit=10, reserve_ratio=0.2)


class Watch:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Server:
    """The control server as one process sees it: it grants what is asked, up to `limit`."""

    limit: int = 10
    reserve: int = 2
    away: bool = False
    phase: Phase = Phase.CLOSED
    retry_in_ms: int = 0
    era: int = 0
    starts: int = 0
    pools: dict[str, Pool] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)

    async def share(self, report: Report) -> Grant:
        self.reports.append(report)
        await TURNS.sleep(0)
        if self.away:
            raise StoreTimeout("no reply in time")
        limit = 0 if self.phase is Phase.OPEN else self.limit
        pools = {"": Pool(limit, min(limit, self.reserve))} | self.pools
        shares = {
            name: shares_of(pools[name], [demand.wants])[0]
            for name, demand in report.pools.items()
        }
        return Grant(shares, self.starts, limit, self.phase, self.retry_in_ms, self.era)


class Process:
    """Loads that hold a permit until they are let go."""

    def __init__(self, server: Server, limits: OriginLimits) -> None:
        self.server = server
        self.watch = Watch()
        self.signals = Counters()
        self.admission = Admission(
            "shop",
            server,
            limits,
            local_limit=3,
            max_waiting=50,
            clock=self.watch,
            signals=self.signals,
        )
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def load(
        self,
        name: str,
        purpose: Purpose = Purpose.REQUEST,
        *,
        within_ms: int = 5_000,
        group: Group = WHOLE,
        error: Exception | None = None,
        takes_s: float = 0.0,
    ) -> None:
        end = self.ends.setdefault(name, asyncio.Event())
        async with self.admission.permit(
            group, purpose, within_ms=within_ms, load_timeout_ms=5_000
        ):
            self.began.append(name)
            await end.wait()
            self.watch.seconds += takes_s
            if error is not None:
                raise error

    async def start(
        self,
        *names: str,
        purpose: Purpose = Purpose.REQUEST,
        group: Group = WHOLE,
    ) -> None:
        for name in names:
            load = self.load(name, purpose, group=group)
            self.tasks.append(asyncio.create_task(load))
        await settled()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await settled()

    async def failed(self, error: Exception, *, takes_s: float = 0.0) -> None:
        """One load that ends so."""
        self.ends.setdefault("failed", asyncio.Event()).set()
        with pytest.raises(type(error)):
            await self.load("failed", error=error, takes_s=takes_s)
        await settled()

    async def reported(self, count: int = 1) -> Report:
        """The report after so many more; the process's own pace is real time."""
        enough = len(self.server.reports) + count
        while len(self.server.reports) < enough:
            await TURNS.sleep(0.005)
        await settled()
        return self.server.reports[-1]


async def settled() -> None:
    for _ in range(20):
        await TURNS.sleep(0)


@asynccontextmanager
async def opened(
    server: Server, limits: OriginLimits = LIMITS
) -> AsyncIterator[Process]:
    process = Process(server, limits)
    try:
        yield process
    finally:
        for end in process.ends.values():
            end.set()
        await process.admission.aclose()
        await asyncio.gather(*process.tasks, return_exceptions=True)


async def test_permits_inside_the_share_cost_no_round_trip() -> None:
    """R-ADM-1: the first of an idle process costs one, at once."""
    async with opened(Server()) as process:
        await process.start("a")
        await process.start("b")
        assert (process.began, len(process.server.reports)) == (["a", "b"], 2)
        await process.end("a")
        await process.start("c")
        await process.end("c")
        await process.start("d")

        assert process.began == ["a", "b", "c", "d"]
        assert len(process.server.reports) == 2


async def test_the_urgent_are_served_first_and_the_rest_leave_them_the_reserve() -> (
    None
):
    """R-ADM-3."""
    async with opened(Server(limit=3, reserve=1)) as process:
        await process.start("w1", "w2", "w3", purpose=Purpose.WARM)
        assert process.began == ["w1", "w2"]
        await process.start("r1", "r2")
        await process.reported(2)
        assert process.began == ["w1", "w2", "r1"]
        await process.end("w1", "w2")

        assert process.began[:4] == ["w1", "w2", "r1", "r2"]


async def test_what_is_not_used_is_given_back() -> None:
    """R-ADM-1: and a process that wants nothing says so once, and is silent then."""
    async with opened(Server()) as process:
        await process.start("a")
        await process.end("a")
        while (await process.reported()).pools:
            pass
        count = len(process.server.reports)
        await TURNS.sleep(0.15)

        assert len(process.server.reports) == count
        assert process.admission.running == 0


async def test_a_share_ends_before_its_term_does() -> None:
    """R-ADM-1 R-FT-4: a process that was stopped wakes up without one, and asks again."""
    async with opened(Server()) as process:
        await process.start("a", "b")
        await process.end("a")
        process.server.away = True
        process.watch.seconds += SAFE * TTL_MS / 1000 + 0.001
        await process.start("c")
        assert process.began == ["a", "b"]
        process.server.away = False
        await process.reported(2)

        assert process.began == ["a", "b", "c"]


async def test_without_the_server_a_process_goes_by_its_local_share() -> None:
    """R-ADM-1: after a whole term, when everybody's share has ended; and it says so, once."""
    async with opened(Server(away=True)) as process:
        await process.start("a", "b", "c", "d")
        await process.reported(2)
        assert process.began == []
        process.watch.seconds += TTL_MS / 1000 + 0.1
        await process.reported(2)
        assert process.began == ["a", "b", "c"]
        assert process.signals.total("permits_local") == 1
        process.server.away = False
        await process.reported(2)

        assert process.began == ["a", "b", "c", "d"]
        assert process.signals.total("permits_shared_again") == 1
        assert process.server.reports[-2].pools[""].granted != Counts()


async def test_campaigns_leave_the_reserve_of_the_local_share_too() -> None:
    """R-ADM-3."""
    async with opened(Server(away=True)) as process:
        process.watch.seconds += 1
        task = asyncio.create_task(process.load("first"))
        await process.reported(2)
        process.watch.seconds += TTL_MS / 1000 + 0.1
        await process.reported(2)
        await process.end("first")
        await task
        await process.start("w1", "w2", "w3", purpose=Purpose.WARM)
        assert process.began == ["first", "w1", "w2"]
        await process.start("r1")

        assert process.began == ["first", "w1", "w2", "r1"]


async def test_an_open_origin_refuses_at_once_and_keeps_no_line() -> None:
    """R-ADM-3 R-ADM-4."""
    server = Server(phase=Phase.OPEN, retry_in_ms=700)
    async with opened(server) as process:
        with pytest.raises(NoPermit) as first:
            await process.load("a")
        count = len(server.reports)
        with pytest.raises(NoPermit) as second:
            await process.load("b")

        assert (first.value.why, second.value.why) == ("open", "open")
        assert 0 < (second.value.retry_in_ms or 0) <= 700
        assert (len(server.reports), process.admission.waiting) == (count, 0)


async def test_while_others_probe_nobody_waits() -> None:
    """R-ADM-4."""
    server = Server(limit=1, reserve=0, phase=Phase.PROBING)
    async with opened(server) as process:
        await process.start("probe", "other")
        await settled()

        assert process.began == ["probe"]
        assert process.tasks[1].done()
        assert isinstance(process.tasks[1].exception(), NoPermit)


async def test_who_cannot_be_served_in_time_is_told_at_once() -> None:
    """R-FLT-2 R-ADM-3: and when to come back."""
    async with opened(Server(limit=1, reserve=0)) as process:
        await process.start("a")
        process.watch.seconds += 0.4
        await process.end("a")
        await process.start("b", "c")
        with pytest.raises(NoPermit) as refused:
            await process.load("d", within_ms=799)

        assert refused.value.why == "too_late"
        assert 799 <= (refused.value.retry_in_ms or 0) <= 801
        assert process.signals.total("loads_refused", "shop", "too_late") == 1


async def test_the_line_is_bounded() -> None:
    """R-FLT-3."""
    async with opened(Server(limit=0)) as process:
        await process.start(*(f"w{number}" for number in range(50)))
        with pytest.raises(NoPermit) as refused:
            await process.load("late")

        assert (refused.value.why, process.admission.waiting) == ("line_full", 50)


async def test_a_tenant_that_fills_the_line_keeps_no_other_out() -> None:
    """R-ADM-1 R-ADM-3: the last of its loads is told no in the other's place."""
    crowd, guest = Group("product:1", ("",)), Group("product:2", ("",))
    async with opened(Server(limit=0)) as process:
        await process.start(*(f"c{number}" for number in range(50)), group=crowd)
        await process.start("guest", group=guest)
        last = process.tasks[49]

        assert process.admission.waiting == 50
        assert isinstance(last.exception(), NoPermit)
        assert not process.tasks[48].done()
        assert not process.tasks[50].done()


async def test_whoever_is_less_urgent_makes_room_first() -> None:
    """R-ADM-3."""
    line, loop = Line(), asyncio.get_running_loop()
    few, many = Group("product:1", ("",)), Group("product:2", ("",))
    loads = [
        Waiting(rank, group, loop.create_future())
        for rank, group in ((0, few), (0, many), (0, many), (0, many), (2, few))
    ]
    for load in loads:
        line.join(load)

    assert line.crowding_out(many, 0) is loads[4]
    line.leave(loads[4])
    assert line.crowding_out(few, 0) is loads[3]
    assert line.crowding_out(many, 0) is None
    assert line.crowding_out(many, 1) is None


async def test_a_process_that_ends_says_what_it_saw() -> None:
    """R-ADM-4: one that loads only once has seen that the origin pushes back, too."""
    async with opened(Server()) as process:
        await process.failed(OriginUnavailable("reset"))
    assert sum(report.seen.failed for report in process.server.reports) == 1


async def test_a_load_nobody_waits_for_gives_up_its_place_soon() -> None:
    """R-ADM-3: it holds its key's lease meanwhile, and a request may want that."""
    async with opened(Server(limit=0)) as process:
        with pytest.raises(NoPermit) as refused:
            await process.load("w", Purpose.WARM)

        assert refused.value.why == "no_capacity"
        assert process.admission.waiting == 0


async def test_one_tenant_s_hundred_loads_delay_another_s_by_one_of_its_own() -> None:
    """R-ADM-1: tenants take turns, in each process."""
    a, b = Group("product:1", ("",)), Group("product:2", ("",))
    async with opened(Server(limit=1, reserve=0)) as process:
        await process.start(*(f"a{number}" for number in range(40)), group=a)
        await process.start("b0", "b1", group=b)
        for name in ("a0", "a1", "b0", "a2"):
            await process.end(name)

        assert process.began == ["a0", "a1", "b0", "a2", "b1"]


async def test_a_dataset_s_and_a_tenant_s_limit_hold_beside_the_origin_s() -> None:
    """R-ADM-1: who is held up by them holds up nobody else."""
    pools = {"dataset:product": Pool(2), "tenant:product": Pool(1)}
    server = Server(
        reserve=0, pools={"dataset:product": Pool(2), "tenant:product:1": Pool(1)}
    )
    tenant = Group("product:1", ("", "dataset:product", "tenant:product:1"))
    dataset = Group("product", ("", "dataset:product"))
    async with opened(server, replace(LIMITS, pools=pools)) as process:
        await process.start("t1", "t2", group=tenant)
        await process.start("d1", "d2", group=dataset)
        await process.start("other")
        await process.reported(2)

        assert process.began == ["t1", "d1", "other"]


async def test_no_more_begin_than_the_rate_gave() -> None:
    """R-ADM-1."""
    server = Server(starts=2)
    async with opened(server, replace(LIMITS, rate=20.0)) as process:
        await process.start("a", "b", "c")
        assert process.began == ["a", "b"]
        await process.reported()

        assert process.began == ["a", "b", "c"]


async def test_reports_say_how_loads_ended() -> None:
    """R-ADM-4: what an origin is judged by; an answer that says no is an answer."""
    async with opened(Server()) as process:
        await process.failed(OriginTimeout("total", "too slow"))
        await process.failed(OriginUnavailable("reset"))
        await process.failed(OriginRefused("401"))
        await process.failed(OriginRefused("429", retry_in_ms=30_000, busy=True))
        await process.reported()
        seen = [report.seen for report in process.server.reports]

        assert sum(each.ok for each in seen) == 1
        assert sum(each.failed for each in seen) == 3
        assert sum(each.pushed_back for each in seen) == 2
        assert max(each.retry_after_ms for each in seen) == 30_000


async def test_what_was_seen_is_told_again_if_it_was_not_heard() -> None:
    """R-ADM-4: and loads of an earlier era are not told at all."""
    async with opened(Server()) as process:
        await process.start("old", "other")
        await process.end("other")
        process.server.away = True
        await process.failed(OriginUnavailable("reset"))
        await process.reported(2)
        process.server.away, process.server.era = False, 1
        before = len(process.server.reports)
        await process.reported(2)
        told = [report.seen.failed for report in process.server.reports[before:]]
        assert sum(told[:2]) == 1
        await process.end("old")
        await process.reported(2)

        later = process.server.reports[before + 2 :]
        assert sum(report.seen.ok for report in later) == 0


async def test_who_goes_away_leaves_its_place_and_its_permit() -> None:
    """R-ADM-1: whether it waits, or runs (a moment later), or was just called."""
    async with opened(Server(limit=1, reserve=0)) as process:
        await process.start("a", "b", "c")
        running, waits, last = process.tasks
        waits.cancel()
        await settled()
        assert (process.admission.running, process.admission.waiting) == (1, 1)
        running.cancel()
        last.cancel()
        await settled()
        assert (process.admission.running, process.admission.waiting) == (1, 0)
        await process.start("d")
        while process.began[-1] != "d":
            await TURNS.sleep(0.005)

        assert process.admission.running == 1
