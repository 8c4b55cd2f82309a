"""Which loads of one origin may run now: inside this process's share of the fleet's limit.

    async with admission.permit(group, Purpose.REQUEST, within_ms=800):
        ... load ...

Holds: a permit inside the share costs no round trip; the first of an idle process costs one.
The share is renewed while it is used, is given back when it is not, and counts for nine
tenths of its term after it was last asked for: a process that was stopped wakes up without
it. Who cannot be served in time, or asks an origin that is known to be down, is told at
once, with a reason and an instant. The line is bounded.
Away: what was granted is used to its end; after a whole term without an answer, when
everybody's has ended, this process goes by its own configured share, says so, and asks on.
Does not hold: the fleet's limit over a process that alone cannot reach the server; it may
use its local share besides. Loads that run on when their process's share has ended, and work
that an origin goes on with although its load was given up, but for the first moment of it.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from warmer.clock import Clock
from warmer.errors import NoPermit, OriginTimeout, StoreError
from warmer.model.permit import (
    RANK,
    TTL_MS,
    Grant,
    OriginLimits,
    Phase,
    Purpose,
    Report,
    Seen,
)
from warmer.origin.health import seen_of, together
from warmer.origin.holding import Holding
from warmer.origin.line import Group, Line, Waiting
from warmer.origin.local_share import LocalShare
from warmer.signals import Signals

log = logging.getLogger("warmer.admission")

RENEW_S, HUNGRY_S = 0.1, 0.025
"""Between two reports; and of a process that was given nothing yet."""
RENEW_PER_PROCESS_S, RENEW_AT_MOST_S = 0.004, 0.5
"""A report costs the more, the more processes there are; a term is still four reports."""
SAFE = 0.9
"""Of a term, how long the process itself goes by its share: its clock runs at another speed."""
PATIENCE_MS = 250
"""How long a load nobody waits for may stand in line: it holds its key's lease meanwhile."""
NOTICES_S = 0.25
"""How long a load that was given up counts on: an origin sees a connection end that late."""
PROBED_AGAIN_MS = 250
"""When to come back while others probe the origin."""
_WEIGHT = 0.1


class Fleet(Protocol):
    """Where permits are shared."""

    async def share(self, report: Report) -> Grant:
        """Say what is wanted; return what is granted. Raises StoreError."""
        ...


class Admission:
    """The permits of one origin in this process. `max_waiting`: loads in line at most."""

    def __init__(
        self,
        origin: str,
        fleet: Fleet,
        limits: OriginLimits,
        *,
        local_limit: int,
        max_waiting: int,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._origin = origin
        self._fleet = fleet
        self._limits = limits
        self._local_limit = local_limit
        self._max_waiting = max_waiting
        self._clock = clock
        self._signals = signals
        self._process = secrets.token_hex(8)
        self._number = 0
        self._holding = Holding(limits)
        self._line = Line()
        self._local: LocalShare | None = None
        self._starts = 0
        self._starts_short = False
        self._began = 0
        self._seen = Seen()
        self._mean_ms = 0.0
        self._good_until = 0.0
        self._failing_since: float | None = None
        self._rests_until = 0.0
        self._processes = 1
        self._drained_to_share = True
        self._stir = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self.phase = Phase.CLOSED
        self.limit = limits.limit
        """Of the whole fleet, as it is published."""

    @property
    def running(self) -> int:
        """Loads that have a permit."""
        return self._holding.running

    @property
    def waiting(self) -> int:
        """Loads in line."""
        return len(self._line)

    @asynccontextmanager
    async def permit(
        self, group: Group, purpose: Purpose, *, within_ms: int, load_timeout_ms: int
    ) -> AsyncIterator[None]:
        """Wait for a permit; raises NoPermit if none can come `within_ms`."""
        rank = RANK[purpose]
        await self._admitted(group, rank, within_ms)
        era, began = self._era(), self._clock.monotonic()
        ended_by: BaseException | None = None
        try:
            yield
        except BaseException as exc:
            ended_by = exc
            raise
        finally:
            load_ms = int((self._clock.monotonic() - began) * 1000)
            timed_out = load_ms * 10 >= load_timeout_ms * 9
            seen = seen_of(ended_by, load_ms=load_ms, timed_out=timed_out)
            self._learn(replace(seen, era=era))
            if isinstance(ended_by, asyncio.CancelledError | OriginTimeout):
                # Given up here; the origin has yet to notice, and works on it meanwhile.
                loop = asyncio.get_running_loop()
                loop.call_later(NOTICES_S, self._ended, group, rank)
            else:
                self._ended(group, rank)

    async def aclose(self) -> None:
        """Refuse who waits, and give back what is held."""
        self._refuse_all("lapsed", 0)
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.wait((self._keeping,))
        # What still runs keeps its permits until their term ends.
        if not self.running:
            self._number += 1
            with contextlib.suppress(StoreError):
                # With what it saw last: a process that only loads once has seen it too.
                await self._fleet.share(
                    Report(self._process, self._number, {}, self._seen)
                )

    # --- one load ---------------------------------------------------------------------

    async def _admitted(self, group: Group, rank: int, within_ms: int) -> None:
        if rank > 0:
            within_ms = min(within_ms, PATIENCE_MS)
        self._refuse_while_it_rests()
        if self._may_begin(group, rank) and not self._line.of(group, rank):
            self._begin(group, rank)
            self._keep()
            return
        self._refuse_what_cannot_be_in_time(group, rank, within_ms)
        load = Waiting(rank, group, asyncio.get_running_loop().create_future())
        self._line.join(load)
        self._holding.came(group, rank)
        if self._may_gain(group, rank):
            self._stir.set()
        self._keep()
        try:
            async with asyncio.timeout(within_ms / 1000):
                await load.turn
            self._still_ours()
        except TimeoutError:
            self._give_up(load)
            raise self._refusal("no_capacity", max(within_ms, PATIENCE_MS)) from None
        except BaseException:
            self._give_up(load)
            raise

    def _still_ours(self) -> None:
        """Refuse a permit whose share ended before its load could begin."""
        if self._local is None and self._clock.monotonic() >= self._good_until:
            raise self._refusal("lapsed", PATIENCE_MS)

    def _give_up(self, load: Waiting) -> None:
        """Leave the line; or give back the permit that came at this very moment."""
        turn = load.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._ended(load.group, load.rank)
        else:
            self._drop(load)

    def _drop(self, load: Waiting) -> None:
        if self._line.leave(load):
            self._holding.went(load.group, load.rank)

    def _begin(self, group: Group, rank: int) -> None:
        self._holding.began(group, rank)
        self._began += 1
        if self._local is not None:
            self._local.starts.took()
        else:
            self._starts -= 1

    def _ended(self, group: Group, rank: int) -> None:
        self._holding.ended(group, rank)
        if not self._drained_to_share and not self._holding.over():
            # Others wait for what was taken back from this process.
            self._drained_to_share = True
            self._stir.set()
        self._call()

    def _learn(self, seen: Seen) -> None:
        if seen.ok:
            weight = _WEIGHT if self._mean_ms else 1.0
            self._mean_ms += weight * (seen.load_ms - self._mean_ms)
        if self._local is not None:
            self._local.told(seen, self._now_ms())
        elif seen.era == self._seen.era:
            self._seen = together(self._seen, seen)
        if seen.retry_after_ms:
            self._stir.set()

    # --- who may begin ----------------------------------------------------------------

    def _may_begin(self, group: Group, rank: int) -> bool:
        if not self._may_start():
            return False
        if self._local is not None:
            self._holding.granted({pool: self._local.of(pool) for pool in group.pools})
        elif self._clock.monotonic() >= self._good_until:
            self._holding.lapse()
        return self._holding.admits(group, rank)

    def _may_start(self) -> bool:
        if not self._limits.rate:
            return True
        if self._local is not None:
            return self._local.starts.there(self._clock.monotonic())
        return self._starts > 0

    def _may_gain(self, group: Group, rank: int) -> bool:
        """Return whether asking at once may help, or the next report is early enough."""
        if self._starts_short and not self._may_start():
            return False
        return self._holding.may_gain(group, rank)

    def _call(self) -> None:
        """Let begin who may."""
        while load := self._first_that_may():
            self._line.call(load)
            self._holding.went(load.group, load.rank)
            self._begin(load.group, load.rank)
            load.turn.set_result(None)

    def _first_that_may(self) -> Waiting | None:
        for load in self._line.next():
            # One that was cancelled has not left yet.
            if not load.turn.done() and self._may_begin(load.group, load.rank):
                return load
        return None

    # --- refusing ---------------------------------------------------------------------

    def _refuse_while_it_rests(self) -> None:
        rests_ms = int((self._rests_until - self._clock.monotonic()) * 1000)
        if self._local is not None:
            rests_ms = self._local.rests_ms(self._now_ms())
        if rests_ms > 0:
            raise self._refusal("open", rests_ms)

    def _refuse_what_cannot_be_in_time(
        self, group: Group, rank: int, within_ms: int
    ) -> None:
        ahead = self._line.ahead_of(group, rank) + 1
        at_once = sum(self._holding.share("")[rank:])
        expected_ms = int(ahead / max(1, at_once) * self._mean_ms)
        if len(self._line) >= self._max_waiting:
            retry_in_ms = max(expected_ms, PATIENCE_MS)
            crowding = self._line.crowding_out(group, rank)
            if crowding is None:
                raise self._refusal("line_full", retry_in_ms)
            self._drop(crowding)
            crowding.turn.set_exception(self._refusal("line_full", retry_in_ms))
        if at_once and expected_ms > within_ms:
            raise self._refusal("too_late", expected_ms)

    def _refusal(self, why: str, retry_in_ms: int) -> NoPermit:
        self._signals.count("loads_refused", self._origin, why)
        return NoPermit(why, f"no permit: {why}", retry_in_ms=retry_in_ms)

    def _refuse_all(self, why: str, retry_in_ms: int) -> None:
        for load in self._line.all():
            if not load.turn.done():
                self._drop(load)
                load.turn.set_exception(self._refusal(why, retry_in_ms))

    # --- sharing ----------------------------------------------------------------------

    def _keep(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep_share())

    async def _keep_share(self) -> None:
        """Renew the share for as long as anything is wanted; the last report gives it back."""
        while True:
            self._stir.clear()
            await self._renew()
            self._call()
            self._look_at_phase()
            if not self._holding.demands and not self.running and not len(self._line):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._stir.wait()

    def _pause_s(self) -> float:
        crowded_s = min(RENEW_AT_MOST_S, RENEW_PER_PROCESS_S * self._processes)
        return max(crowded_s, RENEW_S if self.running else HUNGRY_S)

    async def _renew(self) -> None:
        sent = self._clock.monotonic()
        report = self._report(sent)
        try:
            grant = await self._fleet.share(report)
        except StoreError as exc:
            self._seen = together(report.seen, self._seen)
            self._unanswered(sent, exc)
        else:
            self._answered(sent, grant)

    def _report(self, now: float) -> Report:
        if self._local is None and now >= self._good_until:
            self._holding.lapse()
        self._number += 1
        seen, self._seen = self._seen, Seen(era=self._seen.era)
        starts = 0
        if self._limits.rate:
            # What began in this interval is likely to begin in the next.
            starts = max(0, len(self._line) + self._began - max(0, self._starts))
        self._starts_short = starts > 0
        self._began = 0
        local = None if self._local is None else self._local.of
        return Report(
            self._process, self._number, self._holding.report(local), seen, starts
        )

    def _answered(self, sent: float, grant: Grant) -> None:
        if self._local is not None:
            log.warning("permits_shared_again origin=%s", self._origin)
            self._signals.count("permits_shared_again", self._origin)
        self._local, self._failing_since = None, None
        self._good_until = sent + SAFE * TTL_MS / 1000
        if self._limits.rate:
            self._starts = max(0, self._starts) + max(0, grant.starts)
            self._starts_short = self._starts_short and grant.starts == 0
        self._drained_to_share = not self._holding.granted(grant.shares)
        if not self._drained_to_share and not self._holding.over():
            self._drained_to_share = True
            self._stir.set()
        if grant.era != self._seen.era:
            self._seen = Seen(era=grant.era)
        self.limit, self._processes = grant.limit, grant.processes
        self._rests_until = 0.0
        if grant.phase is Phase.OPEN:
            self._rests_until = self._clock.monotonic() + grant.retry_in_ms / 1000
        if grant.phase is not self.phase:
            self.phase = grant.phase
            log.warning("origin_%s origin=%s", grant.phase, self._origin)
            self._signals.count("origin_phases", self._origin, grant.phase)

    def _unanswered(self, sent: float, error: StoreError) -> None:
        self._signals.count("permits_unanswered", self._origin, type(error).__name__)
        if self._failing_since is None:
            self._failing_since = sent
        now = self._clock.monotonic()
        # Before, another process may still go by a share that it was granted.
        if self._local is None and now - self._failing_since >= TTL_MS / 1000:
            self._local = LocalShare(self._local_limit, self._limits)
            log.warning("permits_local origin=%s error=%s", self._origin, error)
            self._signals.count("permits_local", self._origin)

    def _look_at_phase(self) -> None:
        """Nobody waits for an origin that is down, or that others probe."""
        if self._local is not None:
            rests_ms = self._local.rests_ms(self._now_ms())
        elif self.phase is Phase.PROBING:
            rests_ms = PROBED_AGAIN_MS
        else:
            rests_ms = int((self._rests_until - self._clock.monotonic()) * 1000)
        if rests_ms > 0:
            self._refuse_all("open", rests_ms)

    def _era(self) -> int:
        return self._seen.era if self._local is None else self._local.era

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
