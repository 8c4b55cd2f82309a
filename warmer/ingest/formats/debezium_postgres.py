"""Debezium change events of PostgreSQL, as JSON with or without schemas.

Holds: an event is a row's id and its version, nothing else. Of `before` and `after` only
the columns that identify the row are read: other columns of `before` are made up by
default (REPLICA IDENTITY), and unchanged large ones are a placeholder.
The version is the change's LSN. Row locks serialise a row's writers, so it orders one
row; it would not order what is made of several rows, so an entity is exactly one row.
Snapshot rows carry no version: a transaction that was open at the snapshot commits later
with a lower LSN, and must not lose to it.
Does not hold: order across a failover or restore of the database, after which LSNs may
begin again lower. A new `epoch` says so.
"""

from collections.abc import Mapping
from typing import Any, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warmer.errors import BadEvent, BadKey
from warmer.ingest.formats import Events, Ignored, Message, Read, Unreadable
from warmer.model.event import Event
from warmer.model.key import canonical_entity, encode_part
from warmer.model.version import SourceVersion, check_source

UNAVAILABLE = "__debezium_unavailable_value"
TOMBSTONE = b"default"
"""What the Redis and RabbitMQ sinks write for null."""

_ROW_OPS = {"c", "u", "d", "r"}
_SNAPSHOT = "r"
_ID_CHARS = 256
_WITHOUT_OP = {"ddl": "schema_change", "status": "transaction"}

Row = Mapping[str, Any]


class _Source(BaseModel):
    """The part of an event that says where the change was made."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    connector: str
    schema_name: str = Field(alias="schema", min_length=1)
    table: str = Field(min_length=1)
    lsn: int | None = Field(default=None, ge=0, lt=2**64)
    ts_ms: int | None = Field(default=None, ge=0)


class DebeziumPostgres:
    """Reads the messages of one database as changes of `source`.

    A row of public.product is the entity `product:<id>`; of another schema, say shop,
    `shop.product:<id>`. `columns` names the columns that identify a row of a table
    ("public.product"), for sinks that send no key and for tables without a primary key.
    """

    def __init__(
        self,
        source: str,
        *,
        epoch: int = 0,
        columns: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        check_source(source)
        self._source = source
        self._epoch = epoch
        self._columns = columns or {}

    def read(self, message: Message) -> Read:
        """Return the changes in one message, or why there are none."""
        if message.value is None or message.value == TOMBSTONE:
            return Ignored("tombstone")
        try:
            value = _payload(message.value, "value")
            key = _payload(message.key, "key") if _given(message.key) else None
            return self._changes(value, key)
        except (BadEvent, BadKey) as exc:
            return Unreadable(str(exc))

    def _changes(self, value: Row | None, key: Row | None) -> Read:
        if value is None:
            return Ignored("tombstone")
        op = value.get("op")
        if op is None:
            return _without_op(value)
        if op == "m":
            return Ignored("message")
        if op == "t":
            raise BadEvent("op: t (truncate) names no rows; invalidate them by hand")
        if op not in _ROW_OPS:
            raise BadEvent(f"op: {str(op)[:80]!r} is not one of c, u, d, r, t, m")
        source = _source(value)
        return Events(
            tuple(
                self._event(source, self._entity(source, row), op)
                for row in self._rows(source, value, key)
            )
        )

    def _event(self, source: _Source, entity: str, op: str) -> Event:
        lsn = None if op == _SNAPSHOT else source.lsn
        return Event(
            id=f"{op}:{source.ts_ms if lsn is None else lsn}:{entity}"[:_ID_CHARS],
            source=self._source,
            entities=(entity,),
            version=None
            if lsn is None
            else SourceVersion.of(self._source, lsn, epoch=self._epoch),
            occurred_at=source.ts_ms,
        )

    def _entity(self, source: _Source, row: Row) -> str:
        table = source.table
        if source.schema_name != "public":
            table = f"{source.schema_name}.{table}"
        texts = [encode_part(column, value) for column, value in row.items()]
        return canonical_entity(":".join([encode_part("table", table), *texts]))

    def _rows(self, source: _Source, value: Row, key: Row | None) -> list[Row]:
        """Return the identifying columns of the changed row, and of what it was before."""
        table = f"{source.schema_name}.{source.table}"
        columns = self._columns.get(table)
        if key is not None:
            # A changed primary key comes as a delete and a create, each with its key.
            return [_identity(key, columns or tuple(key), "key")]
        if columns is None:
            raise BadEvent(f"key: missing, and no columns are configured for {table}")
        sides = [side for side in ("after", "before") if value.get(side) is not None]
        if not sides:
            raise BadEvent("after: missing, and before too")
        rows = [_identity(value[side], columns, side) for side in sides]
        return rows[:1] if rows[0] == rows[-1] else rows


def _given(key: bytes | None) -> bool:
    return key is not None and key != TOMBSTONE


def _payload(raw: bytes | None, what: str) -> Row | None:
    """Return a message's part without its schema; None for JSON null."""
    try:
        read = orjson.loads(raw or b"")
    except orjson.JSONDecodeError as exc:
        raise BadEvent(f"{what}: not JSON: {exc}") from None
    if isinstance(read, dict) and read.keys() == {"schema", "payload"}:
        read = read["payload"]
    if read is not None and not isinstance(read, dict):
        raise BadEvent(f"{what}: is {type(read).__name__}, not an object")
    return cast("Row | None", read)


def _without_op(value: Row) -> Read:
    for field, reason in _WITHOUT_OP.items():
        if field in value:
            return Ignored(reason)
    if value.keys() <= {"ts_ms", "ts_us", "ts_ns"}:
        return Ignored("heartbeat")
    raise BadEvent("op: missing; flattened events are another format")


def _source(value: Row) -> _Source:
    try:
        source = _Source.model_validate(value.get("source"))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(["source", *map(str, first["loc"])])
        raise BadEvent(f"{where}: {first['msg']}") from None
    if source.connector != "postgresql":
        raise BadEvent(f"source.connector: {source.connector[:80]!r} is not postgresql")
    return source


def _identity(row: object, columns: tuple[str, ...], where: str) -> Row:
    if not isinstance(row, dict) or not columns:
        raise BadEvent(f"{where}: has no columns")
    for column in columns:
        if not isinstance(row.get(column), str | int) or row[column] == UNAVAILABLE:
            raise BadEvent(
                f"{where}.{column}: missing, or neither text nor whole number"
            )
    return {column: row[column] for column in columns}
