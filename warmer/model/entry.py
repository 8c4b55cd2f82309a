"""An entry: what is stored under one key, header and body in one string.

The header is 64 bytes, big-endian, followed by the version vector, then the body:

    magic "WE" · format u8 · flags u8 · schema version u32 · key digest u64 ·
    created_at · fresh_until · stale_until · error_until (u64, Unix ms, server's clock) ·
    fence u64 · load_ms u32 · vector length u16 · body length modulo 65536 u16

A reader refuses what it cannot trust, as a miss with a reason: it never raises
into a request and never hands out a doubtful body.
"""

import struct
import sys
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum

import orjson

from warmer.errors import BadValue
from warmer.model.version import Versions, decode_vector, readable_vector

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"WE"
FORMAT = 1
HEADER = struct.Struct(">2sBBIQQQQQQIHH")
HEADER_BYTES = HEADER.size
MAX_BODY_BYTES = 64 * 1024 * 1024
"""Bound of a body, stored and inflated; a dataset may set a lower one."""
_LENGTH_MODULUS = 65536


class Flag(IntFlag):
    """The header's flags."""

    NEGATIVE = 1
    """The source has no such thing; the body is empty."""
    KEPT_STALE = 2
    """Published by a load that an invalidation overtook: stale from the start."""
    ZSTD = 4
    """The body is one zstd frame with content size and checksum."""
    RAW = 8
    """The value is the body's bytes; without it, the body is JSON."""


KNOWN_FLAGS = Flag.NEGATIVE | Flag.KEPT_STALE | Flag.ZSTD | Flag.RAW

# The same as plain integers: an operation on an IntFlag costs a reader 0.5 µs or more.
_NEGATIVE, _KEPT_STALE = int(Flag.NEGATIVE), int(Flag.KEPT_STALE)
_ZSTD, _RAW = int(Flag.ZSTD), int(Flag.RAW)
_UNKNOWN = ~int(KNOWN_FLAGS)


class Refusal(StrEnum):
    """Why a stored string was not taken for an entry. Each is a counter."""

    NOT_AN_ENTRY = "not_an_entry"
    FORMAT = "format"
    FLAGS = "flags"
    DIGEST = "digest"
    TRUNCATED = "truncated"
    VECTOR = "vector"
    INFLATED = "inflated"


class EntryRefused(Exception):
    """A stored string that a reader does not trust. Never leaves the store's adapter."""

    def __init__(self, reason: Refusal, fence: int = 0) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.fence = fence


@dataclass(slots=True)
class Entry:
    """A decoded entry. Instants are Unix ms by the cache server's clock.

    Not frozen: made on every read, and a frozen dataclass costs 1.8 µs against 0.75.
    """

    flags: int
    schema_version: int
    created_at: int
    fresh_until: int
    stale_until: int
    error_until: int
    fence: int
    load_ms: int
    vector: bytes
    body: bytes = field(repr=False)

    @property
    def negative(self) -> bool:
        """True if the source has no such thing."""
        return bool(self.flags & _NEGATIVE)

    @property
    def kept_stale(self) -> bool:
        """True if it was published as already stale."""
        return bool(self.flags & _KEPT_STALE)

    def versions(self) -> Versions:
        """Return the source versions this entry was built from, per scope."""
        return decode_vector(self.vector.decode("ascii"))

    def content(self) -> "Content":
        """Return what the entry says, without when and by whom."""
        return Content(self.flags & ~_KEPT_STALE, self.body)


@dataclass(frozen=True, slots=True)
class Content:
    """A loaded value as it is stored: flags (NEGATIVE, ZSTD, RAW) and body bytes."""

    flags: int
    body: bytes = field(repr=False)

    @property
    def negative(self) -> bool:
        """True if the source has no such thing."""
        return bool(self.flags & _NEGATIVE)

    def payload(self) -> bytes:
        """Return the value's bytes, inflated: JSON text, or raw bytes."""
        if self.flags & _ZSTD:
            return zstd.decompress(self.body)
        return self.body

    def inflated_bytes(self) -> int:
        """Return how many bytes `payload` has, without inflating it."""
        if not self.flags & _ZSTD:
            return len(self.body)
        size = _declared_size(self.body)
        if size is None:
            raise BadValue("a zstd frame that does not declare its size")
        return size

    def value(self) -> object:
        """Return the value: bytes if it was stored raw, otherwise decoded JSON.

        None for a negative entry.
        """
        if self.flags & _NEGATIVE:
            return None
        payload = self.payload()
        return payload if self.flags & _RAW else orjson.loads(payload)


NOT_FOUND = Content(_NEGATIVE, b"")


def encode_value(value: object, *, compress_above: int | None) -> Content:
    """Return `value` as it is stored.

    Bytes are kept as they are; everything else becomes JSON and must read back equal,
    so that NaN, datetimes, tuples and non-text mapping keys are refused (BadValue)
    rather than turned into another value.
    """
    if isinstance(value, bytes):
        return encode_payload(value, raw=True, compress_above=compress_above)
    try:
        payload = orjson.dumps(
            value,
            option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS,
        )
    except TypeError as exc:
        raise BadValue(f"a {type(value).__name__} cannot be stored: {exc}") from None
    if orjson.loads(payload) != value:
        raise BadValue(
            f"a {type(value).__name__} cannot be stored: it holds something that JSON "
            "gives back as another value (NaN, a datetime, a tuple, an enum …)"
        )
    return encode_payload(payload, raw=False, compress_above=compress_above)


def encode_payload(payload: bytes, *, raw: bool, compress_above: int | None) -> Content:
    """Return bytes that are the value (`raw`) or JSON text, compressed where that saves."""
    flags = _RAW if raw else 0
    if compress_above is not None and len(payload) > compress_above:
        frame = zstd.compress(
            payload,
            options={
                zstd.CompressionParameter.compression_level: 1,
                zstd.CompressionParameter.checksum_flag: 1,
            },
        )
        # Inflating costs every reader; a tenth saved does not pay for it.
        if len(frame) < 0.9 * len(payload):
            return Content(flags | _ZSTD, frame)
    return Content(flags, payload)


def encode_entry(entry: Entry, digest: int) -> bytes:
    """Return the stored form of `entry` under the key with this digest."""
    header = HEADER.pack(
        MAGIC,
        FORMAT,
        entry.flags,
        entry.schema_version,
        digest,
        entry.created_at,
        entry.fresh_until,
        entry.stale_until,
        entry.error_until,
        entry.fence,
        entry.load_ms,
        len(entry.vector),
        len(entry.body) % _LENGTH_MODULUS,
    )
    return header + entry.vector + entry.body


def decode_entry(
    stored: bytes, digest: int, *, max_body_bytes: int = MAX_BODY_BYTES
) -> Entry:
    """Return the entry in `stored`; raises EntryRefused for what cannot be trusted."""
    if len(stored) < HEADER_BYTES or stored[:2] != MAGIC:
        raise EntryRefused(Refusal.NOT_AN_ENTRY)
    (
        _magic,
        version,
        flags,
        schema_version,
        stored_digest,
        created_at,
        fresh_until,
        stale_until,
        error_until,
        fence,
        load_ms,
        vector_length,
        body_length,
    ) = HEADER.unpack_from(stored)
    if version != FORMAT:
        raise EntryRefused(Refusal.FORMAT, fence)
    if flags & _UNKNOWN:
        raise EntryRefused(Refusal.FLAGS, fence)
    if stored_digest != digest:
        raise EntryRefused(Refusal.DIGEST, fence)
    start = HEADER_BYTES + vector_length
    if len(stored) < start or (len(stored) - start) % _LENGTH_MODULUS != body_length:
        raise EntryRefused(Refusal.TRUNCATED, fence)
    body = stored[start:]
    if len(body) > max_body_bytes:
        raise EntryRefused(Refusal.INFLATED, fence)
    if flags & _ZSTD:
        _check_frame(body, fence, max_body_bytes)
    return Entry(
        flags,
        schema_version,
        created_at,
        fresh_until,
        stale_until,
        error_until,
        fence,
        load_ms,
        stored[HEADER_BYTES:start],
        body,
    )


def _check_frame(body: bytes, fence: int, max_body_bytes: int) -> None:
    """Refuse a frame that declares no size or too large a one, before inflating it."""
    try:
        size = _declared_size(body)
    except zstd.ZstdError:
        raise EntryRefused(Refusal.INFLATED, fence) from None
    if size is None or size > max_body_bytes:
        raise EntryRefused(Refusal.INFLATED, fence)


def _declared_size(frame: bytes) -> int | None:
    return zstd.get_frame_info(frame).decompressed_size


def readable_versions(entry: Entry) -> Versions:
    """Return the entry's versions, or none where the vector is not readable."""
    return readable_vector(entry.vector)
