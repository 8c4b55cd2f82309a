"""What an entry is good for at an instant: serve, refresh behind, fall back on, nothing."""

from enum import StrEnum

from warmer.model.entry import Entry


class Freshness(StrEnum):
    """From best to worst. No entry is ever served past what this says."""

    FRESH = "fresh"
    """Serve it."""
    STALE = "stale"
    """Serve it, and have it refreshed."""
    ERROR_ONLY = "error_only"
    """Serve it only when the origin has failed."""
    EXPIRED = "expired"
    """Never serve it."""


def freshness(entry: Entry, now_ms: int) -> Freshness:
    """Return what `entry` is good for at `now_ms` (the cache server's clock)."""
    if now_ms < entry.fresh_until:
        return Freshness.FRESH
    if now_ms < entry.stale_until:
        return Freshness.STALE
    if now_ms < entry.error_until:
        return Freshness.ERROR_ONLY
    return Freshness.EXPIRED
