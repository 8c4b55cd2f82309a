"""No order of calls and faults breaks what `invariants` says: contract and scripts alike."""

import pytest

from tests.interleaving.on_reference import play_reference
from tests.interleaving.real import RealPlays

SCHEDULES = 24_000
REAL_SCHEDULES = 300
"""On each of two servers."""
PARTS = 8


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_order_of_calls_and_faults_breaks_the_contract(part: int) -> None:
    """R-INV-2, R-INV-3, R-LSE-4; INFLIGHT-1, INFLIGHT-4, LOST-INVAL-4, LEASE-LOST-1."""
    share = SCHEDULES // PARTS

    for seed in range(part * share, (part + 1) * share):
        play_reference(seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", range(2))
async def test_the_scripts_answer_and_store_what_the_contract_says(
    part: int, real_plays: RealPlays
) -> None:
    """R-INV-2, R-INV-3, R-LSE-4: after every call of a schedule, on Valkey and on Redis."""
    share = REAL_SCHEDULES // 2

    for seed in range(part * share, (part + 1) * share):
        await real_plays.play_twins(seed)


def test_a_schedule_is_the_same_every_time() -> None:
    """A failing seed can be played again."""
    traces = [play_reference(seed).gate.trace for seed in (3, 3, 4)]

    assert traces[0] == traces[1]
    assert traces[0] != traces[2]
