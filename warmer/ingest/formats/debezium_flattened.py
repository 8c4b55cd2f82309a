"""Debezium's flattened rows (ExtractNewRecordState): columns, and metadata beside them.

    {"id": 7, "sku": "A-1", "__op": "u", "__table": "product", "__lsn": 901344,
     "__deleted": "false"}

Metadata is known by the transform's default prefix; where it has another, `version_fields`
names what orders. Without `add.fields` there is no version and no table, and without
`delete.tombstone.handling.mode=rewrite` a delete is only a tombstone.
"""

import re
from collections.abc import Mapping

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
from warmer.ingest.formats.debezium import (
    KINDS,
    committed_at,
    of_no_row,
    record_key,
    unwrapped,
)
from warmer.ingest.formats.debezium_orders import (
    Ordered,
    mysql,
    postgresql,
    sqlserver,
    unordered,
)
from warmer.ingest.formats.fields import Object, an_object, shown, text, text_or
from warmer.model.source import Before, Source

# `__ts_ms` is when the connector read the event: only its source's is the commit's.
_METADATA = re.compile(
    r"__(?:(?:source_)?(op|table|db|schema|name|version|lsn|sequence|file|pos|row"
    r"|commit_lsn|change_lsn|event_serial_no|deleted)|source_(ts_ms))"
)


def read(message: Message, source: Source) -> Read:
    """Return the row that changed, or why there is none."""
    try:
        value = unwrapped(message.value, "value")
        if value is None:
            return Ignored("tombstone")
        return _change(an_object(value, "value"), message, source)
    except BadEvent as exc:
        return Unreadable(str(exc))


def _change(row: Object, message: Message, source: Source) -> Read:
    about = _metadata(row)
    ignored = None if about else of_no_row(row)
    if ignored is not None:
        return ignored
    kind = _kind(about)
    ordered = _ordered(about)
    gone = kind is Kind.DELETED
    return Changes(
        (
            RowChange(
                kind=kind,
                db=text_or(about.get("db"), "__db"),
                schema=text_or(about.get("schema"), "__schema"),
                table=_table(about, source),
                key=record_key(message, source),
                after=None if gone else row,
                before=row if gone else None,
                # A deleted row was rewritten from `before`, which may be made up.
                before_is=Before.KEY,
                row_version=ordered.row,
                commit_version=ordered.commit,
                lineage=f"flattened/{text_or(about.get('name'), '__name')}/{ordered.lineage}",
                occurred_at=committed_at(about),
            ),
        )
    )


def _metadata(row: Object) -> Mapping[str, object]:
    """Return the fields of the event by their names in its source; the last of a name."""
    found: dict[str, object] = {}
    for name, value in row.items():
        mark = _METADATA.fullmatch(name)
        if mark is not None and value is not None:
            found[mark[1] or mark[2]] = value
    return found


def _kind(about: Mapping[str, object]) -> Kind:
    if about.get("deleted") in (True, "true"):
        return Kind.DELETED
    op = about.get("op", "u")
    kind = KINDS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadEvent(f"__op: {shown(op)} is not one of c, u, d, r, t")
    return kind


def _table(about: Mapping[str, object], source: Source) -> str:
    """Return the table; a source of one, named without a schema, need not tell it."""
    only = next(iter(source.tables)) if len(source.tables) == 1 else "."
    if about.get("table") is None and "." not in only:
        return only
    return text(about.get("table"), "__table")


def _ordered(about: Mapping[str, object]) -> Ordered:
    if "lsn" in about or "sequence" in about:
        return postgresql(about)
    if "commit_lsn" in about:
        return sqlserver(about)
    if "file" in about and "pos" in about:
        return mysql(about)
    return unordered(about)
