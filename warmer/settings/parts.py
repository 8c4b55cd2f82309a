"""What can be set: every field with its unit, its default, and the reason for both.

Values only. What has to agree between fields (a part that no entity binds, an origin
that is not there) is asked in `warmer.model.dataset_config`, which knows templates.
"""

import json
import re
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    SecretStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from warmer.settings.units import Duration, Size, Spread, Whole

Places = dict[tuple[str, ...], str]
"""Where each value was read, by its path: `warmer.toml:12`, `WARMER_CACHE__URL` …"""


class Part(BaseModel):
    """One table of the file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def _seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def _name(text: str) -> str:
    # Names become metric labels, and words of environment variables.
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", text) or len(text) > 64:  # noqa: PLR2004
        raise PydanticCustomError(
            "name", "a name is up to 64 of a-z, 0-9, single _ or -, a letter first"
        )
    return text


def _redis_url(url: SecretStr) -> SecretStr:
    scheme, found, rest = url.get_secret_value().partition("://")
    if not found or not rest or scheme not in {"redis", "rediss", "unix"}:
        raise PydanticCustomError(
            "redis_url", "allowed are redis://, rediss:// (TLS) and unix:// addresses"
        )
    return url


def _base_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url):
        raise PydanticCustomError(
            "base_url",
            "allowed is http:// or https://, host and path; no query and no "
            "user:password@ (that is a header)",
        )
    return url


def _header(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise PydanticCustomError("header", "is no name of an HTTP header")
    return name


def _header_value(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value.get_secret_value()):
        raise PydanticCustomError("header_value", "must be printable ASCII, one line")
    return value


def _signing_secret(value: SecretStr) -> SecretStr:
    """Refuse what is no secret: whoever signs with an empty key would be let in."""
    if not value.get_secret_value().removeprefix("whsec_").strip("= \t\r\n"):
        raise PydanticCustomError("secret", "a secret is empty")
    return value


def _reserve(spread: Spread) -> Spread:
    if spread.amount:
        raise PydanticCustomError("reserve", "allowed are 0% … 50%")
    return spread


def _lease_name(template: str) -> str:
    # `warmer.store.keyspace.Keyspace` asks the same; here the file can be named.
    rest = re.sub(r"\{(plain_)?key\}", "", template, count=1)
    if rest == template or not rest or re.search(r"[{}]", rest):
        raise PydanticCustomError(
            "lease_name",
            "must hold {name} once, something besides, and no other braces",
            {"name": "{key} or {plain_key}"},
        )
    return template


def _sentinel(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65_536):  # noqa: PLR2004
        raise PydanticCustomError("sentinel", "a sentinel is host:port")
    return address


def _listen(address: str) -> str:
    if address.startswith("unix:/"):
        return address
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 65_536):  # noqa: PLR2004
        raise PydanticCustomError("listen", "allowed are host:port and unix:/path")
    return address


def _sentry_dsn(dsn: SecretStr) -> SecretStr:
    if not re.fullmatch(r"https?://[^\s@]+@[^\s/]+/.*\d+", dsn.get_secret_value()):
        raise PydanticCustomError(
            "dsn", "a DSN is https://KEY@HOST/PROJECT, as Sentry shows it"
        )
    return dsn


Name = Annotated[str, AfterValidator(_name)]
RedisUrl = Annotated[SecretStr, AfterValidator(_redis_url)]


class Server(Part):
    """A Redis or Valkey server: one address, or a set of sentinels that know it."""

    url: RedisUrl | None = None
    """`redis://host:6379/0`, `rediss://` for TLS, `unix:///path`. Not with sentinels."""
    username: str | None = None
    """ACL user. Default: the server's `default` user."""
    password: SecretStr | None = None
    """Best from a credential (`warmer_cache__password`), so that the file holds no secret."""
    database: Annotated[int, Whole(0, 15)] | None = None
    """Logical database. Default: what the URL names, else 0, the only one in Cluster."""
    sentinels: tuple[Annotated[str, AfterValidator(_sentinel)], ...] = ()
    """`["host:26379", …]`: asked for the primary, instead of `url`."""
    sentinel_service: str | None = None
    """The name under which the sentinels know the primary."""
    sentinel_username: str | None = None
    """ACL user at the sentinels, where they have users of their own."""
    sentinel_password: SecretStr | None = None
    """Best from a credential (`warmer_cache__sentinel_password`)."""
    tls: bool = False
    """TLS, as `rediss://` says it. The certificate and its host name are checked."""
    tls_ca_file: str | None = None
    """PEM file of the authority that signs the server. Default: the system's."""
    tls_cert_file: str | None = None
    """PEM file of this client's certificate, where the server asks for one."""
    tls_key_file: str | None = None
    """PEM file of its key."""
    timeout: Annotated[timedelta, Duration("1ms", "60s")] = _seconds(2)
    """One command."""
    max_connections: Annotated[int, Whole(2, 1024)] = 32
    """Connections of one process. Default 32: reads share lanes, so that few are used."""

    @property
    def named(self) -> bool:
        """True if an address or sentinels are given."""
        return self.url is not None or bool(self.sentinels)

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if self.url is not None and self.sentinels:
            raise PydanticCustomError("address", "takes url or sentinels, not both")
        if bool(self.sentinels) != (self.sentinel_service is not None):
            raise PydanticCustomError(
                "address", "takes sentinels and sentinel_service together"
            )
        return self


class Cache(Server):
    """The cache server: entries, leases and guards. It may evict."""

    lease_name: Annotated[str, AfterValidator(_lease_name)] = "lock:{key}"
    """Name of a key's lease. Default `lock:{key}`; request paths that already use leases
    keep their names: `{key}` is the key as hash tag, `{plain_key}` the bare key."""
    timeout: Annotated[timedelta, Duration("1ms", "10s")] = _seconds(0.1)
    """One command on the request path. Default 100ms: a cache that is slower than that
    costs more than it saves, and callers go past it."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        if not self.named:
            raise PydanticCustomError("address", "needs url, or sentinels")
        return self


class Control(Server):
    """The control server: event log, due set, job queue, dead letters. It must not evict."""

    timeout: Annotated[timedelta, Duration("10ms", "60s")] = _seconds(2)
    """One command. Default 2s: nobody waits for it, and a failover takes about that."""


class Origin(Part):
    """An HTTP service that computes values."""

    base_url: Annotated[str, AfterValidator(_base_url)]
    """What a dataset's `path` is appended to: `https://shop.internal/api`."""
    headers: dict[
        Annotated[str, AfterValidator(_header)],
        Annotated[SecretStr, AfterValidator(_header_value)],
    ] = Field(default_factory=dict)
    """Sent with every load. A value may end in `env:NAME` or `credential:NAME`, e.g.
    `Authorization = "Bearer credential:shop_token"`; secrets do not stand in the file."""
    local_limit: Annotated[int, Whole(1, 1024)] = 8
    """Loads that one process runs at once. Default 8: what a small service bears from
    each of a handful of workers. With `limit`, only while the control server is away."""
    limit: Annotated[int, Whole(1, 65_536)] | None = None
    """Loads that all processes together run at once, shared out by the control server.
    Default: none; then only `local_limit` holds."""
    limit_floor: Annotated[int, Whole(1, 65_536)] | None = None
    """What the limit is never brought down below. Default: an eighth of it."""
    adaptive: bool = True
    """Lower the limit while loads are slow or pushed back (429, 503, timeouts), and raise it
    again slowly. Default true, where there is a limit."""
    reserve: Annotated[Spread, AfterValidator(_reserve)] = Spread(ratio=0.2)
    """How much of the limit only requests may use: `20%`. Default 20%: a campaign that has
    the rest leaves that to whoever waits."""
    rate: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """Loads that all processes together begin in a second. Default: any number."""
    local_queue: Annotated[int, Whole(0, 100_000)] = 256
    """Loads that may wait for their turn; more are refused. Default 256: at 8 at once and
    50 ms each the last waits under 2s."""
    connect_timeout: Annotated[timedelta, Duration("1ms", "60s")] = _seconds(1)
    """Default 1s: a host that is there answers in one round trip, or one lost packet more."""
    read_timeout: Annotated[timedelta, Duration("1ms", "10m")] = _seconds(5)
    """Longest silence while the answer arrives. Default 5s; `load_timeout` of the dataset
    bounds the whole."""
    max_bytes: Annotated[int, Size("1KiB", "64MiB")] = 8 * 2**20
    """Largest answer, inflated. Default 8MiB: more is a mistake, not a cache entry."""
    allow_redirects: bool = False
    """Follow redirects within the origin's own host. Default false: a redirect to a login
    page would be cached as the value."""
    allow_private: bool = False
    """Store answers that the origin marks as one caller's own (Set-Cookie, Cache-Control:
    private or no-store). Default false: everybody would be given them."""

    @model_validator(mode="after")
    def _of_a_limit(self) -> Self:
        if self.limit is None and (self.limit_floor or self.rate):
            raise PydanticCustomError("limit", "limit_floor and rate need a limit")
        if self.limit_floor and self.limit and self.limit_floor > self.limit:
            raise PydanticCustomError("limit", "limit_floor allowed are 1 … limit")
        return self


class LoaderVersion(Part):
    """What version a load reports, and where its answer has it."""

    means: Literal["none", "entity", "position"] = "none"
    """`entity`: the version of one entity, e.g. its row's version column. `position`: a
    position of the source, taken from the data's own snapshot or before it. Default none:
    then an invalidation during a load makes that load not current."""
    source: str = ""
    """Which source the version belongs to. Versions compare only within one."""
    entity: str = ""
    """For `entity`: whose version it is, by the key's parts: `product:{id}`."""
    header: str | None = None
    """The answer's header that holds it: `X-Version`."""
    pointer: str | None = None
    """The place in the JSON answer that holds it (RFC 6901): `/version`."""


_Window = Annotated[timedelta, Duration("0", "366d")]


class Dataset(Part):
    """A family of keys with one template, one policy, one origin."""

    key: str
    """Template of the key: `product:v{schema}:{locale}:{id}`. `{schema}` must be there."""
    schema_version: Annotated[int, Whole(0, 2**32 - 1)] = 1
    """Version of the representation; raise it when old values cannot be read any more."""
    live_schemas: tuple[Annotated[int, Whole(0, 2**32 - 1)], ...] = ()
    """Schema versions that invalidations reach. Default: the current one. Keep the last
    release's here while it still runs."""
    vary: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Values of the parts that an entity does not bind: `{ locale = ["de", "en"] }`."""
    entities: tuple[str, ...] = ()
    """What its values are built from: `["shop-db/product:{id}"]`. Names that are parts of
    the key bind them, other names match anything."""
    origin: str | None = None
    """The origin that workers and clients load from. Default: none; callers bring a loader."""
    path: str | None = None
    """Path at the origin, by parts: `/products/{id}?locale={locale}`."""
    fresh_for: Annotated[timedelta, Duration("1ms", "366d")]
    """How long a value is served without a look at the origin. No default: only the
    owner of the data knows."""
    stale_for: _Window = _seconds(0)
    """How long after that an old value is served while one caller refreshes. Default 0:
    never, as for authorisation and money."""
    stale_if_error_for: _Window = _seconds(0)
    """How long after `fresh_for` an old value is served because the origin failed.
    Default 0: never; otherwise not shorter than `stale_for`."""
    negative_for: _Window = _seconds(0)
    """How long "there is none" is kept. Default 0: not at all."""
    lease_for: Annotated[timedelta, Duration("1s", "10m")] = _seconds(10)
    """How long a refresher that died keeps its key from others. Default 10s: its
    `load_timeout` and a second for the steps around the load; renewed while it loads."""
    load_timeout: Annotated[timedelta, Duration("1ms", "9m")] = _seconds(5)
    """A whole load, all attempts and waits for a turn included. Default 5s."""
    settle_for: Annotated[timedelta, Duration("0", "1h")] = _seconds(2)
    """How long after an invalidation a load without a version is not trusted, because a
    replica may lag. Default 2s; 0 where the origin reads its primary."""
    reorder_for: Annotated[timedelta, Duration("1s", "7d")] = _seconds(600)
    """How late an event may come and still be told from a newer one. Default 10m: longer
    than producers retry."""
    jitter: Spread = Spread(ratio=0.1)
    """Spread of `fresh_for`, so that what was loaded together does not end together:
    `10%` or `5s`. Default 10%."""
    early_refresh_beta: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    """Refresh before the end with growing probability (XFetch); 1 is the usual choice.
    Default 0: off, because a stale window does the same for callers."""
    cold_start: Literal["wait", "empty", "load"] = "wait"
    """No value at all and another is loading: `wait` for it within the deadline, answer
    `empty` at once, or `load` besides within the local limit. Default wait."""
    empty: JsonValue = None
    """The answer for `cold_start = "empty"`: `[]`, `{}`, `""` …"""
    purge: Literal["soft", "hard"] = "soft"
    """What an invalidation does: make stale, or remove. Default soft: callers keep an
    answer while the change is loaded."""
    refresh_on: Literal["cached", "all", "none"] = "cached"
    """Which keys of a changed entity are refreshed before anyone asks. Default cached:
    those that had an entry. Without an origin none are: only callers can load them."""
    compress_above: Annotated[int, Size("0", "64MiB")] = 1024
    """Bodies above this are stored with zstd. Default 1KiB: below it nothing is saved.
    64MiB is the largest body there is: never."""
    max_body: Annotated[int, Size("1", "64MiB")] = 8 * 2**20
    """Largest body, inflated; a larger one is refused. Default 8MiB."""
    max_waiters: Annotated[int, Whole(1, 100_000)] = 1000
    """Callers of one process that may wait for one key; more get the cold-start answer.
    Default 1000."""
    limit: Annotated[int, Whole(1, 65_536)] | None = None
    """Loads of this dataset that all processes together run at once. Default: the origin's
    limit alone."""
    tenant: str | None = None
    """The part of the key that says whose load it is. Tenants take turns, however much one
    of them asks. Default: none."""
    tenant_limit: Annotated[int, Whole(1, 65_536)] | None = None
    """Loads of one tenant that all processes together run at once. Default: no limit."""
    version: LoaderVersion = LoaderVersion()
    """What version a load reports."""


class Signed(Part):
    """Who may send, and how a sender proves it."""

    signature: (
        Literal[
            "standard-webhooks",
            "github",
            "gitlab",
            "stripe",
            "hmac-sha256",
            "bearer",
            "none",
        ]
        | None
    ) = None
    """How requests are signed. Default: none is accepted over HTTP. `none` takes them from
    whoever can reach the port: for a proxy that has checked them."""
    secrets: tuple[Annotated[SecretStr, AfterValidator(_signing_secret)], ...] = ()
    """`env:NAME` or `credential:NAME` each; any of them will do, so that old and new both
    hold while they are exchanged. Secrets do not stand in the file."""
    tolerance: Annotated[timedelta, Duration("1s", "1d")] = _seconds(300)
    """How old, and how far ahead, a signed timestamp may be. Default 5m."""

    @model_validator(mode="after")
    def _with_secrets(self) -> Self:
        if self.signature in {None, "none"}:
            if self.secrets:
                raise PydanticCustomError("signature", "secrets need a signature")
        elif not self.secrets:
            raise PydanticCustomError("signature", "needs secrets")
        return self


class SourceTable(Part):
    """How the rows of one table become entities."""

    entities: tuple[str, ...] | None = None
    """Templates over the row's columns and `{db}`, `{schema}`, `{table}`, `{key}`:
    `["order:{order_id}"]`. `[]` ignores the table. Default: as `entities` of the source."""
    key: tuple[str, ...] = ()
    """Columns of the row's key, in order, for messages that do not bring it."""
    version_fields: tuple[str, ...] | None = None
    """As `version_fields` of the source, which they need. Say them where several rows make one
    entity only if they rise over all of its rows. Default: the source's where an entity is one
    row, else none: every event applies."""


class SourceStream(Server):
    """Redis streams that a worker reads: what Debezium Server's Redis sink writes."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    """Keys of the streams: `["shop.public.product"]`."""
    group: str = "warmer"
    """The consumer group that workers share."""
    trim: bool = True
    """Remove what every consumer group has done with. Default true: the sink never trims,
    and halts when its server is full."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        if not self.named:
            raise PydanticCustomError("address", "needs url, or sentinels")
        return self


class Source(Signed):
    """Where invalidations come from: a database's change capture, a service, a purge API."""

    format: Literal[
        "canal",
        "cloudevents",
        "cockroachdb",
        "debezium",
        "debezium-cloudevents",
        "debezium-flattened",
        "debezium-outbox",
        "dms",
        "maxwell",
        "plain",
        "purge",
        "sequin",
        "wal2json",
    ]
    """What its messages look like."""
    order: Literal["row", "commit", "none"] | None = None
    """Which version counts: `row`, the change's own, orders one row; `commit`, of the
    transaction, is needed where several rows make one entity; `none` applies every event.
    Default: `commit` if a table has entities of its own or `entities` have no `{key}`, else
    `row`."""
    snapshot: Literal["ignore", "warm", "invalidate"] = "warm"
    """What rows of a snapshot or backfill do. Default warm: load what is not fresh. They
    never make a later change look old."""
    before: Literal["key", "full"] | None = None
    """How much of a row's former state is true: `full` for REPLICA IDENTITY FULL. Default:
    what the format knows; PostgreSQL tells the key only."""
    entities: tuple[str, ...] = ("{table}:{key}",)
    """Templates for tables that are not listed. `[]` ignores them."""
    key: tuple[str, ...] = ()
    """Columns of the key, for tables that are not listed and messages that bring none."""
    tables: dict[str, SourceTable] = Field(default_factory=dict)
    """Tables with rules of their own, by name: `product`, `public.product`, `shop.product`."""
    version_fields: tuple[str, ...] = ()
    """Columns (or fields, in formats without rows) that make the version, most significant
    first, in place of the log's position: `["version"]`. Best where the origin reports the
    same number with each load: a load that holds the change is then known at once."""
    key_header: str = ""
    """Header that brings the record's key, for sinks that send none in the body."""
    cloudevents_source: str = ""
    """For cloudevents: the `source` attribute of its events, at `POST /v1/events`."""
    dedupe_for: Annotated[timedelta, Duration("0", "1d")] = _seconds(600)
    """How long a delivery that comes again is known again. Default 10m; 0 never."""
    regression_after: Annotated[timedelta, Duration("1s", "1d")] = _seconds(60)
    """A lower version whose commit is newer by this is applied: the source's log began
    again. Default 60s: longer than transactions run."""
    regression_entities: Annotated[int, Whole(1, 1000)] = 5
    """Distinct entities that did so before it is reported. Default 5."""
    on_regression: Literal["report", "open_epoch"] = "report"
    """What then follows. `open_epoch` makes every older version count for nothing."""
    stream: SourceStream | None = None
    """Redis streams that workers read it from."""


class Hook(Signed):
    """A deploy hook: `POST /v1/hooks/NAME`."""


class Serve(Part):
    """`warmer serve`: takes events, purges and hooks over HTTP."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:9400"
    """`host:port`, or `unix:/path`. Default 127.0.0.1:9400: TLS is the proxy's in front."""
    max_body: Annotated[int, Size("1KiB", "64MiB")] = 2**20
    """Largest body, as sent and inflated. Default 1MiB."""
    max_head: Annotated[int, Size("1KiB", "1MiB")] = 16 * 2**10
    """Largest head of a request. Default 16KiB."""
    head_timeout: Annotated[timedelta, Duration("100ms", "5m")] = _seconds(10)
    """How long a head may take to arrive. Default 10s."""
    body_timeout: Annotated[timedelta, Duration("100ms", "10m")] = _seconds(30)
    """How long a body may take to arrive. Default 30s."""
    max_requests: Annotated[int, Whole(1, 100_000)] = 1_000
    """Requests at once; more are answered 503. Default 1000."""
    max_backlog: Annotated[int, Whole(1, 1_000_000_000)] = 1_000_000
    """Events that may wait in the log; more are answered 503. Default 1000000: a minute's
    work of a worker."""
    retry_after: Annotated[timedelta, Duration("1s", "1h")] = _seconds(5)
    """What a 503 says. Default 5s."""
    drain_timeout: Annotated[timedelta, Duration("1s", "10m")] = _seconds(10)
    """After SIGTERM: how long running requests may take. Default 10s."""


class Worker(Part):
    """`warmer worker`: reads the event log, refreshes due keys."""

    concurrency: Annotated[int, Whole(1, 1024)] = 64
    """Refreshes that one process runs at once. Default 64; each origin's own limit holds
    below it."""
    batch: Annotated[int, Whole(1, 1000)] = 100
    """Events, and due keys, taken at once. Default 100: more gains nothing."""
    lanes: tuple[Literal["now", "warm"], ...] = ("now", "warm")
    """Which lanes of the due set it serves. Default both, `now` first."""
    max_tries: Annotated[int, Whole(1, 100)] = 10
    """Attempts before a key or an event becomes a dead letter. Default 10: about ten
    minutes with the back-off below."""
    retry_base: Annotated[timedelta, Duration("10ms", "1m")] = _seconds(0.5)
    """First back-off, doubled with each failure, at random below that. Default 500ms."""
    retry_cap: Annotated[timedelta, Duration("100ms", "1h")] = _seconds(120)
    """Longest back-off. Default 120s."""
    drain_timeout: Annotated[timedelta, Duration("1s", "1h")] = _seconds(60)
    """After SIGTERM: how long running refreshes may take to finish before they are handed
    back. Default 60s; the unit's TimeoutStopSec is 90s."""
    event_log_for: Annotated[timedelta, Duration("1m", "366d")] = _seconds(7 * 86_400)
    """How long the event log is kept for replay. Default 7d."""
    event_log_max: Annotated[int, Whole(1_000, 1_000_000_000)] = 1_000_000
    """Events that the log keeps for replay, however young; those not yet applied stay in
    any case. Default 1000000: some 300 MB."""


class Client(Part):
    """`CacheClient` in request paths."""

    deadline: Annotated[timedelta, Duration("1ms", "10m")] = _seconds(1)
    """For calls that give none. Default 1s: longer, and a caller's own caller has gone. A
    load that takes longer is finished behind and stored."""
    max_local_loads: Annotated[int, Whole(1, 1024)] = 16
    """Loads that one process runs at once, all datasets together. Default 16."""


class Sentry(Part):
    """Error reports. Off while there is no DSN."""

    dsn: Annotated[SecretStr, AfterValidator(_sentry_dsn)] | None = None
    """Best from a credential: `warmer_sentry__dsn`."""
    environment: str = "production"
    """Shown with every report."""
    release: str | None = None
    """Default: `warmer@` and the version of this package."""


class Settings(Part):
    """All of it, checked. `warmer.settings.load_settings` makes one."""

    cache: Cache
    """The cache server: entries, leases, guards."""
    control: Control = Control()
    """The control server: event log, due set, queue. Default: the cache server, which suits
    development only: it may evict, and what stands here must not be lost."""
    origins: dict[Name, Origin] = Field(default_factory=dict)
    """The services that values are loaded from, by name."""
    datasets: dict[Name, Dataset] = Field(default_factory=dict)
    """The families of keys, by name."""
    sources: dict[Name, Source] = Field(default_factory=dict)
    """Where invalidations come from, by name: what datasets call them in `entities`."""
    hooks: dict[Name, Hook] = Field(default_factory=dict)
    """Deploy hooks, by name."""
    serve: Serve = Serve()
    """`warmer serve`."""
    worker: Worker = Worker()
    """`warmer worker`."""
    client: Client = Client()
    """`CacheClient`."""
    sentry: Sentry = Sentry()
    """Error reports."""

    _places: Places = PrivateAttr(default_factory=dict)

    @property
    def places(self) -> Places:
        """Where each value was read; what is not there is a default."""
        return self._places


def dotted(path: tuple[str, ...]) -> str:
    """Return a path as TOML writes it: `sources.shop-db.tables."public.product"`."""
    return ".".join(
        name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
        for name in path
    )


def nearest(places: Places, path: tuple[str, ...]) -> str:
    """Return the place of the longest known beginning of `path`."""
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return places[path[:length]]
    return places.get((), "the call")
