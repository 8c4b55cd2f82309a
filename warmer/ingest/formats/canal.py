"""Canal's flat messages of MySQL, and TiCDC's in the same form.

One message holds several rows, and every value is text. Canal tells no position, so that
its events always apply; TiCDC's `_tidb.commitTs` orders the whole cluster.
"""

from collections.abc import Sequence

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
    whole_or_none,
)
from warmer.model.source import Source

_KINDS = {"INSERT": Kind.WRITTEN, "UPDATE": Kind.WRITTEN, "DELETE": Kind.DELETED}
_EMPTYING = {"TRUNCATE", "ERASE"}
_OTHER = {"CREATE", "ALTER", "RENAME", "CINDEX", "DINDEX", "QUERY"}


def read(message: Message, source: Source) -> Read:
    """Return the rows that changed, or why there are none."""
    _ = source
    try:
        return _changes(an_object(message.value, "message"))
    except BadEvent as exc:
        return Unreadable(str(exc))


def _changes(message: Object) -> Read:
    type_ = text(message.get("type"), "type").upper()
    if type_ in _EMPTYING:
        return Changes((_change(Kind.TRUNCATED, message, None, None),))
    if type_.startswith("TIDB_"):
        return Ignored("heartbeat")
    kind = _KINDS.get(type_)
    if kind is None:
        # By its type first: a flag of another form must not hide a row.
        if type_ in _OTHER or message.get("isDdl") is True:
            return Ignored("schema_change")
        raise BadEvent(f"type: {shown(type_)} is not known")
    rows = _rows(message.get("data"), "data")
    if not rows:
        raise BadEvent("data: has no rows")
    olds = _rows(message.get("old"), "old")
    return Changes(
        tuple(
            _change(kind, message, row, olds[at] if at < len(olds) else None)
            for at, row in enumerate(rows)
        )
    )


def _rows(value: object, name: str) -> Sequence[Object | None]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadEvent(f"{name}: is {shape(value)}, not a list")
    return [object_or_none(row, name) for row in value]


def _change(
    kind: Kind, message: Object, row: Object | None, old: Object | None
) -> RowChange:
    tidb = object_or_none(message.get("_tidb"), "_tidb") or {}
    commit = whole_or_none(tidb.get("commitTs"), "_tidb.commitTs")
    version = None if commit is None else (commit,)
    gone = kind is Kind.DELETED
    return RowChange(
        kind=kind,
        db=text_or(message.get("database"), "database"),
        table=text(message.get("table"), "table"),
        key=_key(message.get("pkNames"), row),
        after=None if gone else row,
        before=row if gone else None if old is None else {**(row or {}), **old},
        row_version=version,
        commit_version=version,
        occurred_at=whole_or_none(message.get("es"), "es"),
    )


def _key(names: object, row: Object | None) -> Object | None:
    if not isinstance(names, list) or row is None:
        return None
    columns = [name for name in names if isinstance(name, str)]
    return {name: row.get(name) for name in columns} or None
