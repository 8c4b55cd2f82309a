"""What becomes of a due key after its refresh."""

from random import Random

import pytest

from jobs.verdict import (
    ABANDONED_AT_LEAST,
    Again,
    Finished,
    GivenUp,
    RetryPolicy,
    judge,
    suspected,
    unexpected,
)
from warmer.errors import NoPermit, OriginUnavailable, StoreTimeout
from warmer.model.entry import NOT_FOUND, Entry
from warmer.model.outcome import (
    Cooling,
    Fenced,
    Fresh,
    Held,
    KeptStale,
    LeaseLost,
    Loaded,
    LoadFailed,
    Outdated,
    Published,
    RefreshOutcome,
    Unstored,
)

POLICY = RetryPolicy(max_tries=3, base_ms=100, cap_ms=1_000)
LOADED = Loaded(NOT_FOUND, {}, 5)
ENTRY = Entry(0, 3, 0, 0, 0, 0, 1, 400, b"", b"")


def judged(outcome: RefreshOutcome, attempts: int = 0, seed: int = 1) -> object:
    return judge(outcome, attempts, POLICY, Random(seed))


@pytest.mark.parametrize("outcome", [Published(LOADED), Fresh(ENTRY)])
def test_what_reached_the_wanted_versions_is_finished(outcome: RefreshOutcome) -> None:
    """R-LSE-5: found fresh is as good as loaded."""
    assert judged(outcome) == Finished()


@pytest.mark.parametrize("seed", range(20))
def test_a_key_that_got_no_permit_comes_back_and_has_not_failed(seed: int) -> None:
    """R-ADM-3: however often; and those that were refused together come back apart."""
    refused = LoadFailed(NoPermit("no_capacity", "no permit", retry_in_ms=400), 400)
    verdict = judged(refused, attempts=99, seed=seed)

    assert isinstance(verdict, Again)
    assert 400 < verdict.delay_ms <= 800
    assert not verdict.failed


@pytest.mark.parametrize("seed", range(20))
def test_an_overtaken_load_is_tried_again_at_once_and_blames_nobody(seed: int) -> None:
    """R-INV-3: kept stale is served, and stays due."""
    verdict = judged(KeptStale(LOADED), attempts=99, seed=seed)

    assert isinstance(verdict, Again)
    assert 25 <= verdict.delay_ms <= 50
    assert not verdict.failed


@pytest.mark.parametrize(
    ("outcome", "delay_ms"),
    [
        (Held(5_000, ENTRY), 400),
        (Held(100, ENTRY), 100),
        (Held(5_000, None), 250),
        (Held(1, None), 50),
    ],
)
def test_a_key_another_refreshes_is_looked_at_when_that_may_have_ended(
    outcome: RefreshOutcome, delay_ms: int
) -> None:
    """R-LSE-1: not at the end of the lease, which is mostly much later."""
    assert judged(outcome) == Again(delay_ms)


@pytest.mark.parametrize(
    ("attempts", "most_ms"), [(1, 2_000), (4, 8_000), (99, 10_000)]
)
def test_keys_whose_worker_died_do_not_meet_again_as_its_leases_end(
    attempts: int, most_ms: int
) -> None:
    """R-ADM-4: the one that ended it would take the others along, time after time."""
    delays = {
        verdict.delay_ms
        for seed in range(20)
        if isinstance(verdict := judged(Held(3_000, ENTRY), attempts, seed), Again)
    }

    assert len(delays) > 15
    assert 3_000 < min(delays) < max(delays) <= 3_000 + most_ms


@pytest.mark.parametrize("seed", range(20))
def test_keys_of_a_cooling_origin_do_not_come_back_together(seed: int) -> None:
    """R-ADM-4."""
    verdict = judged(Cooling(1_000, None), seed=seed)

    assert isinstance(verdict, Again)
    assert 1_001 <= verdict.delay_ms <= 1_100
    assert not verdict.failed


@pytest.mark.parametrize("outcome", [LoadFailed(OriginUnavailable("x"), 700)])
def test_a_failed_load_waits_as_long_as_the_origin_needs_and_counts(
    outcome: RefreshOutcome,
) -> None:
    """R-ADM-4: bounded in number."""
    verdict = judged(outcome, attempts=1)

    assert isinstance(verdict, Again)
    assert verdict.delay_ms >= 700
    assert verdict.failed
    assert judged(outcome, attempts=2) == GivenUp("unavailable")


def test_a_source_that_lags_for_good_is_given_up() -> None:
    """LOST-INVAL-4: with its reason; a reader may still refresh the key."""
    assert judged(Outdated(LOADED), attempts=2) == GivenUp("outdated")
    assert unexpected(2, POLICY, Random(1)) == GivenUp("error")


@pytest.mark.parametrize(
    "outcome", [Fenced(LOADED), LeaseLost(), Unstored(LOADED, StoreTimeout("x"))]
)
def test_what_is_no_fault_of_the_origin_is_never_given_up(
    outcome: RefreshOutcome,
) -> None:
    """ARQ-4: lost leases and servers that were away count nothing."""
    verdict = judged(outcome, attempts=99)

    assert isinstance(verdict, Again)
    assert not verdict.failed
    assert 0 < verdict.delay_ms <= POLICY.cap_ms


def test_a_few_lost_workers_give_no_key_up_however_few_tries_it_has() -> None:
    """R-ADM-4: deploys that kill are not the key's fault."""
    patient = RetryPolicy(max_tries=10, base_ms=100, cap_ms=1_000)

    assert suspected(ABANDONED_AT_LEAST - 1, POLICY) is None
    assert suspected(ABANDONED_AT_LEAST, POLICY) == GivenUp("abandoned")
    assert suspected(9, patient) is None
    assert suspected(10, patient) == GivenUp("abandoned")
