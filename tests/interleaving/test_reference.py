"""The contract under 24,000 schedules: what `invariants` says holds in every one."""

import pytest

from tests.interleaving.on_reference import play_reference

SCHEDULES = 24_000
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_order_of_calls_and_faults_breaks_an_invariant(part: int) -> None:
    """R-INV-2, R-INV-3, R-LSE-4; INFLIGHT-1, INFLIGHT-4, LOST-INVAL-4, LEASE-LOST-1."""
    share = SCHEDULES // PARTS

    for seed in range(part * share, (part + 1) * share):
        play_reference(seed)
