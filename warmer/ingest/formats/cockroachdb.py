"""CockroachDB's changefeed to a webhook, plain and enriched.

`updated` is a hybrid logical clock, `1790000000123456789.0000000002`: two whole numbers,
nanoseconds and a counter. It orders a key; an older version of a key may come again after
a newer one. `resolved` says that nothing older comes, and changes no row.
"""

import re
from collections.abc import Iterator, Sequence

from warmer.errors import BadEvent
from warmer.ingest.formats import (
    Changes,
    Ignored,
    Kind,
    Message,
    Read,
    RowChange,
    Unreadable,
)
from warmer.ingest.formats.fields import (
    Object,
    an_object,
    object_or_none,
    shape,
    shown,
    text,
    text_or,
    whole,
)
from warmer.model.source import RowId, Source

_CLOCK = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,10}))?")
_KINDS = {"c": Kind.WRITTEN, "u": Kind.WRITTEN, "d": Kind.DELETED, "r": Kind.SNAPSHOT}
_NANOSECONDS = 1_000_000


def read(message: Message, source: Source) -> Read:
    """Return the rows that changed, or why there are none."""
    try:
        payload = an_object(message.value, "message")
        if "resolved" in payload and "payload" not in payload:
            return Ignored("resolved")
        changes = tuple(_row(row, source) for row in _rows(payload))
    except BadEvent as exc:
        return Unreadable(str(exc))
    return Changes(changes) if changes else Ignored("empty")


def _rows(message: Object) -> Iterator[Object]:
    payload = message.get("payload")
    if isinstance(payload, dict):
        yield payload
    elif isinstance(payload, list):
        for row in payload:
            yield an_object(row, "payload")
    else:
        raise BadEvent(f"payload: is {shape(payload)}, not a list")


def _row(row: Object, source: Source) -> RowChange:
    if "op" in row:
        return _enriched(row)
    after = object_or_none(row.get("after"), "after")
    version = _version(row.get("updated"), "updated")
    at = _place(text(row.get("topic"), "topic"))
    return RowChange(
        kind=Kind.DELETED if after is None else Kind.WRITTEN,
        db=at.db,
        schema=at.schema,
        table=at.table,
        key=_key(row.get("key"), source.table(at).key),
        after=after,
        before=object_or_none(row.get("before"), "before"),
        row_version=version,
        occurred_at=None if version is None else version[0] // _NANOSECONDS,
    )


def _enriched(row: Object) -> RowChange:
    op = row.get("op")
    kind = _KINDS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadEvent(f"op: {shown(op)} is not one of c, u, d, r")
    origin = object_or_none(row.get("source"), "source") or {}
    told = origin.get("ts_hlc") or origin.get("mvcc_timestamp")
    version = _version(told, "source.ts_hlc")
    return RowChange(
        kind=kind,
        db=text_or(origin.get("database_name"), "source.database_name"),
        schema=text_or(origin.get("schema_name"), "source.schema_name"),
        table=text_or(origin.get("table_name"), "source.table_name")
        or text(row.get("topic"), "topic"),
        key=object_or_none(row.get("key"), "key"),
        after=object_or_none(row.get("after"), "after"),
        before=object_or_none(row.get("before"), "before"),
        row_version=version,
        occurred_at=None if version is None else version[0] // _NANOSECONDS,
    )


def _version(value: object, name: str) -> tuple[int, int] | None:
    if value is None:
        return None
    found = _CLOCK.fullmatch(text(value, name))
    if found is None:
        raise BadEvent(f"{name}: is no time of the form nanoseconds.counter")
    return whole(found[1], name), int(found[2] or 0)


def _place(topic: str) -> RowId:
    """Return where a topic's rows stand; with `full_table_name` it tells all of that."""
    match topic.split("."):
        case [db, schema, table]:
            return RowId(db, schema, table)
        case _:
            return RowId("", "", topic)


def _key(value: object, columns: Sequence[str]) -> Object | None:
    """Return the key; its values come without names, in the order of the table's key."""
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise BadEvent(f"key: is {shape(value)}, not a list of values")
    if len(columns) == len(value):
        return dict(zip(columns, value, strict=True))
    return {f"#{index}": part for index, part in enumerate(value)}
