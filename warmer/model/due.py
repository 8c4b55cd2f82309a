"""What is to be refreshed without anyone having asked for its value: the due set's members.

Holds: one key has one member, whichever process writes it, because the member is the
key's canonical parts as compact sorted JSON.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from warmer.errors import BadKey
from warmer.model.dataset import Datasets
from warmer.model.key import Key, decode_part
from warmer.model.version import Versions


class Lane(StrEnum):
    """How urgent a due key is. `now` is worked on before `warm`."""

    NOW = "now"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class DueKey:
    """A key to refresh, and what the refresh must reach (see port.Claim).

    `event_id`: the event that asked for it, for log lines.
    """

    key: Key
    wanted: Versions = field(default_factory=dict)
    wanted_fence: int = 0
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class TakenKey:
    """A due key that was taken to be worked on.

    `receipt` names the taking: a report with another's receipt changes nothing.
    `attempts`: how often its refresh has failed, or ended with its worker, since it became due.
    """

    member: str
    receipt: str
    wanted: Versions
    wanted_fence: int
    attempts: int
    event_id: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What a look into a lane gave. `next_in_ms`: 0 = more are ready, None = none are due."""

    keys: tuple[TakenKey, ...]
    next_in_ms: int | None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A taken key that goes back: due again in `delay_ms`. `failed` counts as an attempt."""

    taken: TakenKey
    delay_ms: int
    failed: bool


def member_of(key: Key) -> str:
    """Return the due set's member for this key."""
    return orjson.dumps(
        {
            "dataset": key.dataset,
            "parts": dict(key.parts),
            "schema": key.schema_version,
        },
        option=orjson.OPT_SORT_KEYS,
    ).decode()


def key_of(member: str, datasets: Datasets) -> Key:
    """Return the key that `member` stands for.

    Raises BadKey if this release does not know the dataset, or its parts have changed.
    """
    try:
        described = orjson.loads(member)
        name, schema = described["dataset"], described["schema"]
        parts = {part: decode_part(text) for part, text in described["parts"].items()}
        dataset = datasets[name]
    except (ValueError, TypeError, AttributeError, LookupError) as exc:
        raise BadKey(f"due key {member[:80]!r}: {exc}") from None
    return dataset.key(parts, schema=schema)
