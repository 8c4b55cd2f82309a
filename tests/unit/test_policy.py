"""Decisions hold for every value they may be given, not for a lucky one."""

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.datasets import product
from warmer.model.dataset import Jitter, RefreshOn
from warmer.model.entry import Entry
from warmer.model.outcome import InvalidateResult
from warmer.policy.backoff import retry_ms
from warmer.policy.early_refresh import due_early
from warmer.policy.freshness import Freshness, freshness
from warmer.policy.hot import refresh_now
from warmer.policy.jitter import windows
from warmer.policy.outage import PROBE_MS, Outage

instants = st.integers(0, 10_000)
durations = st.integers(0, 3_600_000)
seeds = st.integers(0, 2**32).map(Random)


def entry(**instants_: Any) -> Entry:
    settings: dict[str, Any] = {
        "flags": 0,
        "schema_version": 3,
        "created_at": 0,
        "fresh_until": 0,
        "stale_until": 0,
        "error_until": 0,
        "fence": 1,
        "load_ms": 0,
        "vector": b"",
        "body": b"",
    }
    return Entry(**(settings | instants_))


@given(fresh=instants, stale=instants, error=instants, now=instants)
def test_nothing_is_served_past_its_window(
    fresh: int, stale: int, error: int, now: int
) -> None:
    """R-POL-2 R-POL-3 R-FT-8: each state ends with the window it is named for."""
    found = freshness(
        entry(fresh_until=fresh, stale_until=stale, error_until=error), now
    )

    ends = {
        Freshness.FRESH: fresh,
        Freshness.STALE: stale,
        Freshness.ERROR_ONLY: error,
        Freshness.EXPIRED: math.inf,
    }
    assert now < ends[found]
    assert found is Freshness.FRESH or now >= fresh
    assert found is not Freshness.EXPIRED or now >= max(fresh, stale, error)


@given(
    fresh_ms=st.integers(1, 3_600_000),
    negative_ms=durations,
    jitter=st.builds(Jitter, absolute_ms=durations, ratio=st.floats(0, 0.9)),
    negative=st.booleans(),
    random=seeds,
)
def test_jittered_windows_stay_within_what_the_guard_outlives(
    *, fresh_ms: int, negative_ms: int, jitter: Jitter, negative: bool, random: Random
) -> None:
    """R-JIT-1 R-REC-1: `base x random(1-r, 1+r) + random(0, j)`, never 0, never unguarded."""
    dataset = product(fresh_ms=fresh_ms, negative_ms=negative_ms, jitter=jitter)

    found = windows(dataset, negative=negative, random=random)

    base = negative_ms if negative else fresh_ms
    assert base * (1 - jitter.ratio) - 1 <= found.fresh_ms
    assert found.fresh_ms <= base * (1 + jitter.ratio) + jitter.absolute_ms
    assert (found.fresh_ms > 0) == (base > 0)
    assert sum(found[:2]) <= dataset.guard_ms
    assert found.fresh_ms + found.error_ms <= dataset.guard_ms


def test_a_not_found_has_a_short_window_of_its_own_and_is_never_stale() -> None:
    """R-POL-7 R-JIT-1: jitter made for an hour does not keep a not-found of 5 s."""
    hour = product(
        fresh_ms=3_600_000, negative_ms=5_000, jitter=Jitter(absolute_ms=600_000)
    )

    found = [windows(hour, negative=True, random=Random(seed)) for seed in range(200)]

    assert all(5_000 <= window.fresh_ms <= 6_000 for window in found)
    assert all(window.stale_ms == window.error_ms == 0 for window in found)


def test_keys_warmed_together_expire_apart() -> None:
    """TTL-6 R-JIT-1: 1,000 keys of one deploy leave in no common tenth of the jitter."""
    hour = product(fresh_ms=3_600_000, jitter=Jitter(ratio=0.1))
    random = Random(7)

    ends = sorted(
        windows(hour, negative=False, random=random).fresh_ms for _ in range(1_000)
    )

    tenth = 3_600_000 * 0.2 / 10
    assert (
        max(sum(1 for end in ends if start <= end < start + tenth) for start in ends)
        < 180
    )


@given(failures=st.integers(-3, 10_000), random=seeds)
def test_no_retry_is_instant_and_none_waits_beyond_the_cap(
    failures: int, random: Random
) -> None:
    """R-ADM-4 RETRY-5: exponential, jittered, bounded on both sides."""
    wait_ms = retry_ms(failures, random, base_ms=100, cap_ms=5_000)

    assert 50 <= wait_ms <= min(5_000, 100 * 2 ** max(0, min(failures, 30)))


def test_callers_that_failed_together_do_not_retry_together() -> None:
    """R-ADM-4: 1,000 waits after the fifth failure cover their whole range."""
    random = Random(3)

    waits = [retry_ms(5, random, base_ms=100, cap_ms=60_000) for _ in range(1_000)]

    assert min(waits) < 500
    assert max(waits) > 2_700
    assert len(set(waits)) > 500


@given(now=st.integers(0, 9_999), load_ms=durations, random=seeds)
def test_early_refresh_is_off_unless_a_dataset_asks_for_it(
    now: int, load_ms: int, random: Random
) -> None:
    """R-JIT-2: beta 0 never refreshes a fresh entry."""
    fresh = entry(fresh_until=10_000, load_ms=load_ms)

    assert not due_early(fresh, now, beta=0, random=random)


def test_early_refresh_comes_sooner_for_slower_loads_and_always_at_the_end() -> None:
    """R-JIT-2: `now - load_ms x beta x ln(random) >= fresh_until`."""

    def share(*, load_ms: int, left_ms: int, beta: float = 1.0) -> float:
        random = Random(1)
        fresh = entry(fresh_until=100_000, load_ms=load_ms)
        drawn = [
            due_early(fresh, 100_000 - left_ms, beta=beta, random=random)
            for _ in range(2_000)
        ]
        return sum(drawn) / len(drawn)

    assert share(load_ms=100, left_ms=0) == 1
    assert abs(share(load_ms=100, left_ms=100) - math.exp(-1)) < 0.05
    assert share(load_ms=100, left_ms=2_000) == 0
    assert share(load_ms=1_000, left_ms=2_000) > 0.05
    assert share(load_ms=100, left_ms=200, beta=2) > share(load_ms=100, left_ms=200)


@pytest.mark.parametrize(
    ("refresh_on", "refreshed"),
    [
        (RefreshOn.CACHED, {InvalidateResult.PURGED}),
        (RefreshOn.ALL, {InvalidateResult.PURGED, InvalidateResult.NOTED}),
        (RefreshOn.NONE, set()),
    ],
)
def test_only_what_changed_is_refreshed_before_anyone_asks(
    refresh_on: RefreshOn, refreshed: set[InvalidateResult]
) -> None:
    """R-INV-2 R-CARD-3: an older event refreshes nothing, whatever the dataset says."""
    dataset = product(refresh_on=refresh_on)

    found = {result for result in InvalidateResult if refresh_now(dataset, result)}

    assert found == refreshed


def test_a_server_that_failed_is_asked_once_a_pause() -> None:
    """R-POL-2: of 1,000 requests a second during an outage, a handful wait for it."""
    outage = Outage(Random(1))
    outage.failed(now=0.1, asked_at=0.0)
    asked = 0

    for tick in range(10_000):
        now = 0.1 + tick / 1000
        if outage.may_ask(now):
            asked += 1
            outage.failed(now=now + 0.1, asked_at=now)

    assert 4 <= asked <= 30


def test_requests_that_failed_together_count_as_one_failure() -> None:
    """R-ADM-4: 500 requests caught by one hang do not make a pause of seconds."""
    outage = Outage(Random(1))

    for late in range(500):
        outage.failed(now=1.0 + late / 1000, asked_at=0.9)

    assert outage.failures == 1
    assert outage.may_ask(1.3)


def test_a_probe_that_was_cancelled_does_not_end_the_probing() -> None:
    """R-POL-2: whoever asks next, after a probe's time, is the next probe."""
    outage = Outage(Random(1))
    outage.failed(now=1.0, asked_at=0.9)
    assert outage.may_ask(2.0)
    assert not outage.may_ask(2.1)

    assert outage.may_ask(2.0 + PROBE_MS / 1000)


def test_an_answer_ends_the_outage() -> None:
    """R-POL-2: recovery needs no restart."""
    outage = Outage(Random(1))
    outage.failed(now=1.0, asked_at=0.9)

    outage.answered()

    assert outage.may_ask(1.0)
    assert not outage.failures
