"""Scans that are asked for: which keys to look for on the cache server, and how far one is.

Holds: what was asked for is kept until a scan that began after it has seen every name,
whichever workers die. One worker at a time scans. Asking a thousand times is two scans at
most: the one that is under way, and one after it for all that was asked for meanwhile.
Does not hold: that a name is seen once.
"""

import orjson

from warmer.errors import BadEvent
from warmer.model.event import PurgeMode
from warmer.model.prefix_scan import PrefixAsk, TakenScan
from warmer.model.version import SourceVersion
from warmer.store.control_link import ControlLink
from warmer.store.keyspace import PREFIX_ASKS, PREFIX_SCAN
from warmer.store.script import Script

MAX_ASKS = 256
"""Kinds of asking at a time: each name on the cache server is compared with all of them."""

_ASK = Script("scan_ask")
_TAKE = Script("scan_take")
_KEEP = Script("scan_keep")
_DONE = Script("scan_done")


class PrefixScans:
    """The scans of one control server."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    async def ask(self, ask: PrefixAsk) -> None:
        """Ask for a scan; it is not lost any more when this returns."""
        call = _ASK.call(
            asks=PREFIX_ASKS,
            field=_field(
                ask, ask.prefix, parts=len(ask.version.parts()) if ask.version else 0
            ),
            wider=_field(ask, "", parts=0),
            version=ask.version.encode() if ask.version else "-",
            event=ask.event_id,
            # All of a source is bounded by the sources there are.
            most=MAX_ASKS if ask.prefix else 2**31,
        )
        await self._link.run(call)

    async def asked(self) -> int:
        """Return how many kinds of asking no scan has covered yet."""
        return await self._link.ask(self._link.redis.hlen(PREFIX_ASKS))  # type: ignore[arg-type]

    async def take(self, owner: str, *, lease_ms: int) -> TakenScan | None:
        """Return the scan to go on with, None if there is none or another works on it."""
        call = _TAKE.call(
            asks=PREFIX_ASKS, scan=PREFIX_SCAN, owner=owner, lease_ms=lease_ms
        )
        word, *rest = await self._link.run(call)
        if word != b"TAKEN":
            return None
        cursor, run_id, flat = rest
        asks = (
            _asked(field, record)
            for field, record in zip(flat[::2], flat[1::2], strict=True)
        )
        return TakenScan(
            tuple(ask for ask in asks if ask is not None), int(cursor), run_id.decode()
        )

    async def keep(
        self, owner: str, *, cursor: int, run_id: str, lease_ms: int
    ) -> bool:
        """Note how far the scan is; return False if another has it now."""
        call = _KEEP.call(
            scan=PREFIX_SCAN,
            owner=owner,
            lease_ms=lease_ms,
            cursor=cursor,
            run_id=run_id,
        )
        word: bytes = (await self._link.run(call))[0]
        return word == b"KEPT"

    async def done(self, owner: str) -> bool:
        """End a scan that has seen every name; return False if another has it now."""
        call = _DONE.call(asks=PREFIX_ASKS, scan=PREFIX_SCAN, owner=owner)
        word: bytes = (await self._link.run(call))[0]
        return word == b"DONE"


def _field(ask: PrefixAsk, prefix: str, *, parts: int) -> bytes:
    """Return the kind of asking: two of one kind have versions that compare, or none.

    What applies always must not hide behind a version, nor one version behind another.
    """
    mode = ask.mode.value if ask.mode else ""
    return orjson.dumps([ask.source, prefix, mode, parts])


def _asked(field: bytes, record: bytes) -> PrefixAsk | None:
    """Return what was asked for; None for what no release has written."""
    try:
        source, prefix, mode, _parts = orjson.loads(field)
        _times, version, event_id = record.decode().split(" ", 2)
        return PrefixAsk(
            source=source,
            prefix=prefix,
            mode=PurgeMode(mode) if mode else None,
            version=None if version == "-" else SourceVersion.decode(source, version),
            event_id=event_id,
        )
    except (ValueError, BadEvent):
        return None
