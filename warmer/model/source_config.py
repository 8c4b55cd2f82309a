"""Sources from settings: templates parsed, and asked whether they agree.

Holds: a source that comes out of here can turn every readable message into entities; a
declaration that cannot is refused with file, field and what is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from warmer.errors import BadEvent, BadKey, Problem
from warmer.model.source import (
    Auth,
    Before,
    EntityTemplate,
    OnRegression,
    Order,
    RowId,
    Scheme,
    Snapshot,
    Source,
    StreamIn,
    Table,
)
from warmer.model.version import check_source
from warmer.settings import Hook as HookSettings
from warmer.settings import Source as SourceSettings
from warmer.settings import milliseconds
from warmer.settings.parts import Places, Signed, dotted, nearest


def build_sources(
    declared: Mapping[str, SourceSettings], places: Places
) -> tuple[dict[str, Source], list[Problem]]:
    """Return the sources that are right, and every problem of the others."""
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    for name, settings in declared.items():
        check = _Check(name, settings, places)
        source = check.source()
        problems += check.problems
        if not check.problems:
            sources[name] = source
    return sources, problems


def _apart(tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return the tables; those that share entities have no version unless they say so."""
    begins = {
        name: {template.prefix(RowId("", "", name)) for template in table.entities}
        for name, table in tables.items()
    }
    return {
        name: replace(table, version_fields=())
        if table.version_fields is None
        and any(begins[name] & begins[other] for other in tables if other != name)
        else table
        for name, table in tables.items()
    }


def auth_of(signed: Signed | HookSettings) -> Auth | None:
    """Return how requests are proven, None if there is no way in over HTTP."""
    if signed.signature is None:
        return None
    return Auth(
        Scheme(signed.signature),
        tuple(secret.get_secret_value().encode() for secret in signed.secrets),
        milliseconds(signed.tolerance),
    )


@dataclass(slots=True)
class _Check:
    """One source: what it becomes, and what is wrong with it."""

    name: str
    settings: SourceSettings
    places: Places
    problems: list[Problem] = field(default_factory=list)

    def source(self) -> Source:
        """Return the source; it is of use only without problems."""
        of = self.settings
        try:
            check_source(self.name)
        except BadEvent as exc:
            self._wrong(str(exc), "format")
        unlisted = Table(self._templates(("entities",), of.entities), of.key)
        tables = {
            name: Table(
                unlisted.entities
                if table.entities is None
                else self._templates(("tables", name, "entities"), table.entities),
                table.key or of.key,
                table.version_fields,
            )
            for name, table in of.tables.items()
        }
        self._cloudevents()
        self._version_fields()
        return Source(
            name=self.name,
            format=of.format,
            order=self._order(unlisted),
            snapshot=Snapshot(of.snapshot),
            before=None if of.before is None else Before(of.before),
            tables=_apart(tables),
            unlisted=unlisted,
            version_fields=of.version_fields,
            key_header=of.key_header.lower(),
            cloudevents_source=of.cloudevents_source,
            auth=auth_of(of),
            dedupe_ms=milliseconds(of.dedupe_for),
            regression_ms=milliseconds(of.regression_after),
            regression_entities=of.regression_entities,
            on_regression=OnRegression(of.on_regression),
            stream=None
            if of.stream is None
            else StreamIn(of.stream.names, of.stream.group, of.stream.trim),
        )

    def _order(self, unlisted: Table) -> Order:
        if self.settings.order is not None:
            return Order(self.settings.order)
        own = any(table.entities for table in self.settings.tables.values())
        rows = all(template.needs_key for template in unlisted.entities)
        return Order.ROW if rows and not own else Order.COMMIT

    def _templates(
        self, setting: tuple[str, ...], texts: tuple[str, ...]
    ) -> tuple[EntityTemplate, ...]:
        templates = []
        for text in texts:
            try:
                templates.append(EntityTemplate(text))
            except BadKey as exc:
                self._wrong(str(exc), *setting)
        return tuple(templates)

    def _version_fields(self) -> None:
        """A table's take the place of the source's: one alone would stand beside positions."""
        for name, table in self.settings.tables.items():
            if table.version_fields and not self.settings.version_fields:
                self._wrong(
                    "needs version_fields of the source too",
                    *("tables", name, "version_fields"),
                )

    def _cloudevents(self) -> None:
        if self.settings.cloudevents_source and self.settings.format != "cloudevents":
            self._wrong('is for format = "cloudevents"', "cloudevents_source")

    def _wrong(self, message: str, *setting: str) -> None:
        path = ("sources", self.name, *setting)
        self.problems.append(Problem(nearest(self.places, path), dotted(path), message))
