"""Requests that bring something: events, purges, deploy hooks.

Holds: 2xx means that all of a body is in the event log, or a dead letter, or known
already. A body of a proven sender that cannot be understood is kept and answered 2xx:
producers that are refused stop for ever, and lose what follows. A sender that is not
proven is answered 401 and leaves a count. When it cannot be kept, the answer is 503.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from http import HTTPStatus
from urllib.parse import parse_qs

import orjson
from starlette.requests import Request
from starlette.responses import Response

from warmer.clock import Clock
from warmer.errors import BadEvent, BadSignature
from warmer.ingest.bodies import inflated, messages_of
from warmer.ingest.formats import Message
from warmer.ingest.formats.cloudevents import source_of
from warmer.ingest.intake import Intake, Taken
from warmer.ingest.signatures import verify
from warmer.model.source import Auth, Source, Sources
from warmer.ops.server.answers import Json, problem, taken
from warmer.ops.server.body import Bodies, TooLarge
from warmer.signals import Signals
from warmer.store.hook_log import HookLog

Headers = Mapping[str, str]

_SECRET_HEADERS = frozenset(
    {
        "authorization",
        "cookie",
        "fastly-key",
        "proxy-authorization",
        "stripe-signature",
        "webhook-signature",
        "x-gitlab-token",
        "x-hub-signature",
        "x-hub-signature-256",
        "x-signature",
    }
)
_MAX_HEADERS_BYTES = 16_384
MAX_SURROGATE_KEYS = 256


class Refused(Exception):
    """The request is answered with this, and nothing of it is kept."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class Door:
    """The handlers of what comes in."""

    def __init__(
        self,
        *,
        sources: Sources,
        hooks: Mapping[str, Auth],
        intake: Intake,
        hook_log: HookLog,
        clock: Clock,
        signals: Signals,
        max_body: int,
    ) -> None:
        self._sources = sources
        self._hooks = hooks
        self._intake = intake
        self._hook_log = hook_log
        self._clock = clock
        self._signals = signals
        self._max_body = max_body
        self._bodies = Bodies(max_bytes=max_body)

    # --- events ---------------------------------------------------------------------

    async def source_events(self, request: Request) -> Response:
        """POST /v1/events/<source>: messages in that source's format."""
        source = self._reachable(request.path_params["source"])
        body, headers, delivery = await self._proven_of(request, source)
        return taken(await self._take(source, body, headers, delivery))

    async def cloudevents(self, request: Request) -> Response:
        """POST /v1/events: CloudEvents, each of the source that its `source` names."""
        senders, body, headers, delivery = await self._proven(request, "cloudevents")
        try:
            messages = messages_of(
                body,
                _kept(headers),
                format_name="cloudevents",
                max_bytes=self._max_body,
            )
        except BadEvent as exc:
            return taken(await self._set_aside(senders[0], body, headers, exc))
        results = [
            await self._take_messages(source, found, body, headers, delivery)
            for source, found in _by_source(messages, senders)
        ]
        return taken(reduce(_sum, results, Taken()))

    async def handshake(self, request: Request) -> Response:
        """OPTIONS /v1/events: a CloudEvents sender asks whether it may send."""
        origin = request.headers.get("webhook-request-origin", "")
        headers = {"Allow": "OPTIONS, POST"}
        if origin.isascii() and origin.isprintable() and origin:
            headers["WebHook-Allowed-Origin"] = origin
            headers["WebHook-Allowed-Rate"] = "*"
        return Response(status_code=HTTPStatus.OK, headers=headers)

    # --- purges ---------------------------------------------------------------------

    async def purge(self, request: Request) -> Response:
        """POST /v1/purge: {"source": …, "surrogate_keys": […]}."""
        senders, body, headers, delivery = await self._proven(request, "purge")
        source = senders[0]
        try:
            value = _json(inflated(body, _encoding(headers), max_bytes=self._max_body))
            source = _named(value, senders)
        except BadEvent as exc:
            return taken(await self._set_aside(source, body, headers, exc))
        message = Message(value, headers=_kept(headers), raw=body)
        return taken(await self._intake.take(source, [message], delivery_id=delivery))

    async def purge_keys(self, request: Request) -> Response:
        """POST /service/<source>/purge[/<key>], as Fastly's API has it."""
        source = self._reachable(request.path_params["source"], of_format="purge")
        body, headers, delivery = await self._proven_of(request, source)
        key = request.path_params.get("key")
        keys = [key] if key else _surrogate_keys(body, headers)
        if not keys or len(keys) > MAX_SURROGATE_KEYS:
            return problem(
                HTTPStatus.BAD_REQUEST, f"1 to {MAX_SURROGATE_KEYS} surrogate keys"
            )
        value = {"surrogate_keys": keys, "soft": _soft(headers)}
        await self._take_value(source, value, headers, delivery)
        id_ = delivery or f"{self._clock.now_ms()}"
        if key:
            return Json({"status": "ok", "id": id_})
        return Json({each: f"{id_}-{index}" for index, each in enumerate(keys)})

    async def purge_all(self, request: Request) -> Response:
        """POST /service/<source>/purge_all, as Fastly's API has it."""
        source = self._reachable(request.path_params["source"], of_format="purge")
        _, headers, delivery = await self._proven_of(request, source)
        value = {"purge_everything": True, "soft": _soft(headers)}
        await self._take_value(source, value, headers, delivery)
        return Json({"status": "ok"})

    # --- deploy hooks ---------------------------------------------------------------

    async def hook(self, request: Request) -> Response:
        """POST /v1/hooks/<name>: kept for the work that a deploy asks for."""
        name = request.path_params["name"]
        auth = self._hooks.get(name)
        if auth is None:
            raise Refused(problem(HTTPStatus.NOT_FOUND, "there is no such hook"))
        body, headers = await self._read(request, name)
        delivery = self._verified(auth, headers, body, name)
        new = await self._hook_log.keep(
            name,
            body=_form_payload(body, headers),
            headers=_kept(headers),
            delivery_id=delivery,
        )
        self._signals.count("hooks_taken", name, "new" if new else "duplicate")
        return Json(
            {"accepted": int(new), "duplicate": int(not new)},
            status_code=HTTPStatus.ACCEPTED,
        )

    # --- who sends ------------------------------------------------------------------

    def _reachable(self, name: str, *, of_format: str | None = None) -> Source:
        source = self._sources.get(name)
        if (
            source is None
            or source.auth is None
            or of_format not in {None, source.format}
        ):
            raise Refused(problem(HTTPStatus.NOT_FOUND, "there is no such source"))
        return source

    async def _proven_of(
        self, request: Request, source: Source
    ) -> tuple[bytes, Headers, str]:
        body, headers = await self._read(request, source.name)
        if source.auth is None:
            raise AssertionError("a source without a signature is not reachable")
        return body, headers, self._verified(source.auth, headers, body, source.name)

    async def _proven(
        self, request: Request, of_format: str
    ) -> tuple[list[Source], bytes, Headers, str]:
        """Return the sources of this format whose secret the sender has, at least one."""
        body, headers = await self._read(request, "any")
        senders: list[Source] = []
        delivery, why = "", "missing"
        for source in self._sources.values():
            if source.format != of_format or source.auth is None:
                continue
            try:
                delivery = verify(
                    source.auth, headers, body, now_s=self._clock.now_ms() / 1000
                )
            except BadSignature as exc:
                why = str(exc)
            else:
                senders.append(source)
        if not senders:
            self._refuse_sender("any", why)
        return senders, body, headers, delivery

    def _verified(self, auth: Auth, headers: Headers, body: bytes, name: str) -> str:
        try:
            return verify(auth, headers, body, now_s=self._clock.now_ms() / 1000)
        except BadSignature as exc:
            self._refuse_sender(name, str(exc))
            raise

    def _refuse_sender(self, name: str, why: str) -> None:
        self._signals.count("requests_refused", name, why)
        raise Refused(
            problem(HTTPStatus.UNAUTHORIZED, "the sender is not proven")
        ) from None

    async def _read(self, request: Request, name: str) -> tuple[bytes, Headers]:
        """Return the body as it came, and the headers; of two of one name the first."""
        headers: dict[str, str] = {}
        for header, value in request.headers.items():
            headers.setdefault(header, value)
        if "fastly-key" in headers:
            headers.setdefault("authorization", f"Bearer {headers['fastly-key']}")
        try:
            body = await self._bodies.read(request)
        except TooLarge:
            self._signals.count("requests_refused", name, "too_large")
            raise Refused(
                problem(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"a body has up to {self._max_body} bytes",
                    headers={"Connection": "close"},
                )
            ) from None
        return body, headers

    # --- into the log ---------------------------------------------------------------

    async def _take(
        self, source: Source, body: bytes, headers: Headers, delivery: str
    ) -> Taken:
        try:
            messages = messages_of(
                body,
                _kept(headers),
                format_name=source.format,
                max_bytes=self._max_body,
            )
        except BadEvent as exc:
            return await self._set_aside(source, body, headers, exc)
        return await self._take_messages(source, messages, body, headers, delivery)

    async def _take_messages(
        self,
        source: Source,
        messages: Sequence[Message],
        body: bytes,
        headers: Headers,
        delivery: str,
    ) -> Taken:
        try:
            return await self._intake.take(source, messages, delivery_id=delivery)
        except BadEvent as exc:
            return await self._set_aside(source, body, headers, exc)

    async def _take_value(
        self, source: Source, value: object, headers: Headers, delivery: str
    ) -> Taken:
        message = Message(value, headers=_kept(headers))
        return await self._intake.take(source, [message], delivery_id=delivery)

    async def _set_aside(
        self, source: Source, body: bytes, headers: Headers, why: BadEvent
    ) -> Taken:
        return await self._intake.set_aside(
            source, body, _kept(headers), reason=str(why)
        )


def _by_source(
    messages: Sequence[Message], senders: Sequence[Source]
) -> Iterable[tuple[Source, list[Message]]]:
    """Group messages by their source; one of a source that is not the sender's is set aside.

    It is set aside as the first sender's: the format refuses an event of another source.
    """
    grouped: dict[str, list[Message]] = {}
    of_attribute = {source.cloudevents_source: source for source in senders}
    for message in messages:
        source = of_attribute.get(source_of(message.value), senders[0])
        grouped.setdefault(source.name, []).append(message)
    for source in senders:
        if source.name in grouped:
            yield source, grouped[source.name]


def _named(value: object, senders: Sequence[Source]) -> Source:
    name = value.get("source") if isinstance(value, dict) else None
    if name is None and len(senders) == 1:
        return senders[0]
    for source in senders:
        if source.name == name:
            return source
    raise BadEvent("source: is missing, or none that the sender may purge")


def _json(body: bytes) -> object:
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise BadEvent(f"body: not JSON: {exc}") from None
    return value


def _surrogate_keys(body: bytes, headers: Headers) -> list[str]:
    """Return the keys of the header, else of the body; none where they are not texts."""
    keys: object = headers.get("surrogate-key", "").split()
    if not keys and body:
        try:
            value = _json(body)
        except BadEvent:
            return []
        keys = value.get("surrogate_keys") if isinstance(value, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return []
    return [key for key in keys if key]


def _soft(headers: Headers) -> bool:
    return headers.get("fastly-soft-purge") == "1"


def _encoding(headers: Headers) -> str:
    return headers.get("content-encoding", "")


def _kept(headers: Headers) -> Headers:
    """Return the headers that may be read and kept: no secret, and a bound of all.

    Beyond it the largest go: an event's attributes are small, what proxies add is not.
    """
    kept: dict[str, str] = {}
    left = _MAX_HEADERS_BYTES
    for name, value in sorted(headers.items(), key=_size):
        if name in _SECRET_HEADERS:
            continue
        left -= _size((name, value))
        if left < 0:
            break
        kept[name] = value
    return kept


def _size(header: tuple[str, str]) -> int:
    return len(header[0]) + len(header[1])


def _form_payload(body: bytes, headers: Headers) -> bytes:
    """Return the JSON of a hook; GitHub may send it as a form's field."""
    if not headers.get("content-type", "").startswith(
        "application/x-www-form-urlencoded"
    ):
        return body
    try:
        fields = parse_qs(body.decode(), max_num_fields=10)
    except ValueError:
        return body
    return fields.get("payload", [""])[0].encode() or body


def _sum(one: Taken, other: Taken) -> Taken:
    return Taken(
        one.accepted + other.accepted,
        one.duplicate + other.duplicate,
        one.ignored + other.ignored,
        one.dead + other.dead,
    )
