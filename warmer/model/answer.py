"""What a reader gets: the value, and how it came about."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from typing_extensions import override

from warmer.model.entry import Content, Flag
from warmer.model.version import Versions, readable_vector

_ZSTD, _RAW = int(Flag.ZSTD), int(Flag.RAW)
_PACKED = _RAW | _ZSTD

Decode = bool | Literal["stored"]
"""True: the decoded value. False: its bytes, inflated. "stored": its bytes as they are
stored, perhaps compressed: `Answer.encoding` says."""


class State(StrEnum):
    """How an answer came about.

    From the cache: FRESH; STALE, in its stale window while it is refreshed;
    STALE_ON_ERROR, because the origin failed or was too slow for the deadline.
    From the origin: LOADED by this call; WAITED, by somebody else's; DEGRADED, past a
    cache server that is down or slow. Without a value: NEGATIVE, the source has no such
    thing; EMPTY, the dataset's declared stand-in while somebody else loads.
    """

    FRESH = "fresh"
    """From the cache, within its fresh window."""
    STALE = "stale"
    """From the cache, within its stale window; a refresh is on its way."""
    STALE_ON_ERROR = "stale_on_error"
    """From the cache, because the origin failed or was too slow for the deadline."""
    LOADED = "loaded"
    """From the origin, by this call."""
    WAITED = "waited"
    """From the origin, by somebody else's call."""
    EMPTY = "empty"
    """The dataset's declared empty value: nothing is cached, and somebody else loads."""
    NEGATIVE = "negative"
    """The source has no such thing; the value is None."""
    DEGRADED = "degraded"
    """From the origin, past the cache: the cache server is down or slow."""


@dataclass(slots=True)
class Answer:
    """One answer. `age_ms`: since it was published, 0 if just loaded, None if EMPTY.

    Not frozen: made on every read, and a frozen dataclass costs twice as much.
    """

    value: object
    state: State
    age_ms: int | None
    key: str
    encoding: Literal["zstd"] | None = None
    """How `value` is compressed, which only `decode="stored"` leaves it."""
    vector: bytes = b""

    @override
    def __repr__(self) -> str:
        versions = {scope: str(version) for scope, version in self.versions.items()}
        return (
            f"Answer(value={self.value!r}, state={self.state!r}, age_ms={self.age_ms}, "
            f"versions={versions}, key={self.key!r})"
        )

    @property
    def versions(self) -> Versions:
        """The source versions that the value was built from, per scope, as far as known."""
        return readable_vector(self.vector)


def given(
    flags: int, body: bytes, decode: Decode
) -> tuple[object, Literal["zstd"] | None]:
    """Return stored content as the caller wants it, and how that is compressed."""
    if flags & _PACKED == _RAW and decode is not False:
        return body, None  # most entries of whoever counts microseconds
    content = Content(flags, body)
    if decode is True:
        return content.value(), None
    if content.negative:
        return None, None
    if decode == "stored":
        return body, "zstd" if flags & _ZSTD else None
    return content.payload(), None
