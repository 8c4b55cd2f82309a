"""A job on arq's queue, as a value: what has to be stored for arq to run it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job. `key` is the name its payload is stored under, for `expires_ms`."""

    id: str
    key: str
    queue: str
    payload: bytes
    expires_ms: int
