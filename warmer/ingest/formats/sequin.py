"""Sequin's change messages of PostgreSQL, one at a time or a batch in `data`.

Its `commit_lsn` and `commit_idx` order a whole database; an `idempotency_key` tells a
repetition. `changes` holds the former values of what an update changed.
"""

from collections.abc import Iterator

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Kind, Message, Read, RowChange, Unreadable
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
    "insert": Kind.WRITTEN,
    "update": Kind.WRITTEN,
    "delete": Kind.DELETED,
    "read": Kind.SNAPSHOT,
}


def read(message: Message, source: Source) -> Read:
    """Return the rows that changed."""
    _ = source
    try:
        changes = tuple(_row(one) for one in _messages(message.value))
    except BadEvent as exc:
        return Unreadable(str(exc))
    return Changes(changes)


def _messages(value: object) -> Iterator[Object]:
    message = an_object(value, "message")
    batch = message.get("data")
    if isinstance(batch, list) and "record" not in message:
        if not batch:
            raise BadEvent("data: is empty")
        for one in batch:
            yield an_object(one, "data")
    else:
        yield message


def _row(message: Object) -> RowChange:
    action = message.get("action")
    kind = _KINDS.get(action) if isinstance(action, str) else None
    if kind is None:
        raise BadEvent(f"action: {shown(action)} is not insert, update, delete, read")
    about = an_object(message.get("metadata"), "metadata")
    record = an_object(message.get("record"), "record")
    changes = object_or_none(message.get("changes"), "changes")
    version = _version(about)
    database = object_or_none(about.get("database"), "metadata.database") or {}
    gone = kind is Kind.DELETED
    key = text_or(about.get("idempotency_key"), "metadata.idempotency_key")
    return RowChange(
        kind=kind,
        db=text_or(database.get("name"), "metadata.database.name"),
        schema=text_or(about.get("table_schema"), "metadata.table_schema"),
        table=text(about.get("table_name"), "metadata.table_name"),
        after=None if gone else record,
        before=record if gone else None if changes is None else {**record, **changes},
        row_version=version,
        commit_version=version,
        lineage=f"sequin/{text_or(database.get('id'), 'metadata.database.id')}"
        if version
        else "",
        occurred_at=unix_ms(about.get("commit_timestamp")),
        id=key,
        unique=bool(key),
    )


def _version(about: Object) -> tuple[int, ...] | None:
    lsn = about.get("commit_lsn")
    index = whole_or_none(about.get("commit_idx"), "metadata.commit_idx")
    if lsn is None or index is None:
        return None
    return log_sequence_number(lsn, "metadata.commit_lsn"), index
