"""What can be expected to happen, as values. Each carries only what its taker needs."""

from dataclasses import dataclass
from enum import StrEnum

from warmer.errors import StoreError
from warmer.model.entry import Content, Entry
from warmer.model.lease import Lease
from warmer.model.version import Versions

# --- replies of the store -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """The lease is ours; `entry` is what was stored, if anything the caller has not seen."""

    lease: Lease
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nothing to do: an entry good enough was there (the double check)."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Held:
    """Another owner has the lease for `remaining_ms` more."""

    remaining_ms: int
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Cooling:
    """The fleet backs off after failures; ask again in `retry_in_ms`."""

    retry_in_ms: int
    entry: Entry | None


ClaimReply = Claimed | Fresh | Held | Cooling


class RenewReply(StrEnum):
    """Whether the lease still holds my token."""

    RENEWED = "RENEWED"
    LOST = "LOST"


class PublishReply(StrEnum):
    """What became of a loaded body."""

    PUBLISHED = "PUBLISHED"
    KEPT_STALE = "KEPT_STALE"
    ALREADY = "ALREADY"
    ALREADY_KEPT = "ALREADY_KEPT"
    OUTDATED = "OUTDATED"
    FENCED = "FENCED"


class ReleaseReply(StrEnum):
    """What became of the lease: removed, gone before, or another's."""

    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    FOREIGN = "FOREIGN"


class InvalidateResult(StrEnum):
    """What an invalidation found at one key."""

    PURGED = "PURGED"
    NOTED = "NOTED"
    OLDER = "OLDER"


@dataclass(frozen=True, slots=True)
class InvalidateReply:
    """`fence`: no load that began before has a higher one; one that must see the change has."""

    result: InvalidateResult
    fence: int


# --- outcomes of a refresh ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load gave: the content, the versions it reports, and how long it took."""

    content: Content
    versions: Versions
    load_ms: int


@dataclass(frozen=True, slots=True)
class Published:
    """Stored as current; the key is fresh."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class KeptStale:
    """Stored as already stale: an invalidation overtook the load. The key stays due."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class Outdated:
    """Not stored: something newer is known. The key stays due."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class Fenced:
    """Not stored: a newer lease exists, or nothing proves that none does."""

    loaded: Loaded


@dataclass(frozen=True, slots=True)
class Unstored:
    """Loaded, but the cache server did not answer the publish; the key stays due."""

    loaded: Loaded
    error: StoreError


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The origin failed; the lease is released and the fleet backs off `retry_in_ms`."""

    error: Exception
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease went away while loading; the load was stopped."""


LoadOutcome = (
    Published | KeptStale | Outdated | Fenced | Unstored | LoadFailed | LeaseLost
)
RefreshOutcome = Fresh | Held | Cooling | LoadOutcome
