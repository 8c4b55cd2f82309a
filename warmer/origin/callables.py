"""Loads by a Python callable in the request path.

    async def load_product() -> object:
        row = await rows.fetch(42)
        if row is None:
            return NOT_FOUND
        return Value(row.data, versions={"shop-db/product:42": row.version})

Holds: what a callable returns is stored as itself or refused. None, 0, "", [], False and b""
are values; NOT_FOUND alone is a not-found. A callable that is not async runs in a thread.
Does not hold: that such a thread can be stopped. Cancelled, it runs on, and its result is
dropped.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from warmer.clock import Clock
from warmer.errors import OriginError
from warmer.model.dataset import Dataset
from warmer.model.entry import NOT_FOUND, Content, encode_value
from warmer.model.key import Key, canonical_entity
from warmer.model.outcome import Loaded
from warmer.model.version import Scope, SourceVersion, Versions, source_of

Loader = Callable[[], object]
"""Returns, perhaps awaitably, a value, a `Value`, or NOT_FOUND."""

Version = int | tuple[int, ...] | SourceVersion
"""A version; its parts, the most significant first; or a version with its epoch."""


@dataclass(frozen=True, slots=True)
class Value:
    """A loaded value and what it was built from.

    `versions`: per `source/entity` the version of that entity in the value, or per `source`
    the position of the snapshot it was read from (or an earlier one, never a later one).
    """

    value: object
    versions: Mapping[Scope, Version] = field(default_factory=dict)


def load_with(
    loader: Loader, dataset: Dataset, clock: Clock
) -> Callable[[Key, Versions], Awaitable[Loaded]]:
    """Return the load that calls `loader`; it raises what `loader` raises, if an Exception."""

    async def load(_key: Key, _floors: Versions) -> Loaded:
        started = clock.monotonic()
        result = await _call(loader)
        load_ms = int((clock.monotonic() - started) * 1000)
        if isinstance(result, Value):
            versions = {
                _scope(scope): _version(scope, version)
                for scope, version in result.versions.items()
            }
            return Loaded(_content(result.value, dataset), versions, load_ms)
        return Loaded(_content(result, dataset), {}, load_ms)

    return load


async def _call(loader: Loader) -> object:
    try:
        if inspect.iscoroutinefunction(loader):
            return cast("object", await loader())
        # A function that returns an awaitable makes it in the thread; it is awaited here.
        result = await asyncio.to_thread(_in_thread, loader)
        return await result if inspect.isawaitable(result) else result
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:
        # A load is shared: what one caller's framework throws through its own stack
        # (GeneratorExit, a test's outcome) is nothing but a failed load to the others.
        raise OriginError(f"the loader raised {type(exc).__name__}") from exc


def _in_thread(loader: Loader) -> object:
    try:
        return loader()
    except StopIteration as exc:
        # `next()` of no rows. No future takes this one: its awaiter would wait for ever.
        raise OriginError("the loader raised StopIteration") from exc


def _content(value: object, dataset: Dataset) -> Content:
    if value is NOT_FOUND:
        return NOT_FOUND
    return encode_value(value, compress_above=dataset.compress_above)


def _scope(scope: str) -> Scope:
    """Return the scope as events spell it, so that both meet."""
    source, slash, entity = scope.partition("/")
    return f"{source}/{canonical_entity(entity)}" if slash else source


def _version(scope: Scope, version: Version) -> SourceVersion:
    if isinstance(version, SourceVersion):
        return version
    parts = version if isinstance(version, tuple) else (version,)
    return SourceVersion.of(source_of(scope), *parts)
