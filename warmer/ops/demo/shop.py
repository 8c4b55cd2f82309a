"""The demo's source of truth: a shop in SQLite, with a log of its changes.

Holds: a row's change, its new version and its line in the log are one commit; what a
query returns is one snapshot. A row's version is the position (LSN) of its last change in
the log. SQLite has one writer at a time, so positions order all commits, and the last
position in a snapshot stands for everything before it.
Does not hold: that it is slow, like a database: see `warmer.ops.demo.origin`.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from warmer.clock import Clock

LOCALES = ("de", "en", "fr")
PRODUCTS = 3_000
NOTES = 3_000
LISTED = 200
"""Notes in one list, newest first: some 30 KB of JSON."""

_FIRST_LSN = 24_023_128
_RECORD_BYTES = 56
"""Positions in a database's log are bytes: they grow, and not by one."""

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE product (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  price_cents INTEGER NOT NULL,
  version INTEGER NOT NULL
);
CREATE TABLE note (
  id INTEGER PRIMARY KEY,
  locale TEXT NOT NULL,
  title TEXT NOT NULL,
  body TEXT NOT NULL,
  version INTEGER NOT NULL
);
CREATE INDEX note_by_locale ON note (locale, id);
CREATE TABLE change (
  lsn INTEGER PRIMARY KEY,
  previous_commit INTEGER NOT NULL,
  committed_at_ms INTEGER NOT NULL,
  changed TEXT NOT NULL,
  row TEXT NOT NULL
);
"""
_UPDATES = {
    "product": "UPDATE product SET price_cents = ?, version = ? WHERE id = ? RETURNING *",
    "note": "UPDATE note SET title = ?, version = ? WHERE id = ? RETURNING *",
}

Row = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Change:
    """One committed change of one row, as the log has it; `row` is the row after it."""

    lsn: int
    previous_commit: int
    committed_at_ms: int
    table: str
    row: Row


class Shop:
    """The shop's database. One connection: a query sees a whole commit or none of it."""

    def __init__(self, connection: sqlite3.Connection, clock: Clock) -> None:
        self._connection = connection
        self._connection.row_factory = sqlite3.Row
        self._clock = clock

    @classmethod
    @contextmanager
    def founded(cls, path: Path, clock: Clock) -> Iterator[Self]:
        """Create the database with its products and notes; close it at the end."""
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(_SCHEMA)
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO product VALUES (?, ?, ?, ?)", _products()
            )
            connection.executemany("INSERT INTO note VALUES (?, ?, ?, ?, ?)", _notes())
            connection.execute("COMMIT")
            yield cls(connection, clock)

    def product(self, product_id: int) -> Row | None:
        """Return one product, None if there is none."""
        found = self._connection.execute(
            "SELECT * FROM product WHERE id = ?", (product_id,)
        ).fetchone()
        return dict(found) if found else None

    def notes(self, locale: str) -> list[Row]:
        """Return the newest notes in one language."""
        found = self._connection.execute(
            "SELECT id, title, body, version FROM note WHERE locale = ?"
            " ORDER BY id DESC LIMIT ?",
            (locale, LISTED),
        )
        return [dict(row) for row in found]

    def position(self) -> int:
        """Return the position of the last change."""
        last: int | None = self._connection.execute(
            "SELECT max(lsn) FROM change"
        ).fetchone()[0]
        return _FIRST_LSN if last is None else last

    def reprice(self, product_id: int, price_cents: int) -> Change | None:
        """Give a product a new price; None if there is no such product."""
        return self._update("product", product_id, price_cents)

    def retitle(self, note_id: int, title: str) -> Change | None:
        """Give a note a new title; None if there is no such note."""
        return self._update("note", note_id, title)

    def changes_after(self, lsn: int, *, at_most: int = 100) -> list[Change]:
        """Return the changes after `lsn`, in the order of their commits."""
        found = self._connection.execute(
            "SELECT * FROM change WHERE lsn > ? ORDER BY lsn LIMIT ?", (lsn, at_most)
        )
        return [
            Change(
                lsn=logged["lsn"],
                previous_commit=logged["previous_commit"],
                committed_at_ms=logged["committed_at_ms"],
                table=logged["changed"],
                row=json.loads(logged["row"]),
            )
            for logged in found
        ]

    def _update(self, table: str, row_id: int, value: int | str) -> Change | None:
        # A transaction's records: its change, then its commit.
        previous_commit = self.position() + _RECORD_BYTES
        lsn = previous_commit + _RECORD_BYTES
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            updated = self._connection.execute(
                _UPDATES[table], (value, lsn, row_id)
            ).fetchone()
            if updated is None:
                return None
            change = Change(
                lsn=lsn,
                previous_commit=previous_commit,
                committed_at_ms=self._clock.now_ms(),
                table=table,
                row=dict(updated),
            )
            self._connection.execute(
                "INSERT INTO change VALUES (?, ?, ?, ?, ?)",
                (
                    change.lsn,
                    change.previous_commit,
                    change.committed_at_ms,
                    change.table,
                    json.dumps(change.row),
                ),
            )
        return change


def _products() -> Iterator[tuple[int, str, int, int]]:
    for number in range(1, PRODUCTS + 1):
        yield number, f"Product {number}", 100 + number * 37 % 50_000, _FIRST_LSN


def _notes() -> Iterator[tuple[int, str, str, str, int]]:
    for number in range(1, NOTES + 1):
        locale = LOCALES[number % len(LOCALES)]
        body = f"What note {number} has to say, in {locale}. " * 3
        yield number, locale, f"Note {number}", body, _FIRST_LSN
