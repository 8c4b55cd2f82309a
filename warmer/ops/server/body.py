"""A request's body, read within its bound."""

from starlette.requests import Request

_PASSED_OVER = 8 * 2**20


class TooLarge(Exception):
    """The body is larger than allowed; its signature cannot be checked."""


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Return the body as it was sent; raises TooLarge.

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
