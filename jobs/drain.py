"""Drain a lane: take what is due, refresh many at once, report what became of each.

Holds: nothing is taken that has no slot to begin at once. A key is reported done only
after its refresh reached what was asked for; a key this process cannot report (the
control server is away, the process dies) comes back by itself, and finds itself fresh.
A key whose load ends its worker again and again is given up without another load.
A lane that is drained here is drained until nothing is ready: the job that began it only
asks, and does not wait.
Does not hold: that a key is refreshed once. Leases see to it that it is loaded once.
"""

import asyncio
import contextlib
import logging
from random import Random
from typing import assert_never

from jobs.pulse import Pulse
from jobs.slots import Slots
from jobs.verdict import (
    Again,
    Finished,
    GivenUp,
    RetryPolicy,
    Verdict,
    foreign,
    judge,
    suspected,
    undecided,
    unexpected,
)
from warmer.clock import Clock
from warmer.errors import BadKey, StoreError
from warmer.ingest.dead_letters import key_letter
from warmer.model.dataset import Datasets
from warmer.model.due import Lane, Taken, TakenKey, Unfinished, key_of
from warmer.model.permit import Purpose
from warmer.ops.telemetry import Report
from warmer.policy.backoff import retry_ms
from warmer.refresh import Refresher, RefreshRequest
from warmer.signals import Signals
from warmer.store.control import ControlServer
from warmer.store.due_set import BATCH

log = logging.getLogger("warmer.drain")

SHARE_EVERY_S = 0.1
"""How often a worker that cannot keep up calls for others."""
LINGER_MS = 1_000
"""A key due within this is waited for here; a later one is the sweep's to wake."""
VISIBLE_MS, KEEP_EVERY_S = 6_000, 2.0
"""When a taken key counts as abandoned, and how often this process says that it is not."""
SLICE_S = 1.0
"""Longest wait between two signs of life."""
CANCELLED_WITHIN_S = 5.0
"""Time for cancelled refreshes to give their leases back."""
PURPOSE = {Lane.NOW: Purpose.NOW, Lane.WARM: Purpose.WARM}
_PAUSE_BASE_MS, _PAUSE_CAP_MS = 100, 5_000


class Drain:
    """Drains one lane in this process, as long as it is asked to."""

    def __init__(
        self,
        lane: Lane,
        *,
        control: ControlServer,
        refresher: Refresher,
        datasets: Datasets,
        slots: Slots,
        policy: RetryPolicy,
        clock: Clock,
        random: Random,
        signals: Signals,
        report: Report,
        pulse: Pulse,
    ) -> None:
        self.lane = lane
        self._control = control
        self._refresher = refresher
        self._datasets = datasets
        self._slots = slots
        self._policy = policy
        self._clock = clock
        self._random = random
        self._signals = signals
        self._report = report
        self._pulse = pulse
        self._asked = asyncio.Event()
        self._stopping = False
        self._served = asyncio.Event()
        self._served.set()
        self._shared_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._kept_at = clock.monotonic()
        self._refreshes: dict[asyncio.Task[None], TakenKey] = {}
        self._ended: list[tuple[TakenKey, Verdict]] = []
        self._settling: asyncio.Task[None] | None = None
        self._untold_since: float | None = None

    @property
    def full(self) -> bool:
        """True if nothing more can begin here now."""
        return not self._slots.free(self.lane)

    def ask(self) -> None:
        """Have the lane looked into, now or once more."""
        self._asked.set()

    async def serve(self) -> None:
        """Drain whenever asked, until `stop`; an error is reported, and the work goes on."""
        name, failures = f"drain_{self.lane}", 0
        self._served.clear()
        while not self._stopping:
            self._pulse.beat(name)
            try:
                await self._round()
                await self._keep()
                failures = 0
            except Exception as exc:  # noqa: BLE001 - a daemon loop reports and goes on
                self._report("drain_failed", self.lane.value, error=exc)
                pause_ms = retry_ms(
                    failures, self._random, _PAUSE_BASE_MS, _PAUSE_CAP_MS
                )
                failures += 1
                await self._clock.sleep(pause_ms / 1000)
        self._pulse.end(name)
        self._served.set()

    async def stop(self, within_s: float) -> None:
        """Take no more; let what runs finish within `within_s`, and hand back the rest."""
        self._stopping = True
        self.ask()
        if self._timer is not None:
            self._timer.cancel()
        # A look that is under way may still take keys.
        await self._served.wait()
        await self._finish(within_s)
        handed_back = list(self._refreshes)
        for refresh in handed_back:
            refresh.cancel()
        if handed_back:
            self._signals.count("handed_back", self.lane.value, by=len(handed_back))
            await asyncio.wait(handed_back, timeout=CANCELLED_WITHIN_S)
        if self._settling is not None:
            await asyncio.wait((self._settling,), timeout=CANCELLED_WITHIN_S)

    async def _finish(self, within_s: float) -> None:
        """Let refreshes end, and keep their keys meanwhile."""
        until = self._clock.monotonic() + within_s
        while self._refreshes and (left_s := until - self._clock.monotonic()) > 0:
            await asyncio.wait(self._refreshes, timeout=min(left_s, SLICE_S))
            with contextlib.suppress(StoreError):
                await self._keep()

    async def _keep(self) -> None:
        """Say that what is refreshed here is not abandoned, when it is time to."""
        now = self._clock.monotonic()
        if now - self._kept_at < KEEP_EVERY_S:
            return
        self._kept_at = now
        await self._control.due.keep(
            self.lane, list(self._refreshes.values()), visible_ms=VISIBLE_MS
        )

    # --- taking -----------------------------------------------------------------------

    async def _round(self) -> None:
        if not await self._was_asked():
            return
        granted = self._slots.reserve(self.lane, BATCH)
        if not granted:
            await self._slots.freed(SLICE_S)
            return
        # Before the look: what is asked for during it is looked for again.
        self._asked.clear()
        taken = Taken((), 0)
        try:
            taken = await self._control.due.take(
                self.lane, granted, visible_ms=VISIBLE_MS
            )
        except BaseException:
            self._asked.set()
            raise
        finally:
            self._slots.give_back(granted - len(taken.keys))
        if self._stopping:
            for key in taken.keys:
                self._settle(key, Again(0))
                self._slots.give_back()
            return
        for key in taken.keys:
            self._begin(key)
        await self._look_again(taken)

    async def _was_asked(self) -> bool:
        try:
            async with asyncio.timeout(SLICE_S):
                await self._asked.wait()
        except TimeoutError:
            return False
        return not self._stopping

    async def _look_again(self, taken: Taken) -> None:
        if taken.next_in_ms is None:
            return
        if taken.next_in_ms > 0:
            self._look_in(taken.next_in_ms)
            return
        self._asked.set()
        await self._share()

    def _look_in(self, delay_ms: int) -> None:
        """Ask again in `delay_ms`; of several such instants the first counts."""
        if delay_ms > LINGER_MS or self._stopping:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_ms / 1000
        if self._timer is not None and loop.time() < self._timer.when() <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self.ask)

    async def _share(self) -> None:
        """Call for other workers: more is ready than there are slots here."""
        now = self._clock.monotonic()
        if now - self._shared_at >= SHARE_EVERY_S:
            self._shared_at = now
            await self._control.due.sweep(self.lane)

    # --- refreshing -------------------------------------------------------------------

    def _begin(self, key: TakenKey) -> None:
        refresh = asyncio.create_task(self._refresh(key))
        self._refreshes[refresh] = key
        refresh.add_done_callback(self._refreshes.pop)

    async def _refresh(self, key: TakenKey) -> None:
        try:
            verdict = await self._verdict(key)
        except asyncio.CancelledError:
            self._settle(key, Again(0))
            raise
        else:
            log.debug(
                "refresh_ended key=%s event=%s verdict=%r",
                key.member,
                key.event_id,
                verdict,
            )
            self._settle(key, verdict)
        finally:
            self._slots.give_back()

    async def _verdict(self, taken: TakenKey) -> Verdict:
        if given_up := suspected(taken.attempts, self._policy):
            return given_up
        try:
            key = key_of(taken.member, self._datasets)
        except BadKey:
            return foreign(taken.attempts, self._policy, self._random)
        if not self._datasets[key.dataset].loads(key.schema_version):
            return foreign(taken.attempts, self._policy, self._random)
        try:
            outcome = await self._refresher.run(
                RefreshRequest(
                    key, taken.wanted, taken.wanted_fence, PURPOSE[self.lane]
                )
            )
        except StoreError:
            return undecided(taken.attempts, self._policy, self._random)
        except Exception as exc:  # noqa: BLE001 - a job's edge: dead letter, in the end
            self._report("refresh_failed", key.dataset, error=exc)
            return unexpected(taken.attempts, self._policy, self._random)
        return judge(outcome, taken.attempts, self._policy, self._random)

    # --- settling ---------------------------------------------------------------------

    def _settle(self, key: TakenKey, verdict: Verdict) -> None:
        self._ended.append((key, verdict))
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_all())

    async def _settle_all(self) -> None:
        """Report what has ended; what ends meanwhile goes together in the next report."""
        while self._ended:
            ended, self._ended = self._ended, []
            try:
                await self._tell(ended)
            except StoreError:
                # Told again below; at worst they come back, and are found fresh.
                await self._untold(ended)
            except Exception as exc:  # noqa: BLE001 - the next ones are told all the same
                self._report("drain_failed", self.lane.value, error=exc)
        self._settling = None

    async def _untold(self, ended: list[tuple[TakenKey, Verdict]]) -> None:
        """Tell it again later, unless another may have taken the keys by then.

        Nothing is taken meanwhile, from a server that is away: it is these and no more.
        """
        self._signals.count("due_untold", self.lane.value, by=len(ended))
        now = self._clock.monotonic()
        if self._untold_since is None:
            self._untold_since = now
        if (now - self._untold_since) * 1000 < VISIBLE_MS and not self._stopping:
            self._ended = ended + self._ended
            await self._clock.sleep(_PAUSE_BASE_MS / 1000)
        else:
            self._untold_since = None

    async def _tell(self, ended: list[tuple[TakenKey, Verdict]]) -> None:
        done: list[TakenKey] = []
        again: list[Unfinished] = []
        given_up: list[tuple[TakenKey, str]] = []
        for key, verdict in ended:
            match verdict:
                case Finished():
                    done.append(key)
                case Again(delay_ms, failed):
                    again.append(Unfinished(key, delay_ms, failed))
                case GivenUp(reason):
                    given_up.append((key, reason))
                case _:
                    assert_never(verdict)
        if given_up:
            await self._park(given_up)
            done += [key for key, _ in given_up]
        await self._control.due.done(self.lane, done)
        self._untold_since = None
        await self._control.due.retry(self.lane, again)
        if again:
            self._look_in(min(key.delay_ms for key in again))

    async def _park(self, given_up: list[tuple[TakenKey, str]]) -> None:
        """Set keys aside. Before they are forgotten: twice is better than never."""
        await self._control.park(
            [
                key_letter(key, reason=reason, at_ms=self._clock.now_ms())
                for key, reason in given_up
            ]
        )
        for key, reason in given_up:
            self._signals.count("refreshes_given_up", reason)
            self._report("refresh_given_up", self._dataset(key), reason)

    def _dataset(self, taken: TakenKey) -> str:
        try:
            return key_of(taken.member, self._datasets).dataset
        except BadKey:
            return "unknown"
