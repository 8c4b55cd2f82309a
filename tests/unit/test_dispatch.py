"""Jobs on the wire."""

import orjson
import pytest

from warmer.clock import SystemClock
from warmer.dispatch import REFUSE, Jobs, runnable, serialize
from warmer.model.due import Lane

EVENTS = {"events": [{"source": "shop-db", "entities": ["product:1"]}]}


def stored(**changes: object) -> bytes:
    job: dict[str, object] = {"t": None, "f": "invalidate", "a": [EVENTS], "k": {}}
    return serialize(job | {"et": 1} | changes)


@pytest.mark.parametrize(
    "payload",
    [
        stored(),
        stored(t=3, later="a field of a later arq"),
        stored(a=[], k={"payload": EVENTS}),
        Jobs(SystemClock()).invalidate(EVENTS["events"]).payload,
    ],
)
def test_a_job_of_ours_is_run_with_its_argument(payload: bytes) -> None:
    """R-CARD-5: by position or by name, and its count of tries is not the sender's."""
    job = runnable(payload)

    assert (job["t"], job["f"], job["a"], job["k"]) == (
        None,
        "invalidate",
        [EVENTS],
        {},
    )


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x80\x04", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"7", "dictionary"),
        (stored(f="eval"), "f: "),
        (stored(f=REFUSE), "f: "),
        (stored(a=None), "a: "),
        (stored(a=[1, 2]), "a: "),
        (stored(k={"event": 1}, a=[]), "takes payload"),
        (stored(k={"payload": 1}), "takes payload"),
        (stored(f="sweep"), "takes no argument"),
        (stored(et=2**60), "et: "),
        (stored(et="soon"), "et: "),
    ],
)
def test_what_is_no_job_of_ours_is_refused_with_its_reason(
    payload: bytes, why: str
) -> None:
    """ARQ-8: and not dropped, and arq does not meet it."""
    job = runnable(payload)

    assert (job["f"], job["a"][0]) == (REFUSE, payload)
    assert why in job["a"][1]


def test_events_in_the_queue_outlast_a_weekend_without_workers() -> None:
    """R-INV-3: a drain that is lost is queued anew, an event is not."""
    jobs = Jobs(SystemClock())

    assert jobs.invalidate(EVENTS["events"]).expires_ms == 7 * 86_400_000
    assert jobs.refresh_due(Lane.NOW).expires_ms == 3_600_000
    assert orjson.loads(jobs.refresh_due(Lane.NOW).payload)["a"] == ["now"]
