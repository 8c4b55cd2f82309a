"""A request's body -> its messages, whether it has just come or is replayed.

Holds: what is compressed is inflated within a bound, and not a byte further.
"""

import zlib
from collections.abc import Mapping

from warmer.errors import BadEvent
from warmer.ingest.formats import Message
from warmer.ingest.formats.cloudevents import of_binary
from warmer.ingest.intake import messages_in

MAX_INFLATED = 64 * 2**20
"""What a body is allowed where nobody says less."""

MAX_GZIP_MEMBERS = 64
"""Parts, each of its own compression, of which a body may be put together."""

_CLOUDEVENTS = "application/cloudevents"


def messages_of(
    body: bytes,
    headers: Mapping[str, str],
    *,
    format_name: str,
    max_bytes: int = MAX_INFLATED,
) -> list[Message]:
    """Return the messages of a body; raises BadEvent if it is none, or too much.

    `headers` are by lower-case name and stay with each message.
    """
    plain = inflated(body, headers.get("content-encoding", ""), max_bytes=max_bytes)
    if format_name == "cloudevents" and _is_binary(headers):
        return [Message(of_binary(plain, headers), headers=headers)]
    return messages_in(plain, headers=headers)


def inflated(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Return what the sender compressed; raises BadEvent."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _gunzipped(body, max_bytes)
        case _:
            raise BadEvent("content-encoding: allowed are gzip and identity")


def _is_binary(headers: Mapping[str, str]) -> bool:
    """Return whether the event's attributes are in headers, and the body is its data."""
    return "ce-specversion" in headers and not headers.get(
        "content-type", ""
    ).startswith(_CLOUDEVENTS)


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    """Return what all members of it hold: a sender may compress one event after another."""
    plain = b""
    for _ in range(MAX_GZIP_MEMBERS):
        reader = zlib.decompressobj(wbits=31)
        try:
            plain += reader.decompress(body, max_bytes + 1 - len(plain))
        except zlib.error:
            raise BadEvent(
                "body: is not gzip to its end, as its content-encoding says"
            ) from None
        if len(plain) > max_bytes:
            raise BadEvent(f"body: more than {max_bytes} bytes, inflated")
        if not reader.eof:
            raise BadEvent("body: its gzip is cut off")
        body = reader.unused_data
        if not body:
            return plain
    raise BadEvent(f"body: its gzip has more than {MAX_GZIP_MEMBERS} members")
