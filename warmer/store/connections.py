"""Connections to a cache or control server: addresses, TLS, retries, Sentinel.

Holds: a connection that a restart or a failover broke is made again within the call that
meets it, for up to half of the call's timeout; a demoted primary is left as soon as it
refuses a write. Replies are bytes always.
Does not hold: that a command is carried out once. All that this package sends may be
repeated.

No secret stands in a repr or an error message. There is no socket timeout: one timeout per
exchange costs 30 to 50 % less CPU, and the exchange closes a connection it gives up.
"""

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import EqualJitterBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

from warmer.errors import (
    ConfigError,
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)

_RETRY_BASE_MS, _RETRY_CAP_MS = 10, 1_000

# What a script may not do is no NOPERM to the server: Valkey's words, and Redis's.
_NOPERM_IN_SCRIPT = (
    "ACL failure in script",
    "The user executing the script can't",
)
# redis-py takes these words off the message when it makes the error.
_CODES: dict[type[Exception], str] = {
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    NoPermissionError: "NOPERM",
    NoScriptError: "NOSCRIPT",
}

_QUOTED = " of pipeline caused error: "


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how to reach it.

    Either `url` (redis://, rediss:// or unix://; user and password percent-encoded), or
    `sentinels` with the name of the service they watch. `username`, `password`, `db` and
    `tls` complete or override what the URL says.
    """

    url: str | None = None
    sentinels: tuple[tuple[str, int], ...] = ()
    sentinel_service: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    db: int | None = None
    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    timeout_ms: int = 100

    @override
    def __repr__(self) -> str:
        """Return what may be logged."""
        where = redacted(self.url) if self.url else self.sentinel_service
        return f"Endpoint({where!r}, sentinels={self.sentinels!r}, timeout_ms={self.timeout_ms})"

    def __post_init__(self) -> None:
        """Refuse what names no server, or two."""
        if bool(self.url) == bool(self.sentinels):
            raise ConfigError("an endpoint has a url or sentinels, and not both")
        if self.sentinels and not self.sentinel_service:
            raise ConfigError("sentinel_service: the sentinels need a service to name")


def redacted(url: str) -> str:
    """Return `url` without its user's password, and without options, which may hold one."""
    return re.sub(r"\?.*", "", re.sub(r"(?<=://)([^/@:]*):.*@", r"\1:***@", url))


def connect(endpoint: Endpoint, *, max_connections: int = 32) -> Redis:
    """Return a client; nothing is sent yet. Its `aclose` closes all it opened."""
    options: dict[str, Any] = {
        "max_connections": max_connections,
        "decode_responses": False,
        "protocol": 2,
        "socket_connect_timeout": max(1.0, endpoint.timeout_ms / 1000),
        "retry": _retry(endpoint.timeout_ms),
        "retry_on_error": [RedisConnectionError, RedisTimeoutError, BusyLoadingError],
    }
    named = {
        "username": endpoint.username,
        "password": endpoint.password,
        "db": endpoint.db,
    }
    options |= {name: value for name, value in named.items() if value is not None}
    client = (
        _connect_by_sentinel(endpoint, options)
        if endpoint.sentinels
        else _connect_by_url(endpoint, options)
    )
    pool = client.connection_pool
    pool.connection_class = _packing(pool.connection_class)
    return client


def _connect_by_url(endpoint: Endpoint, options: dict[str, Any]) -> Redis:
    url = endpoint.url or ""
    if not url.startswith("unix://"):
        options["socket_keepalive"] = True
    if endpoint.tls and url.startswith("redis://"):
        url = "rediss://" + url.removeprefix("redis://")
    if url.startswith("rediss://"):
        options |= _tls(endpoint)
    client: Redis = Redis.from_url(url, **options)
    # A URL's own options win over ours in redis-py; these two are not for choosing.
    client.connection_pool.connection_kwargs |= {
        "decode_responses": False,
        "protocol": 2,
    }
    return client


class _Packing:
    """Lays commands out in C: redis-py's own way is a third of what a script call costs."""

    def pack_command(self, *args: Any) -> list[bytes]:
        name, *rest = args
        # redis-py writes two words, such as CONFIG GET, as one argument.
        words = name.encode() if isinstance(name, str) else name
        return [hiredis.pack_command((*words.split(), *rest))]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        return [b"".join(self.pack_command(*each)[0] for each in commands)]


def _packing(made_by: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return that class of connections with its commands laid out in C."""
    return type(made_by.__name__, (_Packing, made_by), {})


def leave(redis: Redis) -> None:
    """Cut all connections; each is made again at its next use, to where the name leads then.

    Cut, not closed: `disconnect` on a connection that somebody reads from makes redis-py
    fail in ways that are no connection errors.
    """
    # redis-py 5 has no public way.
    pool = redis.connection_pool
    for connection in (*pool._available_connections, *pool._in_use_connections):  # noqa: SLF001
        if connection._writer is not None:  # noqa: SLF001
            connection._writer.transport.abort()  # noqa: SLF001
    for connection in pool._available_connections:  # noqa: SLF001
        # Nobody reads from it who would notice, and CPython 3.13 writes to a lost transport
        # with an AttributeError.
        connection._reader = connection._writer = None  # noqa: SLF001


def translated(error: Exception) -> StoreError:
    """Return what `error`, of redis-py or asyncio, is to the rest of this package."""
    match error:
        case StoreError():
            return error
        case TimeoutError() | RedisTimeoutError():
            return StoreTimeout(str(error) or "no reply in time")
        case AuthenticationError() | AuthorizationError():
            return StoreRefused("NOAUTH", _said(error))
        case ResponseError():
            return _refused(error)
        case _:
            return StoreUnavailable(f"{type(error).__name__}: {error}")


def _refused(error: ResponseError) -> StoreRefused:
    code, said = _CODES.get(type(error)), _said(error)
    if code is not None:
        return StoreRefused(code, said)
    if said.startswith(_NOPERM_IN_SCRIPT):
        return StoreRefused("NOPERM", said)
    word, _, rest = said.partition(" ")
    return StoreRefused(word, rest) if word.isupper() else StoreRefused("ERR", said)


def _said(error: Exception) -> str:
    """Return what the server said, without the command that redis-py quotes.

    A pipeline's error holds all its arguments: events, keys, bodies.
    """
    _, quoted, said = str(error).rpartition(_QUOTED)
    return said.removeprefix("(").removesuffix(",)").strip("'\"") if quoted else said


def _retry(timeout_ms: int) -> Retry:
    """Return as many retries as fit into half of the timeout.

    The other half is for the reply: a server that refuses connections is then reported as
    that, and not as a slow one.
    """
    retries, spent_ms = 1, _RETRY_BASE_MS
    while spent_ms < timeout_ms / 2:
        spent_ms += min(_RETRY_CAP_MS, _RETRY_BASE_MS * 2**retries)
        retries += 1
    backoff = EqualJitterBackoff(cap=_RETRY_CAP_MS / 1000, base=_RETRY_BASE_MS / 1000)
    return Retry(backoff, retries)


def _tls(endpoint: Endpoint) -> dict[str, Any]:
    """Return TLS options: the certificate is checked, and that it is this host's."""
    named = {
        "ssl_ca_certs": endpoint.tls_ca_file,
        "ssl_certfile": endpoint.tls_cert_file,
        "ssl_keyfile": endpoint.tls_key_file,
    }
    given = {name: value for name, value in named.items() if value is not None}
    return {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **given}


# --- Sentinel -------------------------------------------------------------------------


def _connect_by_sentinel(endpoint: Endpoint, options: dict[str, Any]) -> Redis:
    tls = {"ssl": True, **_tls(endpoint)} if endpoint.tls else {}
    credentials = {
        "username": endpoint.sentinel_username,
        "password": endpoint.sentinel_password,
    }
    # All of them, and the primary, within the time of one call.
    share_s = endpoint.timeout_ms / 1000 / (len(endpoint.sentinels) + 1)
    sentinel = Sentinel([])  # type: ignore[no-untyped-call]
    sentinel.sentinels = [
        _SentinelClient(
            share_s,
            host=host,
            port=port,
            max_connections=options["max_connections"],
            **{name: value for name, value in credentials.items() if value is not None},
            **tls,
        )
        for host, port in endpoint.sentinels
    ]
    client: Redis = sentinel.master_for(
        endpoint.sentinel_service or "",
        redis_class=_PrimaryClient,
        socket_keepalive=True,
        **options,
        **tls,
    )
    return client


class _SentinelClient(Redis):
    """A sentinel, which is given up in time for the next one to be asked.

    Not by redis-py's `socket_timeout`: before Python 3.12 that loses a cancellation which
    arrives together with the reply.
    """

    def __init__(self, timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s

    @override
    async def sentinel_masters(self) -> Any:
        """Return what it knows; raises redis-py's TimeoutError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await super().sentinel_masters()  # type: ignore[no-untyped-call]
        except TimeoutError as exc:
            raise RedisTimeoutError("no reply from a sentinel") from exc


class _PrimaryClient(Redis):
    """A client that closes its connections to the sentinels too."""

    @override
    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close everything."""
        await super().aclose(close_connection_pool)
        pool = self.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.aclose()
