"""AWS DMS's JSON messages (Kinesis, Kafka).

Only with `IncludeTransactionDetails` is there an order: the LSN at the head of
`stream-position`, as PostgreSQL sources have it, and the record's number in its
transaction. A stream position of another form orders nothing.
A changed primary key comes as one update whose `before-image` has the old one.
"""

import re

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
    log_sequence_number,
    object_or_none,
    shown,
    text,
    text_or,
    unix_ms,
    whole_or_none,
)
from warmer.model.source import Source

_KINDS = {
    "load": Kind.SNAPSHOT,
    "insert": Kind.WRITTEN,
    "update": Kind.WRITTEN,
    "delete": Kind.DELETED,
    "truncate-table": Kind.TRUNCATED,
    "drop-table": Kind.TRUNCATED,
}
_LSN = re.compile(r"([0-9A-Fa-f]{8}/[0-9A-Fa-f]{8})\.")
_BEFORE = "BI_"


def read(message: Message, source: Source) -> Read:
    """Return the row that changed, or why there is none."""
    _ = source
    try:
        return _change(an_object(message.value, "message"))
    except BadEvent as exc:
        return Unreadable(str(exc))


def _change(message: Object) -> Read:
    about = an_object(message.get("metadata"), "metadata")
    operation = text(about.get("operation"), "metadata.operation")
    kind = _KINDS.get(operation)
    if kind is None and about.get("record-type") == "control":
        return Ignored("control")
    if kind is None:
        raise BadEvent(f"metadata.operation: {shown(operation)} is not known")
    row = object_or_none(message.get("data"), "data")
    if row is None and kind is not Kind.TRUNCATED:
        raise BadEvent("data: missing")
    version = _version(about)
    after, before = _sides(kind, message, row)
    return Changes(
        (
            RowChange(
                kind=kind,
                schema=text_or(about.get("schema-name"), "metadata.schema-name"),
                table=text(about.get("table-name"), "metadata.table-name"),
                after=after,
                before=before,
                row_version=version,
                commit_version=version,
                occurred_at=unix_ms(
                    about.get("commit-timestamp") or about.get("timestamp")
                ),
            ),
        )
    )


def _sides(
    kind: Kind, message: Object, row: Object | None
) -> tuple[Object | None, Object | None]:
    """Return the row as it is and as it was. A deleted one has null beside its key."""
    if row is None:
        return None, None
    image = {
        name.removeprefix(_BEFORE): value
        for name, value in row.items()
        if name.startswith(_BEFORE)
    }
    now = {name: value for name, value in row.items() if not name.startswith(_BEFORE)}
    told = object_or_none(message.get("before-image"), "before-image")
    was = {**image, **(told or {})}
    if kind is Kind.DELETED:
        return None, {**now, **was}
    return now, {**now, **was} if was else None


def _version(about: Object) -> tuple[int, ...] | None:
    position = text_or(about.get("stream-position"), "metadata.stream-position")
    record = whole_or_none(
        about.get("transaction-record-id"), "metadata.transaction-record-id"
    )
    found = _LSN.match(position)
    if found is None or record is None:
        return None
    return log_sequence_number(found[1], "metadata.stream-position"), record
