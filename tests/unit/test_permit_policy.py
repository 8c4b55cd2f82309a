"""Shares of a limit, the breaker and the adaptive limit, for every value they may be given."""

from hypothesis import given
from hypothesis import strategies as st

from warmer.model.permit import Counts, Phase, Pool, Seen
from warmer.policy.adaptive import Bearing, borne
from warmer.policy.breaker import PROVEN, Breaker, looked_at, told
from warmer.policy.shares import (
    admits,
    level,
    lowered,
    reserve_of,
    shares_of,
    within,
)

counts = st.builds(Counts, *[st.integers(0, 40)] * 4)
pools = st.builds(
    lambda limit, ratio: Pool(limit, reserve_of(limit, ratio)),
    st.integers(0, 64),
    st.floats(0, 0.5),
)
wants = st.lists(counts, min_size=1, max_size=12)
turns = st.integers(0, 1_000)


@given(pool=pools, wants=wants, turn=turns)
def test_shares_never_pass_the_limit_and_leave_the_reserve_to_requests(
    pool: Pool, wants: list[Counts], turn: int
) -> None:
    """R-ADM-1 R-ADM-3."""
    shares = shares_of(pool, wants, turn=turn)

    assert sum(map(sum, shares)) <= pool.limit
    assert sum(sum(share[1:]) for share in shares) <= pool.limit - pool.reserve
    for share, want in zip(shares, wants, strict=True):
        assert all(
            0 <= given <= wanted for given, wanted in zip(share, want, strict=True)
        )


@given(pool=pools, wants=wants, turn=turns)
def test_what_the_urgent_leave_is_lent_downwards(
    pool: Pool, wants: list[Counts], turn: int
) -> None:
    """R-ADM-3: nothing but the reserve lies idle while somebody wants it."""
    shares = shares_of(pool, wants, turn=turn)

    requests = sum(want.request for want in wants)
    lent = sum(sum(want[1:]) for want in wants)
    given = sum(share.request for share in shares)
    assert given == min(pool.limit, requests)
    assert sum(sum(share[1:]) for share in shares) == min(
        lent, pool.limit - given, pool.limit - pool.reserve
    )


@given(
    limit=st.integers(0, 64),
    wants=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    turn=turns,
)
def test_nobody_gets_less_than_one_who_wants_as_much_but_for_the_odd_permit(
    limit: int, wants: list[int], turn: int
) -> None:
    """R-ADM-1: max-min; who wants little is not starved by who wants much."""
    shares = level(limit, wants, turn)

    for share, want in zip(shares, wants, strict=True):
        assert share == want or all(other <= share + 1 for other in shares)


@given(wants=st.integers(2, 12), limit=st.integers(1, 11))
def test_an_odd_permit_goes_round(wants: int, limit: int) -> None:
    """R-ADM-1: with fewer permits than processes, each has one in its turn."""
    served = [0] * wants
    for turn in range(wants):
        for at, share in enumerate(level(min(limit, wants), [9] * wants, turn)):
            served[at] += share

    assert min(served) > 0


@given(pool=pools, wants=wants, turn=turns)
def test_asking_again_for_what_was_granted_changes_nothing(
    pool: Pool, wants: list[Counts], turn: int
) -> None:
    """R-ADM-1: shares are a fixed point, so that a quiet fleet stays quiet."""
    shares = shares_of(pool, wants, turn=turn)

    assert shares_of(pool, shares, turn=turn) == shares


@given(share=counts, wants=counts, room=st.integers(0, 64), lent=st.integers(0, 64))
def test_a_share_grows_only_into_what_others_gave_back(
    share: Counts, wants: Counts, room: int, lent: int
) -> None:
    """R-ADM-1 R-FT-4."""
    given = within(share, room=room, room_to_lend=lent)

    assert sum(given) <= room
    assert sum(given[1:]) <= lent
    assert all(mine <= all_ for mine, all_ in zip(given, share, strict=True))
    assert sum(lowered(share, wants)) <= sum(wants)


@given(share=counts, ranks=st.lists(st.integers(0, 3), max_size=200))
def test_the_urgent_may_use_what_the_others_have_and_never_the_reverse(
    share: Counts, ranks: list[int]
) -> None:
    """R-ADM-3."""
    used = [0, 0, 0, 0]
    for rank in ranks:
        if admits(share, Counts(*used), rank):
            used[rank] += 1

    assert all(sum(used[rank:]) <= sum(share[rank:]) for rank in range(4))


def test_half_of_the_loads_failing_opens_and_good_probes_close() -> None:
    """R-ADM-4: and a failed probe opens for longer."""
    breaker = told(Breaker(), Seen(ok=5, failed=4), 1_000)
    assert breaker.phase is Phase.CLOSED
    breaker = told(breaker, Seen(failed=1), 1_000)
    assert (breaker.phase, breaker.until_ms) == (Phase.OPEN, 2_000)
    breaker = looked_at(breaker, 2_000)
    assert breaker.phase is Phase.PROBING
    breaker = told(breaker, Seen(ok=1, failed=1, era=breaker.era), 2_100)
    assert (breaker.phase, breaker.until_ms) == (Phase.OPEN, 4_100)
    breaker = looked_at(breaker, 4_100)
    breaker = told(breaker, Seen(ok=PROVEN, era=breaker.era), 4_200)

    assert (breaker.phase, breaker.opened) == (Phase.CLOSED, 0)


def test_an_origin_that_was_well_is_known_to_be_down_by_ten_failures_in_a_row() -> None:
    """R-ADM-4 R-FT-2: long before its failures are half of what is remembered."""
    breaker = told(Breaker(), Seen(ok=1_000), 0)
    breaker = told(told(breaker, Seen(failed=9), 0), Seen(ok=1, failed=9), 0)
    assert breaker.phase is Phase.CLOSED

    assert told(breaker, Seen(failed=10), 0).phase is Phase.OPEN


def test_loads_that_began_before_it_opened_say_nothing() -> None:
    """R-ADM-4: those that hung meanwhile do not open it again."""
    breaker = looked_at(told(Breaker(), Seen(failed=10), 0), 1_000)
    assert breaker.phase is Phase.PROBING

    assert told(breaker, Seen(failed=50, era=0), 1_100) == breaker


def test_retry_after_is_rest_for_all() -> None:
    """R-ADM-4 RETRY-2: one answer that names an instant is enough; a mistaken one is bounded."""
    breaker = told(Breaker(), Seen(failed=1, retry_after_ms=30_000), 0)
    mistaken = told(Breaker(), Seen(failed=1, retry_after_ms=10**9), 0)

    assert (breaker.phase, breaker.until_ms) == (Phase.OPEN, 30_000)
    assert mistaken.until_ms == 120_000


seen = st.builds(
    Seen,
    ok=st.integers(0, 50),
    failed=st.integers(0, 50),
    pushed_back=st.integers(0, 50),
    load_ms=st.integers(0, 100_000),
)


@given(reports=st.lists(st.tuples(seen, st.integers(0, 2_000)), max_size=40))
def test_the_limit_stays_between_floor_and_ceiling_and_grows_by_steps(
    reports: list[tuple[Seen, int]],
) -> None:
    """R-ADM-1: calls ramp; they do not jump."""
    bearing, now = Bearing(8.0), 0
    for said, later_ms in reports:
        now += later_ms
        before = bearing.limit
        bearing = borne(bearing, said, now, floor=2, ceiling=32, adaptive=True)

        assert 2 <= bearing.limit <= 32
        assert bearing.limit <= before + max(1.0, before * 0.1)


def told_every(bearing: Bearing, said: Seen, windows: int) -> Bearing:
    now = bearing.since_ms
    for _ in range(windows):
        now += 500
        bearing = borne(bearing, said, now, floor=2, ceiling=32, adaptive=True)
    return bearing


def test_slow_loads_bring_the_limit_down_and_usual_ones_up_again() -> None:
    """R-ADM-1: 50 ms are usual; 5 s are not."""
    usual = told_every(Bearing(32.0), Seen(ok=10, load_ms=500), 4)
    slow = told_every(usual, Seen(ok=10, load_ms=50_000), 8)
    again = told_every(slow, Seen(ok=10, load_ms=500), 30)

    assert (usual.limit, slow.limit, again.limit) == (32, 2, 32)


def test_being_pushed_back_brings_the_limit_down() -> None:
    """R-ADM-1: 429, 503 and timeouts, but not the errors of single keys."""
    pushed = told_every(
        Bearing(32.0), Seen(ok=80, failed=20, pushed_back=20, load_ms=8_000), 4
    )
    failed = told_every(Bearing(32.0), Seen(ok=80, failed=20, load_ms=8_000), 4)

    assert pushed.limit < 10
    assert failed.limit == 32
