"""wal2json, format 2 (a line an action) and format 1 (an object a transaction).

Format 2 tells the commit's LSN at a transaction's beginning only, so that its rows are
ordered by (commit LSN, ordinal) if `B` comes in the same body, before them. Rows without it
have their own LSN, which orders one row.
What is not in the replica identity is not told of a row that was.
The key is what `include-pk` names, never the identity: that may be all of the row.
"""

from collections.abc import Iterator, Mapping, Sequence

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
    shape,
    shown,
    text,
    text_or,
    unix_ms,
)
from warmer.model.source import Before, Source

_ACTIONS = {
    "I": Kind.WRITTEN,
    "U": Kind.WRITTEN,
    "D": Kind.DELETED,
    "T": Kind.TRUNCATED,
}
_KINDS = {
    "insert": Kind.WRITTEN,
    "update": Kind.WRITTEN,
    "delete": Kind.DELETED,
    "truncate": Kind.TRUNCATED,
}


class _Transaction:
    """The transaction that lines are read in."""

    commit_lsn: int | None = None
    ordinal = 0

    def begin(self, lsn: int | None) -> None:
        """Begin one that commits at `lsn`, or of which that is not known."""
        self.commit_lsn = lsn
        self.ordinal = 0

    def next(self) -> tuple[int, int] | None:
        """Return the place of the next row in commit order."""
        self.ordinal += 1
        return None if self.commit_lsn is None else (self.commit_lsn, self.ordinal)


def read_all(messages: Sequence[Message], source: Source) -> Sequence[Read]:
    """Return what each line tells of; a row takes its order from the `B` before it."""
    _ = source
    transaction = _Transaction()
    return [_read(message, transaction) for message in messages]


def _read(message: Message, transaction: _Transaction) -> Read:
    try:
        value = an_object(message.value, "message")
        if "change" in value:
            return _of_transaction(value)
        return _of_line(value, transaction)
    except BadEvent as exc:
        return Unreadable(str(exc))


def _of_line(line: Object, transaction: _Transaction) -> Read:
    action = text(line.get("action"), "action")
    lsn = line.get("lsn")
    own = None if lsn is None else log_sequence_number(lsn, "lsn")
    if action in {"B", "C"}:
        transaction.begin(own if action == "B" else None)
        return Ignored("transaction")
    if action == "M":
        return Ignored("message")
    kind = _ACTIONS.get(action)
    if kind is None:
        raise BadEvent(f"action: {shown(action)} is not one of B, I, U, D, T, M, C")
    place = transaction.next()
    after = _columns(line.get("columns"), "columns")
    identity = _columns(line.get("identity"), "identity")
    return Changes(
        (
            RowChange(
                kind=kind,
                schema=text_or(line.get("schema"), "schema"),
                table=text(line.get("table"), "table"),
                key=_key(_names(line.get("pk")), after or identity),
                after=None if kind is Kind.DELETED else after,
                before=identity,
                before_is=Before.FULL,
                row_version=place or (None if own is None else (own,)),
                commit_version=place,
                occurred_at=unix_ms(line.get("timestamp")),
            ),
        )
    )


def _of_transaction(transaction: Object) -> Read:
    lsn = transaction.get("nextlsn")
    commit = None if lsn is None else log_sequence_number(lsn, "nextlsn")
    changes = transaction["change"]
    if not isinstance(changes, list):
        raise BadEvent(f"change: is {shape(changes)}, not a list")
    at = unix_ms(transaction.get("timestamp"))
    rows = tuple(_of_changes(changes, commit, at))
    return Changes(rows) if rows else Ignored("transaction")


def _of_changes(
    changes: Sequence[object], commit: int | None, at: int | None
) -> Iterator[RowChange]:
    for ordinal, item in enumerate(changes):
        change = an_object(item, "change")
        word = text(change.get("kind"), "change.kind")
        if word == "message":
            continue
        kind = _KINDS.get(word)
        if kind is None:
            raise BadEvent(f"change.kind: {shown(word)} is not known")
        version = None if commit is None else (commit, ordinal)
        old = change.get("oldkeys")
        before = None
        if old is not None:
            keys = an_object(old, "change.oldkeys")
            before = _zipped(keys, "keynames", "keyvalues")
        after = _zipped(change, "columnnames", "columnvalues")
        keyed = object_or_none(change.get("pk"), "change.pk") or {}
        yield RowChange(
            kind=kind,
            schema=text_or(change.get("schema"), "change.schema"),
            table=text(change.get("table"), "change.table"),
            key=_key(keyed.get("pknames"), after or before),
            after=None if kind is Kind.DELETED else after,
            before=before,
            row_version=version,
            commit_version=version,
            occurred_at=at,
        )


def _columns(value: object, name: str) -> Mapping[str, object] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadEvent(f"{name}: is {shape(value)}, not a list")
    columns = [an_object(column, name) for column in value]
    return {
        text(column.get("name"), f"{name}.name"): column.get("value")
        for column in columns
    }


def _names(columns: object) -> object:
    """Return the names of the columns that `include-pk` lists in format 2."""
    if columns is None:
        return None
    return list(_columns(columns, "pk") or ())


def _key(names: object, row: Mapping[str, object] | None) -> Object | None:
    """Return the row's primary key; None where the message does not name its columns."""
    if names is None or row is None:
        return None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise BadEvent("pk: is no list of columns")
    return {name: row.get(name) for name in names} or None


def _zipped(
    of: Object, names_field: str, values_field: str
) -> Mapping[str, object] | None:
    names, values = of.get(names_field), of.get(values_field)
    if names is None and values is None:
        return None
    if (
        not isinstance(names, list)
        or not isinstance(values, list)
        or len(names) != len(values)
        or not all(isinstance(name, str) for name in names)
    ):
        raise BadEvent(f"{names_field}: does not match {values_field}")
    return dict(zip(names, values, strict=True))
