"""Debezium's change events in CloudEvents (its CloudEventsConverter, structured).

The metadata is in extension attributes, `iodebeziumlsn` for `source.lsn`, whose values are
texts or numbers as it happens. An event's id is not its own: the rows of one statement,
and the documents of one transaction, share it.
"""

from collections.abc import Mapping

from warmer.errors import BadEvent
from warmer.ingest.formats import Changes, Ignored, Message, Read, Unreadable
from warmer.ingest.formats.debezium import KINDS, record_key, row_change, unwrapped
from warmer.ingest.formats.fields import Object, an_object, shown
from warmer.model.source import Source

_PREFIX = "iodebezium"
_FIELDS = {
    name.replace("_", ""): name
    for name in (
        "version",
        "connector",
        "name",
        "ts_ms",
        "snapshot",
        "db",
        "sequence",
        "schema",
        "table",
        "collection",
        "lsn",
        "file",
        "pos",
        "row",
        "gtid",
        "server_id",
        "ord",
        "rs",
        "commit_lsn",
        "change_lsn",
        "event_serial_no",
        "commit_scn",
        "scn",
        "op",
    )
}


def read(message: Message, source: Source) -> Read:
    """Return the row that changed, or why there is none."""
    if message.value is None:
        return Ignored("tombstone")
    try:
        return _change(an_object(message.value, "event"), message, source)
    except BadEvent as exc:
        return Unreadable(str(exc))


def _change(event: Object, message: Message, source: Source) -> Read:
    about = _source(event)
    op = about.get("op")
    if op == "m":
        return Ignored("message")
    kind = KINDS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadEvent(f"iodebeziumop: {shown(op)} is not one of c, u, d, r, t, m")
    data = unwrapped(event.get("data"), "data")
    envelope = an_object({} if data is None else data, "data")
    return Changes((row_change(kind, envelope, about, record_key(message, source)),))


def _source(event: Mapping[str, object]) -> Mapping[str, object]:
    """Return the extension attributes by the names they have in an event's source."""
    found: dict[str, object] = {}
    for attribute, value in event.items():
        name = attribute.lower()
        if not name.startswith(_PREFIX) or value is None:
            continue
        field = _FIELDS.get(name.removeprefix(_PREFIX).replace("_", ""))
        if field is not None:
            found[field] = value
    return found
