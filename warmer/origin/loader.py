"""One HTTP origin: a key -> one GET -> a value with its version, or an error that says why.

Holds: at most `local_limit` requests at once in this process, or as many as it is granted of
the fleet's limit; a load that is cancelled leaves no connection behind. Only configured
headers are sent, so that no caller's request shapes what others are given. No more than
`max_bytes` are taken from the wire or inflated. Redirects stay on the configured host, or
are an error.
Does not hold: a bound of the whole load. Each phase has its own; the refresher, which
calls this, bounds them together.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from warmer.clock import Clock
from warmer.errors import ConfigError, OriginInvalid
from warmer.model.dataset import Dataset
from warmer.model.entry import NOT_FOUND, Content, encode_payload
from warmer.model.key import Key
from warmer.model.outcome import Loaded
from warmer.model.permit import Errand
from warmer.model.version import Versions
from warmer.origin.admission import Admission
from warmer.origin.body import ENCODINGS, inflated, is_json, parsed
from warmer.origin.limit import LoadLimit
from warmer.origin.line import group_of
from warmer.origin.target import Address, OriginTarget, PathTemplate
from warmer.origin.transport import TARGET, Transport
from warmer.origin.verdict import Verdict, verdict
from warmer.origin.version import reported, reported_with_not_found
from warmer.signals import Signals

MAX_REDIRECTS = 5
OFF_LOOP_BYTES = 256 * 1024
"""Larger answers are read in a thread: parsing and compressing 256 KiB takes 1 to 2 ms."""
_INFLATES = 16
"""How much larger than on the wire a gzip answer is taken to be, before it is known."""

REQUESTED = Errand()
"""Of a load that says nothing else."""

Load = Callable[[Key, Versions], Awaitable[Loaded]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, as it was on the wire."""

    verdict: Verdict
    headers: httpx.Headers
    wire: bytes = b""


class Origin:
    """Loads of one origin, over one pool of connections."""

    def __init__(
        self,
        target: OriginTarget,
        *,
        clock: Clock,
        signals: Signals,
        admission: Admission | None = None,
    ) -> None:
        """Load from `target`, within the fleet's limit if `admission` is given."""
        self._target = target
        self._admission = admission
        self._address = Address.of(target.base_url)
        self._paths: dict[str, PathTemplate] = {}
        self._clock = clock
        self._signals = signals
        self.limit = LoadLimit(
            target.local_limit,
            max_waiting=target.local_queue,
            origin=target.name,
            clock=clock,
            signals=signals,
        )
        self._headers = {
            "user-agent": "warmer",
            "accept": "*/*",
            "accept-encoding": ", ".join(ENCODINGS),
        } | {name.lower(): value for name, value in target.headers.items()}
        self._base = httpx.URL(f"{self._address.scheme}://{self._address.host}")
        self._client = httpx.AsyncClient(
            transport=Transport(
                connections=max(target.local_limit, target.fleet_limit)
            ),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
        )

    def load_of(self, dataset: Dataset, errand: Errand = REQUESTED) -> Load:
        """Return the load of one dataset; raises ConfigError if its path cannot be one."""
        path = self._path_of(dataset)

        async def load(key: Key, _floors: Versions) -> Loaded:
            return await self._load(dataset, path, key, errand)

        return load

    def _path_of(self, dataset: Dataset) -> PathTemplate:
        if dataset.path is None:
            raise ConfigError(f"dataset {dataset.name!r}: an origin needs a path")
        # Kept, because a load is asked for anew with every read that is not fresh; bounded
        # by the paths that are configured.
        path = self._paths.get(dataset.path)
        if path is None:
            path = PathTemplate(dataset.path, dataset.template.names, self._address)
            self._paths[dataset.path] = path
        return path

    async def aclose(self) -> None:
        """Give back what is held of the fleet's limit, and close the connections."""
        if self._admission is not None:
            await self._admission.aclose()
        await self._client.aclose()

    # --- one load ---------------------------------------------------------------------

    async def _load(
        self, dataset: Dataset, path: PathTemplate, key: Key, errand: Errand
    ) -> Loaded:
        target = path.target(key)
        max_bytes = min(self._target.max_bytes, dataset.max_body_bytes)
        async with self._permit(dataset, key, errand):
            began = self._clock.monotonic()
            answer = await self._ask(target, max_bytes)
            content, versions = await _read(answer, dataset, key, max_bytes)
            load_ms = int((self._clock.monotonic() - began) * 1000)
        return Loaded(content, versions, load_ms)

    def _permit(
        self, dataset: Dataset, key: Key, errand: Errand
    ) -> AbstractAsyncContextManager[None]:
        timeout_ms = dataset.load_timeout_ms
        if self._admission is None:
            return self.limit.turn(within_ms=timeout_ms)
        wait_ms = timeout_ms if errand.wait_ms is None else errand.wait_ms
        return self._admission.permit(
            group_of(dataset, key),
            errand.purpose,
            within_ms=min(timeout_ms, wait_ms),
            load_timeout_ms=timeout_ms,
        )

    async def _ask(self, target: str, max_bytes: int) -> Answer:
        for _ in range(1 + MAX_REDIRECTS):
            response = await self._send(target)
            try:
                answer = await self._answer(response, max_bytes)
            finally:
                await response.aclose()
            if answer.verdict is not Verdict.REDIRECT:
                return answer
            target = self._redirected(target, answer)
        raise OriginInvalid(f"more than {MAX_REDIRECTS} redirects")

    async def _send(self, target: str) -> httpx.Response:
        request = httpx.Request(
            "GET",
            self._base,
            headers=self._headers,
            extensions={
                TARGET: target.encode("ascii"),
                "timeout": {
                    "connect": self._target.connect_ms / 1000,
                    "read": self._target.read_ms / 1000,
                },
            },
        )
        try:
            return await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            # All that is left to httpx is to look at an answer's Location.
            raise OriginInvalid(f"no HTTP: {exc}"[:200]) from exc

    async def _answer(self, response: httpx.Response, max_bytes: int) -> Answer:
        status, headers = response.status_code, response.headers
        self._signals.count("origin_answers", self._target.name, f"{status // 100}xx")
        judged = verdict(
            status,
            headers,
            allow_private=self._target.allow_private,
            now_ms=self._clock.now_ms(),
        )
        if judged is not Verdict.VALUE:
            return Answer(judged, headers)
        return Answer(judged, headers, await _taken(response, max_bytes))

    def _redirected(self, target: str, answer: Answer) -> str:
        if not self._target.allow_redirects:
            raise OriginInvalid("redirected, which is not allowed")
        return self._address.redirected(target, answer.headers.get("location", ""))


async def _taken(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body as it came, and give up on one too large at once."""
    too_large = OriginInvalid(f"more than {max_bytes} bytes")
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    chunks: list[bytes] = []
    left = max_bytes
    async for chunk in response.aiter_raw():
        left -= len(chunk)
        if left < 0:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


async def _read(
    answer: Answer, dataset: Dataset, key: Key, max_bytes: int
) -> tuple[Content, Versions]:
    size = len(answer.wire)
    if "content-encoding" in answer.headers:
        size *= _INFLATES
    if size > OFF_LOOP_BYTES:
        return await asyncio.to_thread(_understood, answer, dataset, key, max_bytes)
    return _understood(answer, dataset, key, max_bytes)


def _understood(
    answer: Answer, dataset: Dataset, key: Key, max_bytes: int
) -> tuple[Content, Versions]:
    headers = answer.headers
    if answer.verdict is Verdict.NOT_FOUND:
        return NOT_FOUND, reported_with_not_found(dataset.version, key, headers)
    payload = inflated(
        answer.wire, headers.get("content-encoding", ""), max_bytes=max_bytes
    )
    json = answer.verdict is Verdict.VALUE and is_json(headers.get("content-type", ""))
    document = parsed(payload) if json else None
    versions = reported(dataset.version, key, headers, document)
    content = encode_payload(
        payload, raw=not json, compress_above=dataset.compress_above
    )
    return content, versions
