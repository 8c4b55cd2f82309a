"""Source versions: which of two states of the source is newer, when that can be known.

Holds: two versions compare only within one source, by epoch first, then (same epoch,
same length) as fixed-width hex strings. All else is incomparable, and incomparable
is never treated as older: a wrong reject serves stale data, a wrong apply costs one load.

Numbers are kept as hex digits because Lua numbers and sorted-set scores lose digits
above 2^53.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from typing_extensions import override

from warmer.errors import BadEvent

MAX_PARTS = 4
MAX_VECTOR_BYTES = 4096
"""Bound of an encoded vector; the entry header could hold 65,535."""

_U64 = 2**64
_U32 = 2**32
_SOURCE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_ENCODED = re.compile(r"[0-9a-f]{8}=(?:[0-9a-f]{16}){1,4}")

Scope = str
"""`source/entity` (one entity of one source), or `source` (a position: all of it)."""


class Order(StrEnum):
    """How one version stands to another."""

    OLDER = "older"
    EQUAL = "equal"
    NEWER = "newer"
    INCOMPARABLE = "incomparable"


@dataclass(frozen=True, slots=True)
class SourceVersion:
    """A version of a source: `epoch` (0 to 2^32-1) and 1 to 4 unsigned 64-bit parts as hex."""

    source: str
    epoch: int
    digits: str

    @classmethod
    def of(cls, source: str, *parts: int, epoch: int = 0) -> "SourceVersion":
        """Return the version made of these unsigned 64-bit parts, most significant first."""
        check_source(source)
        if not 0 <= epoch < _U32:
            raise BadEvent(f"epoch: {epoch} is outside 0 … 2^32-1")
        if not 1 <= len(parts) <= MAX_PARTS:
            raise BadEvent(f"version: {len(parts)} parts, allowed are 1 … {MAX_PARTS}")
        for part in parts:
            if not 0 <= part < _U64:
                raise BadEvent(f"version: {part} is outside 0 … 2^64-1")
        return cls(source, epoch, "".join(f"{part:016x}" for part in parts))

    @classmethod
    def decode(cls, source: str, encoded: str) -> "SourceVersion":
        """Return the version that `encoded` stands for."""
        if not _ENCODED.fullmatch(encoded):
            raise BadEvent(f"version: {encoded[:80]!r} is not epoch=digits in hex")
        return cls(source, int(encoded[:8], 16), encoded[9:])

    @override
    def __str__(self) -> str:
        """Return it as `--version` takes it, with its epoch if it has one."""
        parts = ":".join(str(part) for part in self.parts())
        return f"{parts} (epoch {self.epoch})" if self.epoch else parts

    def encode(self) -> str:
        """Return `eeeeeeee=digits`, the form in Redis."""
        return f"{self.epoch:08x}={self.digits}"

    def parts(self) -> tuple[int, ...]:
        """Return the parts as integers."""
        return tuple(
            int(self.digits[at : at + 16], 16) for at in range(0, len(self.digits), 16)
        )

    def compare(self, other: "SourceVersion") -> Order:
        """Return how this version stands to `other`."""
        if self.source != other.source:
            return Order.INCOMPARABLE
        if self.epoch != other.epoch:
            return Order.NEWER if self.epoch > other.epoch else Order.OLDER
        if len(self.digits) != len(other.digits):
            return Order.INCOMPARABLE
        if self.digits == other.digits:
            return Order.EQUAL
        return Order.NEWER if self.digits > other.digits else Order.OLDER


Versions = Mapping[Scope, SourceVersion]
"""What a load reports, an entry contains, or a refresh must reach, per scope."""


def check_source(source: str) -> None:
    """Refuse a source name that could not stand in a scope or a metric label."""
    if not _SOURCE.fullmatch(source):
        raise BadEvent(f"source: {source[:80]!r} is not [a-z0-9][a-z0-9_.-]{{0,63}}")


def source_of(scope: Scope) -> str:
    """Return the source a scope belongs to."""
    return scope.partition("/")[0]


def version_for(scope: Scope, versions: Versions) -> SourceVersion | None:
    """Return the version held for `scope`: its own, or its source's position."""
    own = versions.get(scope)
    return own if own is not None else versions.get(source_of(scope))


def in_current_epoch(versions: Versions, known: Iterable[Versions]) -> Versions:
    """Return `versions` with those of epoch 0 in the newest epoch `known` of their source.

    An origin tells its versions without an epoch. One that was given is left alone. The
    newest of the whole source, not of the scope: an opening raises no floor of an entity
    that nothing names, and below its old one the key could never be published again.
    """
    newest_epoch: dict[str, int] = {}
    for vector in known:
        for scope, version in vector.items():
            source = source_of(scope)
            newest_epoch[source] = max(newest_epoch.get(source, 0), version.epoch)
    return {
        scope: version
        if version.epoch
        else replace(version, epoch=newest_epoch.get(version.source, 0))
        for scope, version in versions.items()
    }


def encode_vector(versions: Versions) -> str:
    """Return `scope@epoch=digits;…`, sorted by scope; empty for none."""
    vector = ";".join(
        f"{scope}@{version.encode()}" for scope, version in sorted(versions.items())
    )
    if len(vector) > MAX_VECTOR_BYTES:
        raise BadEvent(
            f"versions: {len(versions)} scopes take {len(vector)} bytes, "
            f"allowed are {MAX_VECTOR_BYTES}"
        )
    return vector


def decode_vector(vector: str) -> dict[Scope, SourceVersion]:
    """Return the versions in an encoded vector."""
    if not vector:
        return {}
    versions: dict[Scope, SourceVersion] = {}
    for item in vector.split(";"):
        scope, at, encoded = item.rpartition("@")
        if not at:
            raise BadEvent(f"versions: {item[:80]!r} is not scope@version")
        versions[scope] = SourceVersion.decode(source_of(scope), encoded)
    return versions


def readable_vector(vector: bytes) -> Versions:
    """Return the versions in a stored vector; none where it is damaged."""
    try:
        return decode_vector(vector.decode("ascii"))
    except (BadEvent, UnicodeDecodeError):
        return {}


def newest(first: Versions, others: Iterable[tuple[Scope, SourceVersion]]) -> Versions:
    """Return `first` with every scope raised to the newer of both where they compare."""
    merged = dict(first)
    for scope, version in others:
        known = merged.get(scope)
        if known is None or version.compare(known) is Order.NEWER:
            merged[scope] = version
    return merged
