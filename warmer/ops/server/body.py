"""A request's body: read within its bound, inflated within its bound."""

import zlib

from starlette.requests import ClientDisconnect, Request

from warmer.errors import BadEvent

_PASSED_OVER = 8 * 2**20


class TooLarge(Exception):
    """The body is larger than allowed; its signature cannot be checked."""


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the body as it was sent; raises TooLarge, or ClientDisconnect.

    Of a larger one so much is read and thrown away that its sender, who is still sending,
    gets to read the answer: a connection that is closed before is reset.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes + _PASSED_OVER:
            break
        if size <= max_bytes:
            chunks.append(chunk)
    if size > max_bytes:
        raise TooLarge
    return b"".join(chunks)


def inflated(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Return what the sender compressed; raises BadEvent."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _gunzipped(body, max_bytes)
        case _:
            raise BadEvent("content-encoding: allowed are gzip and identity")


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    reader = zlib.decompressobj(wbits=31)
    try:
        plain = reader.decompress(body, max_bytes + 1)
    except zlib.error:
        raise BadEvent("body: is not gzip, as its content-encoding says") from None
    if len(plain) > max_bytes:
        raise BadEvent(f"body: more than {max_bytes} bytes, inflated")
    if not reader.eof:
        raise BadEvent("body: its gzip is cut off")
    return plain


__all__ = ["ClientDisconnect", "TooLarge", "inflated", "read_body"]
