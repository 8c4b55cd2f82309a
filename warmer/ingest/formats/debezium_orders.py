"""What orders Debezium's events, by connector: the versions in `source`, and their lineage.

PostgreSQL: a change's LSN orders one row, whose lock serialises its writers. Events come
in commit order, and LSNs of interleaved transactions go back in it; `sequence` holds the
previous commit's LSN too, and that pair rises.
MySQL and MariaDB: binlog file (as a number), position, row. A file's base name changes with
a restore or another server, and then nothing compares: it is the lineage. A GTID's server
is not: with several primaries it alternates within one binlog, which is ordered all the same.
SQL Server: LSNs of 80 bits. MongoDB: the cluster's time and an ordinal; since 3.4 the time
is the wall's, which compares with the former as little as two clocks do.
Oracle: the commit's SCN and the change's, decimal texts.

Does not hold: order across a failover, restore or upgrade of PostgreSQL. An event does not
say that its log is another; see the source's regressions.
"""

import re
from typing import NamedTuple

from warmer.errors import BadEvent
from warmer.ingest.formats.fields import (
    Object,
    log_file,
    log_sequence_number,
    nested,
    text,
    text_or,
    whole,
    whole_or_none,
)

_LSN_OF_SQL_SERVER = re.compile(r"([0-9a-fA-F]{8}):([0-9a-fA-F]{8}):([0-9a-fA-F]{4})")
_FIRST_WITH_SEQUENCE = (1, 7)
_WALL_TIME_SINCE = (3, 4)
_U32, _U64 = 2**32, 2**64


class Ordered(NamedTuple):
    """Versions of a change: of its row alone, and in the source's commit order."""

    row: tuple[int, ...] | None
    commit: tuple[int, ...] | None
    lineage: str = ""


def unordered(_: Object) -> Ordered:
    """Return no version: this connector's is not known."""
    return Ordered(None, None)


def postgresql(origin: Object) -> Ordered:
    """Return the LSN, and the previous commit's LSN with it."""
    lsn = origin.get("lsn")
    own = None if lsn is None else log_sequence_number(lsn, "source.lsn")
    pair = _sequence(origin.get("sequence"))
    if pair is None:
        return Ordered(None if own is None else (own,), None)
    previous, sequence_lsn = pair
    # Before 1.7 the second number repeated the first.
    if own is not None and _released(origin) < _FIRST_WITH_SEQUENCE:
        sequence_lsn = own
    row = own if own is not None else sequence_lsn
    if previous is None:
        return Ordered((row,), None)
    return Ordered((row,), (previous, sequence_lsn))


def mysql(origin: Object) -> Ordered:
    """Return file, position and row of the binlog that is followed."""
    file = text_or(origin.get("file"), "source.file")
    if not file:
        return Ordered(None, None)
    base, ordinal = log_file(file, "source.file")
    place = (
        ordinal,
        whole(origin.get("pos"), "source.pos"),
        whole_or_none(origin.get("row"), "source.row") or 0,
    )
    return Ordered(place, place, base)


def sqlserver(origin: Object) -> Ordered:
    """Return commit, change and serial number: 80, 80 and 32 bits in three parts."""
    commit = origin.get("commit_lsn")
    if commit is None:
        return Ordered(None, None)
    change = origin.get("change_lsn")
    serial = whole_or_none(origin.get("event_serial_no"), "source.event_serial_no") or 0
    if serial >= _U32:
        raise BadEvent("source.event_serial_no: is 2^32 or more")
    bits = _bits(commit, "source.commit_lsn")
    bits = bits << 80 | (0 if change is None else _bits(change, "source.change_lsn"))
    bits = bits << 32 | serial
    parts = (bits >> 128, bits >> 64 & (_U64 - 1), bits & (_U64 - 1))
    return Ordered(parts, parts)


def mongodb(origin: Object) -> Ordered:
    """Return the time and the ordinal within its second."""
    ordinal = origin.get("ord")
    ts_ms = whole_or_none(origin.get("ts_ms"), "source.ts_ms")
    if ts_ms is None or ordinal is None or ordinal in (-1, "-1"):
        return Ordered(None, None)
    place = (ts_ms, whole(ordinal, "source.ord"))
    wall = _released(origin) >= _WALL_TIME_SINCE
    return Ordered(place, place, "wall" if wall else "cluster")


def oracle(origin: Object) -> Ordered:
    """Return the commit's number and the change's; equal ones of a transaction are a tie."""
    commit = whole_or_none(origin.get("commit_scn"), "source.commit_scn")
    own = whole_or_none(origin.get("scn"), "source.scn")
    if commit is None or own is None:
        return Ordered(None, None)
    return Ordered((commit, own), (commit, own))


def _sequence(value: object) -> tuple[int | None, int] | None:
    """Return the LSNs in `["901200","901344"]`, a text that holds a list of texts."""
    if value is None:
        return None
    pair = nested(value, "source.sequence") if isinstance(value, str) else value
    if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004 - a pair
        raise BadEvent("source.sequence: is no list of two")
    previous, own = pair
    if own is None:
        return None
    return (
        whole_or_none(previous, "source.sequence"),
        whole(own, "source.sequence"),
    )


def _released(origin: Object) -> tuple[int, int]:
    """Return the connector's release, as far as it is told; the newest if it is not."""
    found = re.match(
        r"(\d{1,4})\.(\d{1,4})", text_or(origin.get("version"), "source.version")
    )
    return (int(found[1]), int(found[2])) if found else (9999, 0)


def _bits(value: object, name: str) -> int:
    found = _LSN_OF_SQL_SERVER.fullmatch(text(value, name))
    if found is None:
        raise BadEvent(f"{name}: is no LSN of the form 8:8:4 hex digits")
    return int("".join(found.groups()), 16)
