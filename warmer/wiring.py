"""Everything a process needs, built from its configuration and closed in reverse.

Holds: what was opened is closed, in reverse, however the block ends; closing goes on
after an error. What no dataset needs is not imported: no HTTP client without an origin.
Does not hold: that a server is there. Nothing is sent before the first use.
"""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from warmer.client import CacheClient
from warmer.clock import Clock, SystemClock
from warmer.errors import ConfigError
from warmer.invalidate import Invalidator
from warmer.model.dataset import Dataset, Datasets
from warmer.model.dataset_config import (
    Configuration,
    configure,
    datasets_of,
    sources_of,
)
from warmer.model.due import Lane
from warmer.model.job import QueuedJob
from warmer.model.permit import TTL_MS, Errand, OriginLimits, Pool
from warmer.model.source import Auth, Sources
from warmer.model.source_config import auth_of
from warmer.origin.target import OriginTarget
from warmer.policy.shares import reserve_of
from warmer.refresh import Load, LoadOf, Refresher
from warmer.settings import Server, Settings, milliseconds
from warmer.signals import Counters, Signals
from warmer.store.connections import Endpoint, connect
from warmer.store.consumer_group import ConsumerGroup
from warmer.store.control import ControlServer
from warmer.store.control_link import ControlLink
from warmer.store.grouped_log import GroupedLog
from warmer.store.keyspace import Keyspace
from warmer.store.permits import Permits
from warmer.store.read_lane import ReadLane
from warmer.store.redis_store import RedisStore
from warmer.store.wakeups import Wakeups

if TYPE_CHECKING:
    from pydantic import SecretStr
    from redis.asyncio import Redis

    from warmer.dispatch import Jobs
    from warmer.origin.admission import Admission
    from warmer.origin.loader import Origin

Configured: TypeAlias = Configuration | Settings | str | Path | None
"""A configuration, its settings, the file they are in, or None for the usual file."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What `warmer worker` runs on.

    `arq_redis` is a client of the control server of its own, for `dispatch.arq_pool`.
    `streams` are those of the sources that are read from Redis, by the source's name.
    """

    settings: Settings
    datasets: Datasets
    sources: Sources
    streams: Mapping[str, ConsumerGroup]
    store: RedisStore
    refresher: Refresher
    invalidator: Invalidator
    control: ControlServer
    jobs: "Jobs"
    arq_redis: "Redis"
    clock: Clock
    random: random.Random
    signals: Signals


@dataclass(frozen=True, slots=True)
class DoorParts:
    """What `warmer serve` runs on. `hooks` are the deploy hooks, and who may send them."""

    settings: Settings
    sources: Sources
    hooks: Mapping[str, Auth]
    control: ControlServer
    log: GroupedLog
    clock: Clock
    signals: Signals


def configured(source: Configured) -> Configuration:
    """Return the configuration; raises ConfigError with every problem."""
    match source:
        case Configuration():
            return source
        case Settings():
            return Configuration(source, datasets_of(source), sources_of(source))
        case _:
            return configure(source)


@asynccontextmanager
async def open_client(
    source: Configured = None, *, signals: Signals | None = None
) -> AsyncIterator[CacheClient]:
    """Give a client that reads through the cache, and loads from the datasets' origins."""
    configuration = configured(source)
    clock, counts = SystemClock(), signals or Counters()
    datasets = configuration.datasets
    async with AsyncExitStack() as stack:
        load_of = await _open_origins(stack, configuration, clock, counts)
        store = await stack.enter_async_context(
            open_store(configuration, clock=clock, signals=counts)
        )
        client = CacheClient(
            store=store,
            datasets=datasets,
            refresher=_refresher(store, datasets, load_of, counts),
            load_of=load_of,
            clock=clock,
            random=random.Random(),  # noqa: S311 - spreads instants
            signals=counts,
            max_local_loads=configuration.settings.client.max_local_loads,
            default_deadline=configuration.settings.client.deadline,
        )
        stack.push_async_callback(client.aclose)
        yield client


@asynccontextmanager
async def open_worker_parts(
    source: Configured = None, *, signals: Signals | None = None
) -> AsyncIterator[WorkerParts]:
    """Give what a worker runs on."""
    from warmer.dispatch import Jobs  # noqa: PLC0415 - arq, which readers do not need

    configuration = configured(source)
    clock, counts = SystemClock(), signals or Counters()
    datasets = configuration.datasets
    async with AsyncExitStack() as stack:
        load_of = await _open_origins(stack, configuration, clock, counts)
        store = await stack.enter_async_context(
            open_store(configuration, clock=clock, signals=counts)
        )
        control = await stack.enter_async_context(
            open_control(configuration, clock=clock)
        )
        arq_redis = _connect(stack, control_of(configuration.settings))
        yield WorkerParts(
            settings=configuration.settings,
            datasets=datasets,
            sources=configuration.sources,
            streams=_open_streams(stack, configuration.settings),
            store=store,
            refresher=_refresher(store, datasets, load_of, counts),
            invalidator=Invalidator(
                store=store,
                datasets=datasets,
                due=control.due,
                scans=control.scans,
                signals=counts,
            ),
            control=control,
            jobs=Jobs(clock),
            arq_redis=arq_redis,
            clock=clock,
            random=random.Random(),  # noqa: S311 - spreads instants
            signals=counts,
        )


@asynccontextmanager
async def open_door_parts(
    source: Configured = None, *, signals: Signals | None = None
) -> AsyncIterator[DoorParts]:
    """Give what a server runs on: the control server, and no other."""
    configuration = configured(source)
    clock = SystemClock()
    hooks = {
        name: auth
        for name, hook in configuration.settings.hooks.items()
        if (auth := auth_of(hook)) is not None
    }
    async with open_control(configuration, clock=clock) as control:
        yield DoorParts(
            settings=configuration.settings,
            sources=configuration.sources,
            hooks=hooks,
            control=control,
            log=GroupedLog(control.events),
            clock=clock,
            signals=signals or Counters(),
        )


@asynccontextmanager
async def open_store(
    configuration: Configuration, *, clock: Clock, signals: Signals
) -> AsyncIterator[RedisStore]:
    """Give the cache server."""
    cache = configuration.settings.cache
    timeout_ms = milliseconds(cache.timeout)
    async with AsyncExitStack() as stack:
        redis = _connect(stack, cache)
        lane = ReadLane(redis, timeout_ms=timeout_ms)
        stack.push_async_callback(lane.aclose)
        wakeups = Wakeups(redis, clock=clock)
        stack.push_async_callback(wakeups.aclose)
        store = RedisStore(
            redis,
            keyspace=Keyspace(cache.lease_name),
            lane=lane,
            wakeups=wakeups,
            clock=clock,
            signals=signals,
            timeout_ms=timeout_ms,
        )
        stack.push_async_callback(store.aclose)
        yield store


@asynccontextmanager
async def open_control(
    configuration: Configuration, *, clock: Clock
) -> AsyncIterator[ControlServer]:
    """Give the control server; it may be the cache server."""
    server = control_of(configuration.settings)
    async with AsyncExitStack() as stack:
        yield ControlServer(
            _connect(stack, server),
            drain_job=partial(_drain_job, clock),
            timeout_ms=milliseconds(configuration.settings.control.timeout),
            max_backlog=configuration.settings.serve.max_backlog,
        )


def control_of(settings: Settings) -> Server:
    """Return the control server's address: the cache server's where it has none."""
    return settings.control if settings.control.named else settings.cache


def endpoint_of(server: Server) -> Endpoint:
    """Return where a server is, as `store.connections` takes it."""
    hosts = (address.rpartition(":") for address in server.sentinels)
    return Endpoint(
        url=_revealed(server.url),
        sentinels=tuple((host.strip("[]"), int(port)) for host, _, port in hosts),
        sentinel_service=server.sentinel_service,
        username=server.username,
        password=_revealed(server.password),
        sentinel_username=server.sentinel_username,
        sentinel_password=_revealed(server.sentinel_password),
        db=server.database,
        tls=server.tls,
        tls_ca_file=server.tls_ca_file,
        tls_cert_file=server.tls_cert_file,
        tls_key_file=server.tls_key_file,
        timeout_ms=milliseconds(server.timeout),
    )


def _refresher(
    store: RedisStore,
    datasets: Datasets,
    load_of: LoadOf,
    signals: Signals,
) -> Refresher:
    return Refresher(
        store=store,
        datasets=datasets,
        load_of=load_of,
        random=random.Random(),  # noqa: S311 - spreads instants
        signals=signals,
    )


def _drain_job(clock: Clock, lane: Lane) -> QueuedJob:
    # arq is imported by the first key that becomes due: most commands add none.
    from warmer.dispatch import Jobs  # noqa: PLC0415

    return Jobs(clock).refresh_due(lane)


def _connect(stack: AsyncExitStack, server: Server) -> "Redis":
    redis = connect(endpoint_of(server), max_connections=server.max_connections)
    stack.push_async_callback(redis.aclose)
    return redis


def _open_streams(
    stack: AsyncExitStack, settings: Settings
) -> dict[str, ConsumerGroup]:
    """Return the streams that sources are read from; a source without any opens nothing."""
    return {
        name: ConsumerGroup(
            ControlLink(
                _connect(stack, source.stream),
                timeout_ms=milliseconds(source.stream.timeout),
            ),
            streams=source.stream.names,
            name=source.stream.group,
        )
        for name, source in settings.sources.items()
        if source.stream is not None
    }


async def _open_origins(
    stack: AsyncExitStack, configuration: Configuration, clock: Clock, signals: Signals
) -> LoadOf:
    """Return what loads each dataset; only origins that a dataset names are opened."""
    wanted = {dataset.origin for dataset in configuration.datasets.values()}
    names = sorted(name for name in wanted if name is not None)
    settings = configuration.settings
    control: ControlServer | None = None
    if any(settings.origins[name].limit for name in names):
        control = await stack.enter_async_context(
            open_control(configuration, clock=clock)
        )
    origins = {
        name: _open_origin(
            stack,
            settings,
            name,
            clock=clock,
            signals=signals,
            admission=_admission(
                configuration, name, control, clock=clock, signals=signals
            ),
        )
        for name in names
    }
    return lambda dataset, errand: _load_of(origins, dataset, errand)


def _open_origin(
    stack: AsyncExitStack,
    settings: Settings,
    name: str,
    *,
    clock: Clock,
    signals: Signals,
    admission: "Admission | None",
) -> "Origin":
    from warmer.origin.loader import Origin  # noqa: PLC0415 - and this httpx

    of = settings.origins[name]
    origin = Origin(
        OriginTarget(
            name=name,
            base_url=of.base_url,
            headers={
                header: value.get_secret_value() for header, value in of.headers.items()
            },
            local_limit=of.local_limit,
            local_queue=of.local_queue,
            fleet_limit=of.limit or 0,
            connect_ms=milliseconds(of.connect_timeout),
            read_ms=milliseconds(of.read_timeout),
            max_bytes=of.max_bytes,
            allow_redirects=of.allow_redirects,
            allow_private=of.allow_private,
        ),
        clock=clock,
        signals=signals,
        admission=admission,
    )
    stack.push_async_callback(origin.aclose)
    return origin


def _admission(
    configuration: Configuration,
    name: str,
    control: ControlServer | None,
    *,
    clock: Clock,
    signals: Signals,
) -> "Admission | None":
    """Return the fleet's limit of an origin, None if it has none."""
    limits = limits_of(configuration, name)
    if limits is None or control is None:
        return None
    from warmer.origin.admission import Admission  # noqa: PLC0415

    of = configuration.settings.origins[name]
    return Admission(
        name,
        permits_of(configuration, control, name),
        limits,
        local_limit=of.local_limit,
        max_waiting=of.local_queue,
        clock=clock,
        signals=signals,
    )


def limits_of(configuration: Configuration, name: str) -> OriginLimits | None:
    """Return what the fleet may ask of an origin, None for any number of loads."""
    of = configuration.settings.origins[name]
    if of.limit is None:
        return None
    pools: dict[str, Pool] = {}
    for dataset in configuration.datasets.values():
        if dataset.origin != name:
            continue
        for kind, limit in (
            ("dataset", dataset.limit),
            ("tenant", dataset.tenant_limit),
        ):
            if limit is not None:
                reserve = reserve_of(limit, of.reserve.ratio)
                pools[f"{kind}:{dataset.name}"] = Pool(limit, reserve)
    return OriginLimits(
        limit=of.limit,
        floor=of.limit_floor or max(1, of.limit // 8),
        reserve_ratio=of.reserve.ratio,
        rate=of.rate or 0.0,
        adaptive=of.adaptive,
        pools=pools,
    )


def permits_of(
    configuration: Configuration, control: ControlServer, name: str
) -> Permits:
    """Return the permits of an origin; raises ConfigError if it has no limit."""
    limits = limits_of(configuration, name)
    if limits is None:
        raise ConfigError(f"origins.{name}: it has no limit, so there are no permits")
    return control.permits(name, limits, ttl_ms=TTL_MS)


def _load_of(origins: Mapping[str, "Origin"], dataset: Dataset, errand: Errand) -> Load:
    if dataset.origin is None:
        raise ConfigError(
            f"dataset {dataset.name!r} has no origin; a caller brings its loader"
        )
    return origins[dataset.origin].load_of(dataset, errand)


def _revealed(secret: "SecretStr | None") -> str | None:
    return None if secret is None else secret.get_secret_value()
