"""What leaves the process when something fails, and what never does."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import arq.worker
import pytest
import sentry_sdk
from pydantic import BaseModel, SecretStr
from redis.asyncio import Redis
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport
from typing_extensions import override

from tests.servers import ServerProcess
from warmer import dispatch
from warmer.clock import SystemClock
from warmer.errors import StoreUnavailable
from warmer.ops import telemetry
from warmer.ops.sentry import SentrySender
from warmer.ops.telemetry import EVENTS_PER_MINUTE, Flood, Reporter
from warmer.settings import Sentry

MAIL = "x@example.org"
DSN = SecretStr("https://public@sentry.invalid/1")


@dataclass
class HandClock:
    """A clock that is moved by hand."""

    at: float = 1_000.0

    def now_ms(self) -> int:
        return int(self.at * 1000)

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


class Caught(Transport):
    """Keeps what Sentry would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    @override
    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            event = item.get_event()
            if event is not None:
                self.events.append(dict(event))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def caught() -> Iterator[Caught]:
    yield Caught()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def report(caught: Caught, clock: HandClock) -> Reporter:
    sender = SentrySender(Sentry(dsn=DSN), clock=clock, transport=caught)
    return Reporter(clock, sender=sender)


class Row(BaseModel):
    mail: int


def fail_with_data() -> None:
    """Raise what quotes somebody's data, as pydantic's errors do."""
    Row.model_validate({"mail": MAIL})


def error_of(fails: Any) -> Exception:
    try:
        fails()
    except Exception as exc:  # noqa: BLE001 - whichever it is
        return exc
    raise AssertionError("it did not fail")


def test_an_event_holds_no_value_no_secret_and_no_argument(
    report: Reporter, caught: Caught
) -> None:
    """OBS-3."""
    report("refresh_failed", "product", error=error_of(fail_with_data))

    (event,) = caught.events
    assert MAIL not in repr(event)
    assert "argv" not in repr(event)
    assert event["exception"]["values"][-1]["type"] == "ValidationError"
    assert event["exception"]["values"][-1]["value"] == "[withheld]"
    assert not any(
        "vars" in frame
        for thrown in event["exception"]["values"]
        for frame in thrown["stacktrace"]["frames"]
    )


def test_our_own_errors_are_told_without_credentials(
    report: Reporter, caught: Caught, caplog: pytest.LogCaptureFixture
) -> None:
    """OBS-3: AUTH failures are where secrets get into reports."""
    error = StoreUnavailable("redis://warmer:hunter2@host:6379 refused")

    report("control_server_away", error=error)

    (event,) = caught.events
    (thrown,) = event["exception"]["values"]
    assert thrown["value"] == "redis://***@host:6379 refused"
    assert "hunter2" not in repr(event) + caplog.text
    assert "control_server_away" in caplog.text


def test_a_fingerprint_is_a_name_and_labels_and_never_a_key(
    report: Reporter, caught: Caught
) -> None:
    """OBS-6: one issue in Sentry, whatever key failed."""
    for key in ("product:v3:1", "product:v3:2"):
        report("refresh_failed", "product", error=KeyError(key))

    fingerprints = {tuple(event["fingerprint"]) for event in caught.events}
    assert fingerprints == {("warmer", "refresh_failed", "product", "KeyError")}
    assert "v3" not in repr([event.get("exception") for event in caught.events])


def test_a_thousand_failures_of_one_kind_are_a_few_events_and_a_count(
    report: Reporter, caught: Caught, clock: HandClock
) -> None:
    """OBS-6."""
    for number in range(1_000):
        report("refresh_failed", "product", error=KeyError(number))
    report("refresh_failed", "price", error=KeyError(1))
    first_minute = len(caught.events)
    clock.at += 61
    report("refresh_failed", "product", error=KeyError(1))

    assert first_minute == EVENTS_PER_MINUTE + 1


def test_what_was_kept_back_is_told_with_the_next(clock: HandClock) -> None:
    """OBS-6: suppressed is not forgotten."""
    flood = Flood(clock)
    admitted = [flood.admit(("a",)) for _ in range(EVENTS_PER_MINUTE + 7)]
    clock.at += 61

    assert [kept for kept in admitted if kept is not None] == [0] * EVENTS_PER_MINUTE
    assert flood.admit(("a",)) == 7
    assert flood.admit(("a",)) == 0


def test_the_memory_of_a_flood_is_bounded(clock: HandClock) -> None:
    """OBS-1."""
    flood = Flood(clock)
    for number in range(5_000):
        flood.admit((str(number),))

    assert len(flood._windows) <= telemetry.MAX_FINGERPRINTS


def test_a_report_without_an_error_is_an_event_too(
    report: Reporter, caught: Caught
) -> None:
    """ARQ-4: a dead letter alerts."""
    report("refresh_given_up", "product", "timeout")

    (event,) = caught.events
    assert event["message"] == "refresh_given_up product timeout"
    assert event["level"] == "error"


@pytest.mark.parametrize("fails", ["raises", "times_out"])
async def test_a_job_that_fails_or_times_out_reaches_sentry_scrubbed(
    report: Reporter, caught: Caught, server: ServerProcess, fails: str
) -> None:
    """OBS-3: by arq's own integration, which finds jobs only by create_worker."""

    async def failing(_ctx: dict[Any, Any], *args: Any, **_: Any) -> None:
        if fails == "times_out":
            raise TimeoutError(args)
        fail_with_data()

    pool = dispatch.arq_pool(Redis.from_url(server.url))
    worker = arq.worker.create_worker(
        {
            "functions": [arq.worker.func(cast("Any", failing), name="failing")],
            "redis_pool": pool,
            "queue_name": dispatch.QUEUE,
            "handle_signals": False,
            "burst": True,
            "keep_result": 0,
            "poll_delay": 0.01,
            "job_serializer": dispatch.serialize,
            "job_deserializer": dispatch.deserialize,
        }
    )
    await pool.enqueue_job("failing", MAIL)
    await worker.async_run()
    await worker.close()

    (event,) = caught.events
    kind = "TimeoutError" if fails == "times_out" else "ValidationError"
    assert MAIL not in repr(event)
    assert event["fingerprint"] == ["warmer", "job_failed", "failing", kind]
    assert report is not None


def test_without_a_dsn_sentry_is_not_even_imported() -> None:
    """OBS-3: and errors are still logged."""
    program = (
        "import sys, logging; logging.basicConfig()\n"
        "from warmer.ops import telemetry\n"
        "from warmer.settings import Sentry\n"
        "from warmer.clock import SystemClock\n"
        "report = telemetry.start(Sentry(), clock=SystemClock())\n"
        "report('drain_failed', 'now', error=ValueError('x@example.org'))\n"
        "report.close()\n"
        "assert 'sentry_sdk' not in sys.modules\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "drain_failed now error=ValueError([withheld])" in done.stderr


def test_starting_with_a_dsn_starts_sentry() -> None:
    """R-CARD-6."""
    reporter = telemetry.start(Sentry(dsn=DSN), clock=SystemClock())
    options = sentry_sdk.get_client().options
    sentry_sdk.get_global_scope().set_client(None)

    assert reporter is not None
    assert options["release"].startswith("warmer@")
    assert not options["send_default_pii"]
    assert options["include_local_variables"] is False
