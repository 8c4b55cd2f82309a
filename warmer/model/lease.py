"""A lease: the time-bounded right to refresh one key. It exists only if acquired."""

import secrets
from dataclasses import dataclass, field

from warmer.model.version import Versions


def new_token() -> str:
    """Return a random owner id: 32 hex digits, unique across the fleet."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Lease:
    """What `claim` gave: the token in the lease, and the fence that grows with each.

    `floors`: the lowest version, per scope, the key may be published with, as known
    when claimed. `failures`: failed loads since the last published one.
    """

    key: str
    token: str
    fence: int
    failures: int = 0
    floors: Versions = field(default_factory=dict)
