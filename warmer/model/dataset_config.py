"""Datasets from settings: templates parsed, and asked whether they agree.

Holds: a dataset that comes out of here can turn every event into keys and every key
into a request; what cannot is refused with file, field and what is allowed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar

from warmer.errors import BadEvent, BadKey, ConfigError, Problem
from warmer.model.dataset import (
    ColdStart,
    Dataset,
    Datasets,
    EntityPattern,
    Jitter,
    LoaderVersion,
    RefreshOn,
    VersionMeans,
)
from warmer.model.event import PurgeMode
from warmer.model.key import KeyTemplate
from warmer.model.source import Source, Sources
from warmer.model.source_config import build_sources
from warmer.model.version import check_source
from warmer.settings import Dataset as DatasetSettings
from warmer.settings import LoaderVersion as LoaderVersionSettings
from warmer.settings import Reading, Settings, milliseconds, read_settings
from warmer.settings.parts import Places, dotted, nearest

MAX_KEYS_PER_ENTITY = 10_000
"""Keys that one changed entity may reach in one dataset: varied values times schemas."""

RESERVED_PARTS = frozenset({"dataset", "deadline", "load", "decode", "schema", "self"})
"""Arguments of `CacheClient.get`: a part of that name could not be given."""

LEASE_MARGIN = timedelta(seconds=1)
"""What a lease has beyond the load: the steps around it, and one late renewal."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PATH = re.compile(r"/([!-\"$-z|~]|\{[a-z][a-z0-9_]*\})*")
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings, and the datasets and sources they declare: checked as a whole."""

    settings: Settings
    datasets: Datasets
    sources: Sources = field(default_factory=dict)


def configure(
    path: str | Path | None = None, *, flags: Mapping[str, object] | None = None
) -> Configuration:
    """Return what the file, credentials, environment and flags say; see `load_settings`.

    Raises ConfigError with every problem there is.
    """
    return configuration_of(read_settings(path, flags=flags))


def configuration_of(reading: Reading) -> Configuration:
    """Return the configuration that was read; raises ConfigError with every problem."""
    # An origin that has mistakes of its own is there all the same.
    origins = reading.tree.get("origins")
    tables = origins if isinstance(origins, dict) else {}
    limited = {
        name: isinstance(table, dict) and "limit" in table
        for name, table in tables.items()
    }
    sources, more = build_sources(reading.sources, reading.places)
    datasets, problems = _build(reading.datasets, limited, sources, reading.places)
    problems = reading.problems + problems + more
    if problems or reading.settings is None:
        raise ConfigError(*problems)
    return Configuration(reading.settings, datasets, sources)


def known_sources(declared: Sources, datasets: Datasets) -> Sources:
    """Return the sources that are declared, or that a dataset depends on without that.

    The latter's events come by hand or from a program, as the plain format has them.
    """
    depended_on = {
        pattern.source for dataset in datasets.values() for pattern in dataset.entities
    }
    return {name: Source(name, format="plain") for name in depended_on} | {**declared}


def sources_of(settings: Settings) -> Sources:
    """Return the sources that `settings` declare; raises ConfigError with every problem."""
    sources, problems = build_sources(settings.sources, settings.places)
    if problems:
        raise ConfigError(*problems)
    return sources


def datasets_of(settings: Settings) -> Datasets:
    """Return the datasets that `settings` declare; raises ConfigError with every problem."""
    limited = {name: of.limit is not None for name, of in settings.origins.items()}
    sources = build_sources(settings.sources, settings.places)[0]
    datasets, problems = _build(settings.datasets, limited, sources, settings.places)
    if problems:
        raise ConfigError(*problems)
    return datasets


def _build(
    declared: Mapping[str, DatasetSettings],
    origins: Mapping[str, bool],
    sources: Sources,
    places: Places,
) -> tuple[dict[str, Dataset], list[Problem]]:
    datasets: dict[str, Dataset] = {}
    problems: list[Problem] = []
    for name, settings in declared.items():
        check = _Check(name, settings, origins, sources, places)
        dataset = check.dataset()
        problems += check.problems
        if dataset is not None:
            datasets[name] = dataset
    return datasets, problems


@dataclass(slots=True)
class _Check:
    """One dataset: what it becomes, and what is wrong with it.

    `origins`: those there are, and whether they have a limit of the fleet.
    """

    name: str
    settings: DatasetSettings
    origins: Mapping[str, bool]
    sources: Sources
    places: Places
    problems: list[Problem] = field(default_factory=list)

    def dataset(self) -> Dataset | None:
        """Return the dataset, None if there are problems."""
        template = self._try("key", partial(KeyTemplate, self.settings.key))
        entities = self._entities()
        self._windows()
        self._origin()
        self._limits()
        self._version()
        if self.settings.cold_start == "empty" and self.settings.empty is None:
            self._wrong("empty", 'is required by cold_start = "empty": [], {}, "" …')
        if template is not None:
            self._parts(template, entities)
        if self.problems or template is None:
            return None
        return _dataset(self.name, self.settings, template, entities)

    def _wrong(self, setting: str, message: str) -> None:
        path = ("datasets", self.name, *setting.split("."))
        self.problems.append(Problem(nearest(self.places, path), dotted(path), message))

    def _try(self, setting: str, make: Callable[[], _T]) -> _T | None:
        try:
            return make()
        except (BadKey, BadEvent) as exc:
            self._wrong(setting, str(exc))
            return None

    def _entities(self) -> tuple[EntityPattern, ...]:
        patterns = []
        for text in self.settings.entities:
            pattern = self._try("entities", partial(EntityPattern, text))
            if pattern is None:
                continue
            self._try("entities", partial(check_source, pattern.source))
            patterns.append(pattern)
        return tuple(patterns)

    def _windows(self) -> None:
        of = self.settings
        error, stale = of.stale_if_error_for, of.stale_for
        if error and error < stale:
            self._wrong("stale_if_error_for", "allowed are 0, or stale_for and more")
        if of.lease_for < of.load_timeout + LEASE_MARGIN:
            self._wrong(
                "lease_for",
                "allowed are load_timeout + 1s and more: a slow load must not lose "
                "its lease to one late renewal",
            )
        if of.live_schemas and of.schema_version not in of.live_schemas:
            self._wrong("live_schemas", "must hold schema_version")

    def _origin(self) -> None:
        of = self.settings
        if of.origin is None:
            if of.path is not None:
                self._wrong("path", "has no origin to be asked of")
            return
        if of.origin not in self.origins:
            known = ", ".join(sorted(self.origins)) or "none"
            self._wrong("origin", f"there is no such origin; there are: {known}")
        if of.path is None:
            self._wrong("path", "is required with an origin")
        elif not _PATH.fullmatch(of.path):
            self._wrong(
                "path",
                "must begin with /, and be visible ASCII without # or lone braces",
            )
        if of.version.means == "none":
            return
        if (of.version.header is None) == (of.version.pointer is None):
            self._wrong("version", "needs header or pointer, one of them")
        elif of.version.pointer and not _POINTER.fullmatch(of.version.pointer):
            self._wrong("version.pointer", "must be a JSON pointer such as /version")

    def _limits(self) -> None:
        if self.settings.origin is not None and self.origins.get(self.settings.origin):
            return
        for name in ("limit", "tenant_limit"):
            if getattr(self.settings, name) is not None:
                self._wrong(name, "needs an origin that has a limit itself")

    def _version(self) -> None:
        of = self.settings.version
        match of.means:
            case "none":
                if of != type(of)():
                    self._wrong("version.means", "is required: entity or position")
            case "entity":
                self._try("version.source", partial(check_source, of.source))
                if not of.entity:
                    self._wrong("version.entity", "is required: product:{id}")
            case "position":
                self._try("version.source", partial(check_source, of.source))
                if of.entity:
                    self._wrong("version.entity", "a position is of the whole source")
        self._proves(of)

    def _proves(self, version: LoaderVersionSettings) -> None:
        """What a load proves is compared with what events say: the same names in both."""
        entities = self.settings.entities
        sources = {text.partition("/")[0] for text in entities}
        if version.means == "none" or not entities:
            return
        if version.source not in sources:
            self._wrong("version.source", "no entity of this dataset is of this source")
        elif (
            version.means == "entity"
            and f"{version.source}/{version.entity}" not in entities
        ):
            self._wrong("version.entity", "is none of this dataset's entities")
        declared = self.sources.get(version.source)
        if declared is not None and declared.tells_log_positions:
            self._wrong(
                "version.source",
                f"what a load reports does not compare with positions of a log; name "
                f"the column of that version in sources.{declared.name}.version_fields, "
                'or let it report none (means = "none")',
            )

    def _parts(
        self, template: KeyTemplate, entities: tuple[EntityPattern, ...]
    ) -> None:
        names = frozenset(template.names)
        for name in sorted(names & RESERVED_PARTS):
            self._wrong("key", f"no part can be called {name!r}: get() has it")
        for setting, text, known in (
            ("path", self.settings.path or "", names | {"schema"}),
            ("version.entity", self.settings.version.entity, names),
        ):
            for name in sorted(set(_PLACEHOLDER.findall(text)) - known):
                self._wrong(setting, f"{{{name}}} is not a part of the key")
        tenant = self.settings.tenant
        if tenant is not None and tenant not in names:
            self._wrong("tenant", "is not a part of the key")
        if tenant is None and self.settings.tenant_limit is not None:
            self._wrong(
                "tenant_limit", "needs tenant, the part of the key it counts by"
            )
        vary = self.settings.vary
        for name in sorted(set(vary) - names):
            self._wrong(f"vary.{name}", "is not a part of the key")
        for name, values in vary.items():
            if not values or len(set(values)) != len(values):
                self._wrong(f"vary.{name}", "needs values, each of them once")
        for pattern in entities:
            self._binds(pattern, template)

    def _binds(self, pattern: EntityPattern, template: KeyTemplate) -> None:
        """Every part of the key is known once the entity is: bound by it, or listed."""
        vary = self.settings.vary
        free = [name for name in template.names if name not in pattern.names]
        for name in free:
            if name not in vary:
                self._wrong(
                    "entities",
                    f"{pattern.text} does not bind part {name!r}; bind it, or list "
                    f"its values in vary.{name}",
                )
        schemas = len(self.settings.live_schemas) or 1
        keys = schemas * prod(len(vary.get(name, ())) for name in free)
        if keys > MAX_KEYS_PER_ENTITY:
            self._wrong(
                "vary",
                f"one entity of {pattern.text} reaches {keys} keys, "
                f"allowed are {MAX_KEYS_PER_ENTITY}",
            )


def _dataset(
    name: str,
    of: DatasetSettings,
    template: KeyTemplate,
    entities: tuple[EntityPattern, ...],
) -> Dataset:
    return Dataset(
        name=name,
        template=template,
        schema_version=of.schema_version,
        live_schemas=of.live_schemas or (of.schema_version,),
        vary=dict(of.vary),
        entities=entities,
        origin=of.origin,
        path=of.path,
        fresh_ms=milliseconds(of.fresh_for),
        stale_ms=milliseconds(of.stale_for),
        error_ms=milliseconds(of.stale_if_error_for),
        negative_ms=milliseconds(of.negative_for),
        lease_ms=milliseconds(of.lease_for),
        load_timeout_ms=milliseconds(of.load_timeout),
        settle_ms=milliseconds(of.settle_for),
        reorder_ms=milliseconds(of.reorder_for),
        jitter=Jitter(milliseconds(of.jitter.amount), of.jitter.ratio),
        early_refresh_beta=of.early_refresh_beta,
        cold_start=ColdStart(of.cold_start),
        empty=of.empty,
        purge=PurgeMode(of.purge),
        # A worker has no loader for it: only callers bring one.
        refresh_on=RefreshOn(of.refresh_on) if of.origin else RefreshOn.NONE,
        compress_above=of.compress_above,
        max_body_bytes=of.max_body,
        max_waiters=of.max_waiters,
        limit=of.limit,
        tenant=of.tenant,
        tenant_limit=of.tenant_limit,
        version=LoaderVersion(
            means=VersionMeans(of.version.means),
            source=of.version.source,
            entity=of.version.entity,
            header=of.version.header,
            pointer=of.version.pointer,
        ),
    )
