"""A source as it is declared: how its messages are read, ordered and proven.

Holds: which entities a row stands for is decided by templates alone, so that one change
always names the same entities, whichever sink carried it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from warmer.errors import BadEvent, BadKey
from warmer.model.key import canonical_entity, encode_part

Scalar = str | int | bool
"""What a column may be to name an entity. Floats have no canonical spelling."""
Row = Mapping[str, object]
"""Columns by name, as the producer spells them."""

_HOME_SCHEMAS = frozenset({"", "public", "dbo"})
"""Schemas that nobody names: `product:42`, but `audit.product:42`."""
_NAMING = frozenset({"cloudevents", "debezium-outbox", "plain", "purge"})
"""Formats whose producers give entity and version themselves."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_COLUMN = re.compile(r"[^\W\d]\w*")
_PLACES = frozenset({"db", "schema", "table"})


class Order(StrEnum):
    """Which of a message's versions is the version of its entities."""

    ROW = "row"
    """The change's own; right while an entity is one row, whose lock orders its writers."""
    COMMIT = "commit"
    """Of the transaction, in commit order; needed where several rows make one entity."""
    NONE = "none"
    """None: every event applies."""


class Snapshot(StrEnum):
    """What a row of a snapshot or a backfill does. It never moves a floor."""

    IGNORE = "ignore"
    WARM = "warm"
    INVALIDATE = "invalidate"


class Before(StrEnum):
    """How much of a row's former state the source knows."""

    KEY = "key"
    """Its key only; the other columns may be made up."""
    FULL = "full"


class Scheme(StrEnum):
    """How a sender proves who it is."""

    STANDARD_WEBHOOKS = "standard-webhooks"
    GITHUB = "github"
    GITLAB = "gitlab"
    STRIPE = "stripe"
    HMAC = "hmac-sha256"
    BEARER = "bearer"
    NONE = "none"


class OnRegression(StrEnum):
    """What follows when several entities went back although their commits are newer."""

    REPORT = "report"
    OPEN_EPOCH = "open_epoch"


@dataclass(frozen=True, slots=True)
class Auth:
    """A scheme and its secrets; any of them will do, so that they can be rotated."""

    scheme: Scheme
    secrets: tuple[bytes, ...] = field(repr=False)
    tolerance_ms: int


@dataclass(frozen=True, slots=True)
class RowId:
    """Where a row stands, and the values of its key in order; None where unknown."""

    db: str
    schema: str
    table: str
    key: Sequence[object] | None = None


class EntityTemplate:
    """Which entity a row stands for: `product:{id}`, `order:{order_id}`, `{table}:{key}`.

    `{db}`, `{schema}` and `{table}` are where the row stands, `{key}` its key's values
    joined by `:`; every other name is a column, and `{row.key}` the column called key.
    """

    __slots__ = ("_pieces", "columns", "text")

    def __init__(self, text: str) -> None:
        """Parse `text`; raises BadKey that says what is wrong with it."""
        self.text = text
        self._pieces = _PLACEHOLDER.split(text)
        names = self._pieces[1::2]
        if any(brace in literal for literal in self._pieces[::2] for brace in "{}"):
            raise BadKey(f"entity template {text!r} has a lone brace")
        self.columns = tuple(
            name.removeprefix("row.") for name in names if name not in _PLACES | {"key"}
        )
        if not names:
            raise BadKey(f"entity template {text!r} names no column and no {{key}}")
        if not all(map(_COLUMN.fullmatch, self.columns)):
            raise BadKey(
                f"entity template {text!r}: a column's name is letters, digits, _"
            )

    @property
    def needs_key(self) -> bool:
        """True if the values of the row's key stand in the entity."""
        return "key" in self._pieces[1::2]

    def names_one_row(self, key: Collection[str]) -> bool:
        """Return whether two rows never have one entity; `key` are the columns of the key."""
        return self.needs_key or (bool(key) and set(key) <= set(self.columns))

    def entity(self, at: RowId, row: Row) -> str:
        """Return the canonical entity; raises BadEvent naming what the row lacks."""
        return canonical_entity("".join(self._texts(at, row, len(self._pieces))))

    def prefix(self, at: RowId) -> str:
        """Return what the ids of all rows of the table begin with; "" for nothing."""
        fixed = 1
        while fixed < len(self._pieces) and self._pieces[fixed] in _PLACES:
            fixed += 2
        text = "".join(self._texts(at, {}, fixed))
        return canonical_entity(text) if text else ""

    def _texts(self, at: RowId, row: Row, until: int) -> list[str]:
        return [
            self._text(piece, at, row) if index % 2 else piece
            for index, piece in enumerate(self._pieces[:until])
        ]

    def _text(self, name: str, at: RowId, row: Row) -> str:
        match name:
            case "db":
                return encode_part(name, at.db)
            case "schema":
                return encode_part(name, at.schema)
            case "table":
                schema = "" if at.schema in _HOME_SCHEMAS else at.schema + "."
                return encode_part(name, schema + at.table)
            case "key":
                if not at.key:
                    raise BadEvent(
                        f"key: missing for {self.text}, and the table's key names no "
                        "columns that the row has"
                    )
                return ":".join(_encoded("key", value) for value in at.key)
            case _:
                column = name.removeprefix("row.")
                if column not in row:
                    raise BadEvent(f"column {column}: missing, for {self.text}")
                return _encoded(f"column {column}", row[column])


def _encoded(what: str, value: object) -> str:
    if not isinstance(value, str | int):
        kind = "null" if value is None else type(value).__name__
        raise BadEvent(f"{what}: is {kind}, allowed are text and whole numbers")
    try:
        return encode_part(what, value)
    except BadKey as exc:
        raise BadEvent(str(exc)) from None


@dataclass(frozen=True, slots=True)
class Table:
    """How rows of one table become entities. No `entities`: its changes are ignored.

    `key` names the columns of its key, for messages that do not bring it. `version_fields`
    None = the source's, where each entity is one row; said, they rise over each entity.
    """

    entities: tuple[EntityTemplate, ...]
    key: tuple[str, ...] = ()
    version_fields: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StreamIn:
    """Redis streams that a source is read from; `names` are their keys."""

    names: tuple[str, ...]
    group: str
    trim: bool


@dataclass(frozen=True, slots=True)
class Source:
    """One source. Durations are integer milliseconds; 0 switches off.

    `before` None = as the format knows it. `auth` None = not reachable over HTTP.
    `version_fields` name the columns that make the version, in place of the log's position.
    """

    name: str
    format: str
    order: Order = Order.ROW
    snapshot: Snapshot = Snapshot.WARM
    before: Before | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    unlisted: Table = Table(entities=(EntityTemplate("{table}:{key}"),))
    version_fields: tuple[str, ...] = ()
    key_header: str = ""
    cloudevents_source: str = ""
    auth: Auth | None = None
    dedupe_ms: int = 600_000
    regression_ms: int = 60_000
    regression_entities: int = 5
    on_regression: OnRegression = OnRegression.REPORT
    stream: StreamIn | None = None

    @property
    def tells_log_positions(self) -> bool:
        """True if its versions are places in a log, which no load can report.

        A change's place lies before its commit's: a snapshot may have passed the one and
        not hold the other.
        """
        if self.version_fields or self.order is Order.NONE:
            return False
        return self.format not in _NAMING

    @property
    def fields_lineage(self) -> str:
        """The lineage of versions that fields make: of other fields, they do not compare."""
        return "by " + ",".join(self.version_fields or ("version",))

    def table(self, at: RowId) -> Table:
        """Return the rule for a table: of its fullest name, else that for unlisted ones."""
        for name in (
            f"{at.db}.{at.schema}.{at.table}",
            f"{at.schema or at.db}.{at.table}",
            f"{at.db}.{at.table}",
            at.table,
        ):
            if name in self.tables:
                return self.tables[name]
        return self.unlisted


Sources = Mapping[str, Source]
