"""Names in Redis: the side keys of a cache key, and the control server's keys.

Holds: every side key of a key lies in the key's own Cluster slot, whatever the key is,
because it repeats the key's hash tag, or has the whole key as its tag.
"""

from dataclasses import dataclass

from warmer.errors import BadKey, ConfigError


def hash_tag(key: str) -> str | None:
    """Return the part of `key` that decides its slot, None if the whole key does."""
    opened = key.find("{")
    if opened < 0:
        return None
    closed = key.find("}", opened + 1)
    return key[opened + 1 : closed] if closed > opened + 1 else None


def tagged(key: str) -> str:
    """Return `key` so that it decides the slot of any name it is put into."""
    if hash_tag(key) is not None:
        return key
    if not key or "}" in key:
        raise BadKey(f"key {key[:80]!r} has a brace but no hash tag: no slot to share")
    return "{" + key + "}"


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Names of the side keys.

    `lease_name` is a template, so that request paths that already use leases keep
    theirs: `{key}` is the key as hash tag; `{plain_key}` is the bare key, which Cluster
    does not allow.
    """

    lease_name: str = "lock:{key}"

    def __post_init__(self) -> None:
        """Refuse a template that could not name one lease per key."""
        names = self.lease_name.count("{key}") + self.lease_name.count("{plain_key}")
        rest = self.lease_name.replace("{key}", "").replace("{plain_key}", "")
        if names != 1 or "{" in rest or "}" in rest or not rest:
            raise ConfigError(
                f"lease_name: {self.lease_name!r} must hold {{key}} (or {{plain_key}}) "
                "once, something besides, and no other braces"
            )

    def lease(self, key: str) -> str:
        """Return the name of the key's lease."""
        if "{plain_key}" in self.lease_name:
            return self.lease_name.replace("{plain_key}", key)
        return self.lease_name.replace("{key}", tagged(key))

    def guard(self, key: str) -> str:
        """Return the name of the key's guard."""
        return "guard:" + tagged(key)

    def key_of(self, name: str) -> str:
        """Return the key that a name on the cache server is of: itself, or its guard's."""
        if not name.startswith("guard:"):
            return name
        tagged_key = name.removeprefix("guard:")
        if tagged_key.startswith("{") and tagged_key.endswith("}"):
            return tagged_key[1:-1]
        return tagged_key

    def staged(self, key: str, token: str) -> str:
        """Return the name under which a large body waits for its publish."""
        return f"stage:{tagged(key)}:{token}"

    def channel(self, key: str) -> str:
        """Return the pub/sub channel on which waiters of the key are woken."""
        return "wake:" + tagged(key)


EVENT_LOG = "warmer:events"
"""Stream: every accepted event, in order of arrival."""
EVENT_GROUP = "workers"
DEAD_LETTERS = "warmer:dead"
"""Stream: events and keys set aside, with their reason."""
DEAD_LETTERS_SIZE = "warmer:dead:bytes"
"""How many bytes the payloads of dead letters take."""
HOOKS = "warmer:hooks"
"""Stream: deploy hooks as they came."""
HOOKS_SEEN = "warmer:hooks:seen"
"""Sorted set of the deliveries of hooks; score = when (Unix ms)."""
WANTED = "warmer:wanted"
"""Hash beside the due set: what a due key must reach, and its failed attempts."""

PREFIX_ASKS = "warmer:scans"
"""Hash: what scans of the cache server are asked for, by source, prefix and mode."""
PREFIX_SCAN = "warmer:scan"
"""Hash: the scan that is under way, how far it is, and who has it until when."""


def due(lane: str) -> str:
    """Return the sorted set of keys to refresh in `lane`; score = due at (Unix ms)."""
    return f"warmer:due:{lane}"


def doing(lane: str) -> str:
    """Return the sorted set of keys being refreshed; score = due again at (Unix ms)."""
    return f"warmer:doing:{lane}"


def wake(lane: str) -> str:
    """Return the flag that says a drain job of `lane` is queued and has not begun."""
    return f"warmer:wake:{lane}"


SOURCES = "warmer:sources"
"""Set: names of the sources that have a state."""


def source_state(source: str) -> str:
    """Return the hash of a source: epoch, lineage, newest position, counts, pause."""
    return f"warmer:source:{source}"


def source_seen(source: str) -> str:
    """Return the sorted set of identities of a source's events; score = when (Unix ms)."""
    return f"warmer:seen:{source}"


def source_recent(source: str) -> str:
    """Return the hash of the newest version of each of a source's recent entities."""
    return f"warmer:recent:{source}"


def source_regressed(source: str) -> str:
    """Return the set of a source's entities whose versions went back in this epoch."""
    return f"warmer:regressed:{source}"


def source_lineages(source: str) -> str:
    """Return the set of lineages that a source has had."""
    return f"warmer:lineages:{source}"


def held(source: str) -> str:
    """Return the stream of a paused source's events."""
    return f"warmer:held:{source}"


def permits(origin: str) -> str:
    """Return the hash of an origin's permits: a field per process, and `origin`."""
    return f"warmer:permits:{origin}"
