"""What becomes of a due key after its refresh: done, due again, or given up. Decides only."""

from dataclasses import dataclass
from random import Random
from typing import assert_never

from warmer.errors import NoPermit
from warmer.model.outcome import (
    Cooling,
    Fenced,
    Fresh,
    Held,
    KeptStale,
    LeaseLost,
    LoadFailed,
    Outdated,
    Published,
    RefreshOutcome,
    Unstored,
)
from warmer.policy.backoff import retry_ms
from warmer.refresh import reason_of

OVERTAKEN_MS = 50
"""After a load that an invalidation overtook: the next one may well prove itself."""
ABANDONED_AT_LEAST = 5
"""Workers lost before a key is suspected, however small `max_tries` is: a few deploys."""
HELD_MIN_MS, HELD_UNKNOWN_MS = 50, 250
"""How soon to look again after another holder, who mostly ends long before its lease."""
HELD_APART_MS, HELD_APART_MOST = 2_000, 5
"""Spread of keys that find leases of the dead: for each failed attempt, up to so many."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The key is as fresh as was asked for."""


@dataclass(frozen=True, slots=True)
class Again:
    """Due again in `delay_ms`; `failed` counts towards giving up."""

    delay_ms: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A dead letter. `reason` is a word of bounded variety."""

    reason: str


Verdict = Finished | Again | GivenUp


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a key may fail, and how long it waits in between."""

    max_tries: int
    base_ms: int
    cap_ms: int


def judge(  # noqa: PLR0911 - one for each outcome
    outcome: RefreshOutcome, attempts: int, policy: RetryPolicy, random: Random
) -> Verdict:
    """Return what becomes of a key that had failed `attempts` times before this."""
    match outcome:
        case Published() | Fresh():
            return Finished()
        case KeptStale():
            return Again(random.randint(OVERTAKEN_MS // 2, OVERTAKEN_MS))
        case Held(remaining_ms) if attempts:
            # The leases of a worker that died end together. What comes back at that moment
            # meets the key that ended it once more, and would be given up with it.
            apart_ms = min(attempts, HELD_APART_MOST) * HELD_APART_MS
            return Again(remaining_ms + random.randint(1, apart_ms))
        case Held(remaining_ms, entry):
            expected_ms = entry.load_ms if entry else HELD_UNKNOWN_MS
            return Again(max(HELD_MIN_MS, min(remaining_ms, expected_ms)))
        case Cooling(retry_in_ms):
            # Spread: all keys of one origin were told the same instant.
            return Again(retry_in_ms + random.randint(1, max(1, retry_in_ms // 10)))
        case LoadFailed(NoPermit(), retry_in_ms):
            # Nothing was tried, so nothing has failed. Spread: they were refused together.
            return Again(retry_in_ms + random.randint(1, max(1, retry_in_ms)))
        case LoadFailed(error, retry_in_ms):
            return _failed(reason_of(error), retry_in_ms, attempts, policy, random)
        case Outdated():
            return _failed("outdated", 0, attempts, policy, random)
        case Fenced() | LeaseLost() | Unstored():
            return undecided(attempts, policy, random)
        case _:
            assert_never(outcome)


def suspected(attempts: int, policy: RetryPolicy) -> GivenUp | None:
    """Return the verdict on a key that may not be loaded any more, None if it may.

    A failure is judged when it is reported; so many attempts come from workers that died.
    """
    if attempts < max(policy.max_tries, ABANDONED_AT_LEAST):
        return None
    return GivenUp("abandoned")


def undecided(attempts: int, policy: RetryPolicy, random: Random) -> Again:
    """Return the verdict where the origin is not to blame: wait, and count nothing."""
    return Again(_back_off_ms(attempts, policy, random))


def foreign(attempts: int, policy: RetryPolicy, random: Random) -> Verdict:
    """Return the verdict on a key that this release cannot load.

    While releases roll, another worker can: leave it to one, for a while.
    """
    return _failed("unknown_key", 0, attempts, policy, random)


def unexpected(attempts: int, policy: RetryPolicy, random: Random) -> Verdict:
    """Return the verdict where our own code failed."""
    return _failed("error", 0, attempts, policy, random)


def _failed(
    reason: str, least_ms: int, attempts: int, policy: RetryPolicy, random: Random
) -> Verdict:
    if attempts + 1 >= policy.max_tries:
        return GivenUp(reason)
    delay_ms = max(least_ms, _back_off_ms(attempts, policy, random))
    return Again(delay_ms, failed=True)


def _back_off_ms(attempts: int, policy: RetryPolicy, random: Random) -> int:
    return retry_ms(attempts, random, policy.base_ms, policy.cap_ms)
