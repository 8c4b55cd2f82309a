"""A request's body, read within its bound, and all of them within theirs."""

from starlette.requests import Request

_PASSED_OVER = 8 * 2**20

MAX_READING = 128 * 2**20
"""Bytes of all bodies that are being read, as long as nobody knows who sends them."""
SMALL = 64 * 2**10
"""So much of each body is not counted: large ones that stall keep no event out."""


class TooLarge(Exception):
    """The body is larger than allowed; its signature cannot be checked."""


class NoRoom(Exception):
    """Other bodies that are being read take all the memory there is for them."""


class Bodies:
    """Reads bodies."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reading = 0

    async def read(self, request: Request) -> bytes:
        """Return the body as it was sent; raises TooLarge and NoRoom.

        Of a larger one so much is read and thrown away that its sender, who is still sending,
        gets to read the answer: a connection that is closed before is reset.
        """
        chunks: list[bytes] = []
        size = held = 0
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > self._max_bytes + _PASSED_OVER:
                    break
                if size > self._max_bytes:
                    chunks.clear()
                    continue
                chunks.append(chunk)
                counted = max(0, size - SMALL)
                self._reading += counted - held
                held = counted
                if self._reading > MAX_READING:
                    raise NoRoom
        finally:
            self._reading -= held
        if size > self._max_bytes:
            raise TooLarge
        return b"".join(chunks)
