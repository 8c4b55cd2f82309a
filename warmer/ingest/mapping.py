"""Changes as producers tell them -> events as the log keeps them, by the source's rules.

Holds: an entity is made of columns that are true. Of a former row only its key is used,
unless the source is known to tell all of it; a placeholder for an unchanged large value
is no value. A change that moved a row from one entity to another names both.
Rows that were only read carry no version: a transaction that was open at the snapshot
commits later with a lower one, and must not lose to it.
"""

import re
from collections.abc import Iterator, Sequence

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Kind, Named, RowChange
from warmer.model.arrival import Arrival
from warmer.model.event import Event
from warmer.model.key import canonical_entity
from warmer.model.source import (
    Before,
    EntityTemplate,
    Order,
    Row,
    RowId,
    Snapshot,
    Source,
    Table,
)
from warmer.model.version import SourceVersion

UNAVAILABLE = "__debezium_unavailable_value"
MAX_ID_CHARS = 256

_DECIMAL = re.compile(r"[0-9]{1,20}")
_U64 = 2**64


def arrivals(changes: Changes, source: Source) -> tuple[list[Arrival], int]:
    """Return the events of a message, and how many of its changes are ignored by rule.

    Raises BadEvent that names the table and column where no entity can be made.
    """
    made: list[Arrival] = []
    ignored = 0
    for change in changes.changes:
        one = (
            _of_named(change, source)
            if isinstance(change, Named)
            else _of_row(change, source)
        )
        if one is None:
            ignored += 1
        else:
            made.append(one)
    return made, ignored


def _of_named(change: Named, source: Source) -> Arrival:
    version = None if source.order is Order.NONE else change.version
    entities = tuple(dict.fromkeys(map(canonical_entity, change.entities)))
    prefixes = tuple(
        dict.fromkeys(prefix and canonical_entity(prefix) for prefix in change.prefixes)
    )
    return Arrival(
        Event(
            id=_id(change.id, entities or prefixes, change.version),
            source=source.name,
            entities=entities,
            version=_version(source, version),
            mode=change.mode,
            occurred_at=change.occurred_at,
            prefixes=prefixes,
        ),
        lineage="" if version is None else source.fields_lineage,
        identity=change.id if change.unique else "",
    )


def _of_row(change: RowChange, source: Source) -> Arrival | None:
    if change.kind is Kind.SNAPSHOT and source.snapshot is Snapshot.IGNORE:
        return None
    at = RowId(change.db, change.schema, change.table)
    table = source.table(at)
    if not table.entities:
        return None
    entities: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    if change.kind is Kind.TRUNCATED:
        prefixes = tuple(dict.fromkeys(each.prefix(at) for each in table.entities))
    else:
        entities = tuple(dict.fromkeys(_entities(change, source, table)))
    parts = _parts(change, source, table)
    return Arrival(
        Event(
            id=_id(change.id, entities or prefixes, parts),
            source=source.name,
            entities=entities,
            version=_version(source, parts),
            occurred_at=change.occurred_at,
            prefixes=prefixes,
            warm=change.kind is Kind.SNAPSHOT and source.snapshot is Snapshot.WARM,
        ),
        lineage="" if parts is None else _lineage(change, source),
        position=_position(change, source),
        identity=change.id if change.unique else "",
    )


def _lineage(change: RowChange, source: Source) -> str:
    """Return within what the version compares: a row's own is of no log."""
    return source.fields_lineage if source.version_fields else change.lineage


def _parts(change: RowChange, source: Source, table: Table) -> tuple[int, ...] | None:
    if change.kind is Kind.SNAPSHOT:
        return None
    if source.version_fields and source.order is not Order.NONE:
        return _of_fields(change, source, _version_fields(change, source, table))
    match source.order:
        case Order.ROW:
            return change.row_version
        case Order.COMMIT:
            return change.commit_version
        case Order.NONE:
            return None


def _version_fields(change: RowChange, source: Source, table: Table) -> tuple[str, ...]:
    """Return the columns that make the version; none where rows share an entity.

    One row's version says nothing about another's.
    """
    if table.version_fields is not None:
        return table.version_fields
    key = table.key or tuple(change.key or ())
    if all(template.names_one_row(key) for template in table.entities):
        return source.version_fields
    return ()


def _of_fields(
    change: RowChange, source: Source, names: tuple[str, ...]
) -> tuple[int, ...] | None:
    """Return the version that the row itself has; None where it is not told or not true.

    Never the log's in its place: two numbers of different meaning would be compared.
    """
    row = {**_told(_true_before(change, source) or {}), **_told(change.after or {})}
    if not names or any(row.get(name) is None for name in names):
        return None
    return tuple(_whole(name, row[name]) for name in names)


def _whole(name: str, value: object) -> int:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _U64:
        raise BadEvent(f"column {name}: is no whole number from 0 to 2^64-1")
    return value


def _position(change: RowChange, source: Source) -> str:
    """Return the change's place in commit order, where its version is of the log too."""
    if change.kind is Kind.SNAPSHOT or source.version_fields:
        return ""
    return _digits(change.commit_version)


def _entities(change: RowChange, source: Source, table: Table) -> Iterator[str]:
    """Yield the entity of the row as it is, and of the row as it was, by each template."""
    sides = _sides(change, source)
    if not sides and change.before is not None:
        raise BadEvent(
            f"{_table_name(change)}: of before only the key is true, and neither the "
            "message nor the table's key tells its columns"
        )
    if not sides:
        raise BadEvent(f"{_table_name(change)}: after, before and key are missing")
    for template in table.entities:
        yield from _by_template(template, change, table, sides)


def _by_template(
    template: EntityTemplate,
    change: RowChange,
    table: Table,
    sides: Sequence[Row],
) -> Iterator[str]:
    named = False
    problem: BadEvent | None = None
    for row in sides:
        at = RowId(
            change.db, change.schema, change.table, _key_values(change, table, row)
        )
        try:
            yield template.entity(at, row)
            named = True
        except BadEvent as exc:
            problem = problem or exc
    if not named and problem is not None:
        raise BadEvent(f"{_table_name(change)}: {problem}")


def _sides(change: RowChange, source: Source) -> list[Row]:
    """Return the row as it is and as it was, each with the columns that are true."""
    before = _true_before(change, source)
    sides: list[Row] = []
    if change.after is not None:
        # An unchanged large value is a placeholder; what it was, it is.
        sides.append({**_told(before or {}), **_told(change.after)})
    if before:
        sides.append(_told(before))
    if not sides and change.key:
        sides.append(_told(change.key))
    return sides


def _true_before(change: RowChange, source: Source) -> Row | None:
    """Return what is true of the row as it was."""
    if change.before is None:
        return None
    if (source.before or change.before_is) is Before.FULL:
        return change.before
    at = RowId(change.db, change.schema, change.table)
    columns = source.table(at).key or tuple(change.key or ())
    return {
        column: change.before[column] for column in columns if column in change.before
    }


def _key_values(change: RowChange, table: Table, row: Row) -> Sequence[object] | None:
    """Return the values of the row's key: of configured columns, else as the message says."""
    if table.key and all(column in row for column in table.key):
        return [row[column] for column in table.key]
    if change.key is None:
        return None
    if all(column in row for column in change.key):
        return [row[column] for column in change.key]
    return list(change.key.values())


def _told(row: Row) -> Row:
    return {column: value for column, value in row.items() if value != UNAVAILABLE}


def _table_name(change: RowChange) -> str:
    return ".".join(
        part[:80] for part in (change.schema or change.db, change.table) if part
    )


def _version(source: Source, parts: tuple[int, ...] | None) -> SourceVersion | None:
    return None if parts is None else SourceVersion.of(source.name, *parts)


def _digits(parts: tuple[int, ...] | None) -> str:
    return "" if parts is None else SourceVersion.of("position", *parts).digits


def _id(id_: str, names: Sequence[str], parts: tuple[int, ...] | None) -> str:
    """Return the producer's id, else one that tells people which change it was."""
    if id_:
        return id_[:MAX_ID_CHARS]
    version = ":".join(map(str, parts or ())) or "unversioned"
    return f"{version}@{names[0] or 'all'}"[:MAX_ID_CHARS]
