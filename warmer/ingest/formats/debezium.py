"""Debezium change events as JSON, with or without schemas, of every connector that has rows.

What orders them is the connector's own, and read by the file of that database:
PostgreSQL, MySQL and MariaDB, SQL Server, MongoDB, Oracle. Others give no version, so that every
event applies.

Holds: an operation is told by `op`, never by `source.snapshot`, which producers of this
format fill with anything. Of an event's times only the commit's counts (`source.ts_ms`).
What is no row (heartbeats, schema changes, transaction markers, messages) is ignored by
its shape: all of them arrive at one address.
"""

import re
from collections.abc import Callable, Mapping
from typing import cast

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
from warmer.ingest.formats.debezium_orders import (
    Ordered,
    mongodb,
    mysql,
    oracle,
    postgresql,
    sqlserver,
    unordered,
)
from warmer.ingest.formats.fields import (
    Object,
    an_object,
    key_of_header,
    nested,
    object_or_none,
    shown,
    text,
    text_or,
    whole,
    whole_or_none,
)
from warmer.model.source import Before, Source

KINDS = {
    "c": Kind.WRITTEN,
    "u": Kind.WRITTEN,
    "d": Kind.DELETED,
    "r": Kind.SNAPSHOT,
    "t": Kind.TRUNCATED,
}
_MONGODB = "mongodb"
_LOG_PER_DATABASE = {"postgresql", "sqlserver"}
"""Of others one log holds all databases: each has a place among the others' changes."""
_ORDERS: Mapping[str, Callable[[Object], Ordered]] = {
    "postgresql": postgresql,
    "mysql": mysql,
    "mariadb": mysql,
    "sqlserver": sqlserver,
    _MONGODB: mongodb,
    "oracle": oracle,
}
_TRUE_BEFORE = frozenset(_ORDERS) - {"postgresql"}
"""Connectors whose `before` is true. PostgreSQL's has invented columns beside the key
(REPLICA IDENTITY DEFAULT), and of others it is not known."""
_SIGNED = re.compile(r"-?[0-9]{1,20}")
_TIMES = {"ts_ms", "ts_us", "ts_ns"}
_MARKER = {"status", "id", "ts_ms", "event_count", "data_collections"}


def read(message: Message, source: Source) -> Read:
    """Return the change that an event tells of, or why there is none."""
    try:
        value = unwrapped(message.value, "value")
        if value is None:
            return Ignored("tombstone")
        return _change(an_object(value, "value"), message, source)
    except BadEvent as exc:
        return Unreadable(str(exc))


def unwrapped(value: object, name: str) -> object | None:
    """Return a message's part without its schema."""
    if isinstance(value, dict) and value.keys() == {"schema", "payload"}:
        return cast("object", value["payload"])
    if isinstance(value, str):
        raise BadEvent(f"{name}: is text, not an object")
    return value


def row_change(
    kind: Kind, value: Object, origin: Object, key: Object | None
) -> RowChange:
    """Return the change of an envelope whose `source` is `origin`."""
    # Writers of this format other than Debezium leave it out, and all order with it.
    connector = text_or(origin.get("connector"), "source.connector")
    ordered = _ORDERS.get(connector, unordered)(origin)
    return RowChange(
        kind=kind,
        db=text_or(origin.get("db"), "source.db"),
        schema=text_or(origin.get("schema"), "source.schema"),
        table=_table(origin, connector),
        key=_document_key(key) if connector == _MONGODB else key,
        after=_row(value.get("after"), "after", connector),
        before=_row(value.get("before"), "before", connector),
        before_is=Before.FULL if connector in _TRUE_BEFORE else Before.KEY,
        row_version=ordered.row,
        commit_version=ordered.commit,
        lineage=_lineage(origin, connector, ordered.lineage),
        occurred_at=committed_at(origin),
    )


def record_key(message: Message, source: Source) -> Object | None:
    """Return the record's key as columns, None if the sink sent none."""
    raw = message.key
    if raw is None:
        raw = key_of_header(message.headers, source.key_header)
        if isinstance(raw, str | int):
            # One column, which the transform HeaderFrom puts into a header of its name.
            raw = {source.key_header.removeprefix("x-debezium-"): raw}
    key = unwrapped(raw, "key") if isinstance(raw, dict) else raw
    if key is None:
        return None
    columns = an_object(key, "key")
    if not columns:
        raise BadEvent("key: has no columns")
    return columns


def committed_at(origin: Object) -> int | None:
    """Return Unix ms of the commit. Before 0.10 it was told in seconds."""
    ts_ms = whole_or_none(origin.get("ts_ms"), "source.ts_ms")
    if ts_ms is not None:
        return ts_ms
    seconds = whole_or_none(origin.get("ts_sec"), "source.ts_sec")
    return None if seconds is None else whole(seconds * 1_000, "source.ts_sec")


def of_no_row(value: Object) -> Ignored | None:
    """Return why an event without an operation tells of no row; None if it may tell of one."""
    if "databaseName" in value and ("ddl" in value or "tableChanges" in value):
        return Ignored("schema_change")
    if _is_marker(value):
        return Ignored("transaction")
    if value and value.keys() <= _TIMES:
        return Ignored("heartbeat")
    return None


def _change(value: Object, message: Message, source: Source) -> Read:
    op = value.get("op")
    if op is None:
        ignored = of_no_row(value)
        if ignored is None:
            raise BadEvent("op: missing; flattened is the format debezium-flattened")
        return ignored
    if op == "m":
        return Ignored("message")
    kind = KINDS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadEvent(f"op: {shown(op)} is not one of c, u, d, r, t, m")
    origin = an_object(value.get("source"), "source")
    key = None if kind is Kind.TRUNCATED else record_key(message, source)
    return Changes((row_change(kind, value, origin, key),))


def _is_marker(value: Object) -> bool:
    if not (value.keys() <= _MARKER and value.keys() & {"ts_ms", "event_count"}):
        return False
    return value.get("status") in ("BEGIN", "END")


def _table(origin: Object, connector: str) -> str:
    field = "collection" if connector == _MONGODB else "table"
    return text(origin.get(field), f"source.{field}")


def _lineage(origin: Object, connector: str, of_order: str) -> str:
    name = text_or(origin.get("name"), "source.name")
    db = (
        text_or(origin.get("db"), "source.db") if connector in _LOG_PER_DATABASE else ""
    )
    return f"{connector}/{name}/{db}/{of_order}"


def _row(value: object, name: str, connector: str) -> Object | None:
    """Return a row; MongoDB's is a text that holds its document."""
    if connector != _MONGODB or not isinstance(value, str):
        return object_or_none(value, name)
    document = an_object(nested(value, name), name)
    # The key's column is `id`; the document calls it `_id`.
    columns = {column: _plain(item) for column, item in document.items()}
    id_ = columns.get("_id")
    # An id of several parts is as the key spells it.
    return {**columns, "id": id_} if _is_plain(id_) else columns


def _document_key(key: Object | None) -> Object | None:
    """Return a document's key, whose values are texts that hold extended JSON."""
    if key is None:
        return None
    return {name: _document_id(value) for name, value in key.items()}


def _document_id(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(("{", '"')):
        return value
    try:
        id_ = _plain(nested(value, "key"))
    except BadEvent:
        return value
    return id_ if _is_plain(id_) else value


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _plain(value: object) -> object:
    """Return what extended JSON wraps: `{"$oid": "65…"}` is 65…, `{"$numberLong": "7"}` 7."""
    if isinstance(value, dict) and len(value) == 1:
        ((mark, inner),) = value.items()
        if mark in {"$oid", "$uuid"} and isinstance(inner, str):
            return inner
        if mark in {"$numberLong", "$numberInt"} and isinstance(inner, str):
            return int(inner) if _SIGNED.fullmatch(inner) else inner
    return value
