"""Dead letters: what could not be understood or finished, with its reason, for people.

Holds: nothing is dropped in silence, and a letter is bounded whatever was received.
"""

from collections.abc import Mapping

import orjson

from warmer.model.due import TakenKey
from warmer.model.version import encode_vector

MAX_PAYLOAD_BYTES = 262_144
"""Of more, the beginning is kept for people; it cannot be replayed."""
MAX_REASON_CHARS = 500
MAX_MEMBER_CHARS = 16_384

Letter = Mapping[str, str | bytes]
"""As it is set aside: `payload` and `key` are bytes, the other fields text."""


def event_letter(
    payload: bytes,
    *,
    reason: str,
    source: str,
    at_ms: int,
    log_id: str = "",
    epoch: int = 0,
    ordered: bool = True,
) -> Letter:
    """Return the letter for an event that was refused. `source`: where it came from.

    `epoch` and `ordered` are what its entry in the event log said of it.
    """
    return {
        "kind": "event",
        "source": source,
        "reason": reason[:MAX_REASON_CHARS],
        "payload": payload[:MAX_PAYLOAD_BYTES],
        "size": str(len(payload)),
        "log_id": log_id,
        "epoch": str(epoch),
        "ordered": str(int(ordered)),
        "at": str(at_ms),
    }


def message_letter(
    *,
    kind: str = "message",
    source: str,
    value: bytes,
    key: bytes = b"",
    headers: Mapping[str, str] | None = None,
    reason: str,
    at_ms: int,
) -> Letter:
    """Return the letter for a producer's message that was not understood.

    `kind` is `message`, or `body` for a whole request. `headers` hold no secret.
    """
    return {
        "kind": kind,
        "source": source,
        "reason": reason[:MAX_REASON_CHARS],
        "payload": value[:MAX_PAYLOAD_BYTES],
        "key": key[:MAX_PAYLOAD_BYTES],
        "headers": orjson.dumps(headers or {}).decode(),
        "size": str(len(value)),
        "at": str(at_ms),
    }


def key_letter(key: TakenKey, *, reason: str, at_ms: int) -> Letter:
    """Return the letter for a due key that was given up."""
    return {
        "kind": "key",
        "member": key.member[:MAX_MEMBER_CHARS],
        "reason": reason[:MAX_REASON_CHARS],
        "wanted": encode_vector(key.wanted),
        "wanted_fence": str(key.wanted_fence),
        "attempts": str(key.attempts),
        "event_id": key.event_id,
        "at": str(at_ms),
    }
