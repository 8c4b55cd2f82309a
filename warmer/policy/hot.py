"""Which invalidated keys are refreshed at once, before anyone asks for them."""

from typing import assert_never

from warmer.model.dataset import Dataset, RefreshOn
from warmer.model.outcome import InvalidateResult


def warmed(dataset: Dataset) -> bool:
    """Return whether rows that a source only showed are loaded where they are not fresh."""
    return dataset.refresh_on is not RefreshOn.NONE


def refresh_now(dataset: Dataset, result: InvalidateResult) -> bool:
    """Return whether a key is due now, given what the invalidation found at it.

    An event that was provably older changed nothing, so it refreshes nothing.
    """
    if result is InvalidateResult.OLDER:
        return False
    match dataset.refresh_on:
        case RefreshOn.CACHED:
            return result is InvalidateResult.PURGED
        case RefreshOn.ALL:
            return True
        case RefreshOn.NONE:
            return False
        case unknown:
            assert_never(unknown)
