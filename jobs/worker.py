"""`warmer worker`: all that reads, scans and refreshes, and arq, in one process.

Holds: SIGTERM drains: nothing new begins, what runs finishes within `drain_timeout`, the
rest is handed back at once, and the exit status is 0. Whatever fails inside is reported and
begun again with back-off: a control server that is away, restarts or forgets is outlived.
The watchdog is fed only while every loop gets further.
Does not hold: that work is lost or kept here. The due set and the event log keep it; this
process may be killed at any instant.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import arq.worker
from arq.cron import cron

from jobs.consume import Consumer
from jobs.drain import Drain
from jobs.invalidate import invalidate
from jobs.parts import PARTS, JobParts
from jobs.prefix_scan import PrefixScan
from jobs.pulse import Pulse
from jobs.refresh_due import refresh_due
from jobs.refuse import refuse, set_aside
from jobs.slots import Slots
from jobs.streams import StreamReader
from jobs.sweep import sweep
from jobs.verdict import RetryPolicy
from warmer import dispatch
from warmer.clock import SystemClock
from warmer.errors import StoreError
from warmer.ingest.intake import Intake
from warmer.model.dataset_config import known_sources
from warmer.model.due import Lane
from warmer.ops import telemetry
from warmer.ops.notify import Notifier
from warmer.policy.backoff import retry_ms
from warmer.settings import milliseconds
from warmer.store.event_stream import READERS_EACH
from warmer.wiring import Configured, WorkerParts, configured, open_worker_parts

log = logging.getLogger("warmer.worker")

JOBS_AT_ONCE = 8
"""arq's jobs here take milliseconds, so few are enough."""
QUEUE_READ_LIMIT = 1_000
"""Running jobs stand at the head of the queue, for all workers: far more than there are."""
POLL_S = 0.05
"""p99 from wake to start 61 ms, at 20 commands a second when idle."""
JOB_TIMEOUT_S = 30
CLAIM_S, RENEW_CLAIMS_S = 8, 2.0
"""A claim of arq's outlives its worker by this; renewed while the worker lives."""
JOB_WAIT_S = 5
"""After SIGTERM: how long arq's running jobs may take to end."""
STUCK_S = 20.0
_PAUSE_BASE_MS, _PAUSE_CAP_MS = 200, 10_000
_ENDLESS_TRIES = 1_000_000


def main(source: Configured) -> int:
    """Run a worker until it is told to stop; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    return asyncio.run(run_worker(source))


async def run_worker(source: Configured) -> int:
    """Run a worker in this event loop until SIGTERM or SIGINT."""
    configuration = configured(source)
    # Before arq's worker is made: Sentry's integration wraps the jobs as it is made.
    report = telemetry.start(configuration.settings.sentry, clock=SystemClock())
    # It has a line for every load.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with _arq_reports_to(report):
        try:
            async with open_worker_parts(configuration) as parts:
                await Process(parts, report, Notifier()).run()
        finally:
            report.close()
    return 0


@contextlib.contextmanager
def _arq_reports_to(report: telemetry.Report) -> Iterator[None]:
    """Have arq's errors reported, not logged: its lines hold the arguments of jobs."""
    logger = logging.getLogger("arq.worker")

    def reported(record: logging.LogRecord) -> bool:
        report("job_failed", error=record.exc_info[1] if record.exc_info else None)
        return False

    logger.setLevel(logging.ERROR)
    logger.addFilter(reported)
    try:
        yield
    finally:
        logger.removeFilter(reported)


class Process:
    """One worker process, from its first round trip to its last."""

    def __init__(
        self, parts: WorkerParts, report: telemetry.Report, notifier: Notifier
    ) -> None:
        self._parts = parts
        self._report = report
        self._notifier = notifier
        self._stop = asyncio.Event()
        self._pulse = Pulse(parts.clock, within_s=STUCK_S)
        settings = parts.settings.worker
        slots = Slots(settings.concurrency)
        self._drains = {
            lane: Drain(
                lane,
                control=parts.control,
                refresher=parts.refresher,
                datasets=parts.datasets,
                slots=slots,
                policy=RetryPolicy(
                    max_tries=settings.max_tries,
                    base_ms=milliseconds(settings.retry_base),
                    cap_ms=milliseconds(settings.retry_cap),
                ),
                clock=parts.clock,
                random=parts.random,
                signals=parts.signals,
                report=report,
                pulse=self._pulse,
            )
            for lane in map(Lane, settings.lanes)
        }
        self._consumers = [
            Consumer(
                control=parts.control,
                invalidator=parts.invalidator,
                batch=settings.batch,
                clock=parts.clock,
                random=parts.random,
                signals=parts.signals,
                report=report,
                pulse=self._pulse,
                on_due=self._look_into_now,
            )
            for _ in range(READERS_EACH)
        ]
        self._streams = self._stream_readers()
        self._prefix_scan = PrefixScan(
            scans=parts.control.scans,
            store=parts.store,
            invalidator=parts.invalidator,
            datasets=parts.datasets,
            clock=parts.clock,
            random=parts.random,
            signals=parts.signals,
            report=report,
            pulse=self._pulse,
        )
        self._worker: arq.worker.Worker | None = None

    def _stream_readers(self) -> list[StreamReader]:
        parts = self._parts
        intake = Intake(
            log=parts.control.events,
            letters=parts.control,
            clock=parts.clock,
            signals=parts.signals,
            report=self._report,
        )
        return [
            StreamReader(
                parts.sources[name],
                group,
                intake=intake,
                letters=parts.control,
                batch=parts.settings.worker.batch,
                clock=parts.clock,
                random=parts.random,
                signals=parts.signals,
                report=self._report,
                pulse=self._pulse,
            )
            for name, group in parts.streams.items()
        ]

    async def run(self) -> None:
        """Serve until a signal, then drain."""
        with self._signals():
            if not await self._control_server_answers():
                return
            drains = [drain.serve() for drain in self._drains.values()]
            reading = [
                *(consumer.serve() for consumer in self._consumers),
                self._prefix_scan.serve(),
                *(reader.serve() for reader in self._streams),
            ]
            async with (
                self._until_stopped(*reading, *drains, self._run_arq()),
                _cancelled(self._renew_claims(), self._watch()),
            ):
                lanes = " ".join(self._drains)
                names = ",".join(consumer.name for consumer in self._consumers)
                log.info("worker_ready consumers=%s lanes=%s", names, lanes)
                self._notifier.ready(f"serving {lanes}")
                await self._stop.wait()
                await self._drain()

    def _look_into_now(self) -> None:
        if Lane.NOW in self._drains:
            self._drains[Lane.NOW].ask()

    # --- beginning and ending -----------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _control_server_answers(self) -> bool:
        """Return True once it does, False if told to stop before. Loading is waited for."""
        failures = 0
        while not self._stop.is_set():
            try:
                await self._parts.control.ping()
            except StoreError as exc:
                self._report("control_server_away", error=exc)
                self._notifier.status("waiting for the control server")
                await self._pause(failures)
                failures += 1
            else:
                return True
        return False

    async def _drain(self) -> None:
        drain_s = self._parts.settings.worker.drain_timeout.total_seconds()
        log.info("worker_draining")
        self._notifier.stopping(within_s=drain_s + 4 * JOB_WAIT_S)
        for consumer in self._consumers:
            consumer.stop()
        self._prefix_scan.stop()
        for reader in self._streams:
            reader.stop()
        if self._worker is not None:
            # Takes no more jobs; ends when those that run have, and by then by itself.
            self._worker.handle_sig_wait_for_completion(signal.SIGTERM)
        await asyncio.gather(*(drain.stop(drain_s) for drain in self._drains.values()))
        log.info("worker_drained")

    @contextlib.asynccontextmanager
    async def _until_stopped(
        self, *loops: Coroutine[Any, Any, None]
    ) -> AsyncIterator[None]:
        """Run loops that end by themselves once told to; one that dies ends the process."""
        tasks = [asyncio.create_task(loop) for loop in loops]
        for task in tasks:
            task.add_done_callback(lambda _: self._stop.set())
        try:
            yield
        finally:
            await asyncio.gather(*tasks)

    # --- arq --------------------------------------------------------------------------

    async def _run_arq(self) -> None:
        """Run arq's worker, and make another when one dies."""
        failures = 0
        while not self._stop.is_set():
            started = self._parts.clock.monotonic()
            try:
                await self._clear_queue()
                await self._run_one_worker()
            except Exception as exc:  # noqa: BLE001 - a daemon loop reports and goes on
                self._report("arq_worker_died", dispatch.word_of(exc), error=exc)
                lived_s = self._parts.clock.monotonic() - started
                failures = 0 if lived_s > STUCK_S else failures + 1
                await self._pause(failures)

    async def _clear_queue(self) -> None:
        """Take out of the queue what would kill the next worker as it killed the last."""
        parts = self._parts
        pool = dispatch.arq_pool(parts.arq_redis)
        # Its connections are patient, and a process that is told to stop is not.
        async with asyncio.timeout(JOB_WAIT_S):
            removed = await dispatch.remove_unrunnable(
                pool, parts.jobs.queue, limit=QUEUE_READ_LIMIT
            )
        if removed:
            await set_aside(
                removed,
                control=parts.control,
                at_ms=parts.clock.now_ms(),
                signals=parts.signals,
                report=self._report,
            )

    async def _run_one_worker(self) -> None:
        worker = self._worker = arq.worker.create_worker(self._worker_settings())
        # arq's own is the longest job's timeout and ten seconds; see _renew_claims.
        worker.in_progress_timeout_s = CLAIM_S
        try:
            await worker.async_run()
        except asyncio.CancelledError:
            # arq ends its own main task in this way, once told to stop.
            if not self._stop.is_set():
                raise
        finally:
            self._worker = None
            await _close(worker)

    def _worker_settings(self) -> dict[str, Any]:
        parts = self._parts
        shared = JobParts(
            control=parts.control,
            drains=self._drains,
            clear_queue=self._clear_queue,
            event_log_ms=milliseconds(parts.settings.worker.event_log_for),
            event_log_max=parts.settings.worker.event_log_max,
            sources=known_sources(parts.sources, parts.datasets),
            clock=parts.clock,
            signals=parts.signals,
            report=self._report,
        )
        name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        return {
            "functions": [invalidate, refresh_due, refuse],
            "cron_jobs": [
                cron(
                    sweep,
                    name=dispatch.SWEEP,
                    second=set(range(60)),
                    timeout=JOB_TIMEOUT_S,
                    max_tries=_ENDLESS_TRIES,
                )
            ],
            "redis_settings": None,
            "redis_pool": dispatch.arq_pool(parts.arq_redis),
            "queue_name": parts.jobs.queue,
            "ctx": {PARTS: shared},
            "handle_signals": False,
            "job_completion_wait": JOB_WAIT_S,
            "max_jobs": JOBS_AT_ONCE,
            "queue_read_limit": QUEUE_READ_LIMIT,
            "poll_delay": POLL_S,
            "job_timeout": JOB_TIMEOUT_S,
            "keep_result": 0,
            "log_results": False,
            "max_tries": _ENDLESS_TRIES,
            "health_check_key": f"{parts.jobs.queue}:health:{name}",
            "health_check_interval": 10,
            "job_serializer": dispatch.serialize,
            "job_deserializer": dispatch.runnable,
            "expires_extra_ms": dispatch.JOB_EXPIRES_MS,
        }

    async def _renew_claims(self) -> None:
        """Keep arq's claims alive while this process is: it never renews them itself."""
        while True:
            await self._parts.clock.sleep(RENEW_CLAIMS_S)
            worker = self._worker
            if worker is None or not worker.tasks:
                continue
            try:
                await dispatch.renew_claims(
                    worker.pool, list(worker.tasks), ttl_ms=CLAIM_S * 1000
                )
            except Exception as exc:  # noqa: BLE001 - a daemon loop reports and goes on
                self._report("claims_not_renewed", error=exc)

    # --- watching ---------------------------------------------------------------------

    async def _watch(self) -> None:
        """Feed systemd's watchdog while every loop gets further."""
        every_s = self._notifier.watchdog_s
        if every_s is None:
            return
        while True:
            stuck = self._pulse.stuck()
            if stuck:
                log.error("worker_stuck loops=%s", " ".join(stuck))
            else:
                self._notifier.alive()
            await self._parts.clock.sleep(every_s)

    async def _pause(self, failures: int) -> None:
        """Wait longer after each failure, and not at all once told to stop."""
        pause_ms = retry_ms(failures, self._parts.random, _PAUSE_BASE_MS, _PAUSE_CAP_MS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._stop.wait()


async def _close(worker: arq.worker.Worker) -> None:
    """Close arq's worker so that what it finished is also noted as finished."""
    worker.allow_pick_jobs = False
    if worker.tasks:
        # close() cancels what runs, also the noting down of what has just ended.
        await asyncio.wait(list(worker.tasks.values()), timeout=JOB_WAIT_S)
    with contextlib.suppress(asyncio.CancelledError, Exception):
        async with asyncio.timeout(JOB_WAIT_S):
            await worker.close()


@contextlib.asynccontextmanager
async def _cancelled(*loops: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run loops that are cancelled at the end of the block."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
