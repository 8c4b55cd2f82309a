"""httpx over aiohttp's connections, and errors of both as this package's.

Holds: the request target leaves byte for byte as given (httpx and yarl would each encode
it again), and only the headers given leave with it. No cookie is kept. A GET whose
connection ends before an answer begins, as one does that the origin closed while it was
idle, is sent once more; aiohttp sees to that.

httpx's own pool scans every idle connection per request: 145 loads/s at 50 connections,
against 2,200. The adapter of httpx-aiohttp is taken for its connections; its requests
would re-encode the target and mix up which phase a timeout was in.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from typing_extensions import override
from yarl import URL

from warmer.errors import (
    OriginInvalid,
    OriginTimeout,
    OriginTruncated,
    OriginUnavailable,
)

TARGET = "target"
"""Request extension, as in httpx: the bytes of the request line."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise this package's errors for aiohttp's."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise OriginTimeout("connect", "no connection in time") from exc
    except aiohttp.ServerTimeoutError as exc:
        raise OriginTimeout("read", "silence while the answer was due") from exc
    except aiohttp.ClientPayloadError as exc:
        raise OriginTruncated("the answer ended before it was complete") from exc
    except aiohttp.ClientResponseError as exc:
        raise OriginInvalid(f"no HTTP: {exc.message[:200]}") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise OriginUnavailable(f"{type(exc).__name__}: {exc}"[:200]) from exc


class Transport(AiohttpTransport):
    """Sends what it is given. `connections`: open at once, more wait for one."""

    def __init__(self, *, connections: int) -> None:
        super().__init__(client=self._session)
        self._connections = connections

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections, ssl=self.ssl_context
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(self.client, aiohttp.ClientSession):
            self.client = self._session()
        timeout = request.extensions["timeout"]
        url = request.url
        target = request.extensions[TARGET].decode("ascii")
        with translated():
            answer = await self.client.request(
                request.method,
                URL(f"{url.scheme}://{url.netloc.decode()}{target}", encoded=True),
                headers=request.headers,
                allow_redirects=False,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(
                    connect=timeout["connect"], sock_read=timeout["read"]
                ),
            )
        return httpx.Response(
            answer.status, headers=answer.raw_headers, stream=_Body(answer)
        )


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        with translated():
            async for chunk in self._answer.content.iter_any():
                yield chunk

    @override
    async def aclose(self) -> None:
        # Gives the connection back if the answer was read to its end, and closes it if not.
        self._answer.release()
