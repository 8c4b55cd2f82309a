"""Maxwell's row events, of MySQL and MariaDB.

Holds: only a binlog position orders them (`output_binlog_position`): a transaction's
number begins again with its server. The last row of a transaction has no offset in it, and
comes after all that have one. Of the row as it was, only changed columns are told: the
rest is as it is.
"""

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
    U64,
    Object,
    an_object,
    log_file,
    object_or_none,
    shown,
    text,
    text_or,
    whole,
    whole_or_none,
)
from warmer.model.source import Source

_KINDS = {
    "insert": Kind.WRITTEN,
    "update": Kind.WRITTEN,
    "delete": Kind.DELETED,
    "bootstrap-insert": Kind.SNAPSHOT,
    "table-drop": Kind.TRUNCATED,
    "table-truncate": Kind.TRUNCATED,
}
_IGNORED = {
    "bootstrap-start": "bootstrap",
    "bootstrap-complete": "bootstrap",
    "table-create": "schema_change",
    "table-alter": "schema_change",
    "database-create": "schema_change",
    "database-alter": "schema_change",
    "database-drop": "schema_change",
    "heartbeat": "heartbeat",
}
_LAST_OF_ITS_TRANSACTION = U64 - 1


def read(message: Message, source: Source) -> Read:
    """Return the row that changed, or why there is none."""
    _ = source
    try:
        return _change(an_object(message.value, "event"))
    except BadEvent as exc:
        return Unreadable(str(exc))


def _change(event: Object) -> Read:
    type_ = text(event.get("type"), "type")
    if type_ in _IGNORED:
        return Ignored(_IGNORED[type_])
    kind = _KINDS.get(type_)
    if kind is None:
        raise BadEvent(f"type: {shown(type_)} is not known")
    row = None if kind is Kind.TRUNCATED else an_object(event.get("data"), "data")
    old = object_or_none(event.get("old"), "old")
    version, lineage = _version(event)
    gone = kind is Kind.DELETED
    return Changes(
        (
            RowChange(
                kind=kind,
                db=text_or(event.get("database"), "database"),
                table=text(event.get("table"), "table"),
                key=_key(event, row),
                after=None if gone else row,
                before=row if gone else None if old is None else {**(row or {}), **old},
                row_version=version,
                commit_version=version,
                lineage=lineage,
                occurred_at=_occurred_at(event, kind),
            ),
        )
    )


def _key(event: Object, row: Object | None) -> Object | None:
    """Return the key by `primary_key_columns`; its values by `primary_key`, or the row's."""
    columns = event.get("primary_key_columns")
    if columns is None or row is None:
        return None
    values = event.get("primary_key")
    if not isinstance(columns, list) or not all(
        isinstance(one, str) for one in columns
    ):
        raise BadEvent("primary_key_columns: is no list of texts")
    if values is None:
        return {column: row.get(column) for column in columns} or None
    if not isinstance(values, list) or len(values) != len(columns):
        raise BadEvent("primary_key: does not match primary_key_columns")
    return dict(zip(columns, values, strict=True)) or None


def _version(event: Object) -> tuple[tuple[int, ...] | None, str]:
    position = text_or(event.get("position"), "position")
    if not position:
        return None, ""
    file, _, offset = position.rpartition(":")
    base, ordinal = log_file(file, "position")
    in_transaction = whole_or_none(event.get("xoffset"), "xoffset")
    if in_transaction is None:
        in_transaction = _LAST_OF_ITS_TRANSACTION
    version = (ordinal, whole(offset, "position"), in_transaction)
    return version, f"maxwell/{base}"


def _occurred_at(event: Object, kind: Kind) -> int | None:
    ts = whole_or_none(event.get("ts"), "ts")
    # Rows are dated in seconds, schema changes in milliseconds.
    if ts is None or kind is Kind.TRUNCATED:
        return ts
    return whole(ts * 1_000, "ts")
