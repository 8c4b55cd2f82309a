"""An answer's body, inflated and read, within a bound. Pure, and at home in a thread."""

import zlib

import orjson

from warmer.errors import OriginInvalid

_GZIP = 16 + zlib.MAX_WBITS
ENCODINGS = ("gzip",)
"""What is asked for, and all that is understood."""


def inflated(wire: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Return the body behind a Content-Encoding; stops as soon as it is too large."""
    match encoding.strip().lower():
        case "" | "identity":
            return wire
        case "gzip" | "x-gzip":
            return _gunzip(wire, max_bytes)
        case _:
            raise OriginInvalid("a Content-Encoding that was not asked for")


def _gunzip(wire: bytes, max_bytes: int) -> bytes:
    members: list[bytes] = []
    left = max_bytes
    while wire:
        member = zlib.decompressobj(_GZIP)
        try:
            # One byte more than allowed tells too large from just fitting.
            members.append(member.decompress(wire, left + 1))
        except zlib.error as exc:
            raise OriginInvalid("its gzip is damaged") from exc
        left -= len(members[-1])
        if left < 0:
            raise OriginInvalid(f"more than {max_bytes} bytes when inflated")
        if not member.eof:
            raise OriginInvalid("its gzip is cut short")
        wire = member.unused_data
    return b"".join(members)


def is_json(content_type: str) -> bool:
    """Return whether a Content-Type says JSON."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in ("application/json", "text/json") or media_type.endswith(
        "+json"
    )


def parsed(payload: bytes) -> object:
    """Return the JSON document in `payload`."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as exc:
        # Its text quotes no content: line, column and what was expected.
        raise OriginInvalid(f"called JSON, and is none: {exc}") from None
