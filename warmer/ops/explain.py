"""Why a key is fresh, stale or absent, from what is stored for it and the event log.

Pure: the command `warmer why` gathers, this judges. All instants are Unix ms by the cache
server's clock, except `at_ms` of an event: the control server's, when it was appended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from warmer.model.dataset import Dataset
from warmer.model.entry import Entry, readable_versions
from warmer.model.event import Event
from warmer.model.key import Key, encode_part
from warmer.model.version import (
    Order,
    Scope,
    SourceVersion,
    Versions,
    source_of,
    version_for,
)
from warmer.store.due_set import Place
from warmer.store.port import Family

CLOCKS_APART_MS = 1_000
"""How far the clocks of the two servers may be apart before a sentence is wrong."""


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event of the log that this key depends on."""

    event: Event
    log_id: str

    @property
    def at_ms(self) -> int:
        """When it was appended."""
        return int(self.log_id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest version the key may be published with; `raised` by which generation."""

    version: SourceVersion
    raised: int


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard's fields as numbers."""

    fence: int
    generation: int
    blind: int
    hard: int
    failures: int
    purged_at: int | None
    retry_at: int | None
    floors: dict[Scope, Floor]


class Standing(StrEnum):
    """What an event means for the key as it is now."""

    RAISED_FLOOR = "raised_floor"
    """The floor is at its version: the entry must reach it."""
    SUPERSEDED = "superseded"
    """Something newer is known; it changes nothing, whenever it came."""
    IN_ENTRY = "in_entry"
    """The entry was loaded with its version, or a newer one."""
    NOT_APPLIED = "not_applied"
    """Newer than all that is known of the key: no worker has applied it yet."""
    UNVERSIONED = "unversioned"
    """It has no version, so that what is stored does not tell."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one key at `now_ms`.

    `place`: where the key stands in the due set. `control_error`: why `place` and
    `events` are not known, if they are not.
    """

    dataset: Dataset
    key: Key
    family: Family
    guard: Guard | None
    now_ms: int
    events: Sequence[SeenEvent] = ()
    place: Place | None = None
    control_error: str | None = None

    @property
    def verdict(self) -> str:
        """Return absent, unreadable, fresh, stale, error_only or expired."""
        entry = self.family.entry
        if self.family.entry_refused is not None:
            return "unreadable"
        if entry is None:
            return "absent"
        if self.now_ms < entry.fresh_until:
            return "fresh"
        if self.now_ms < entry.stale_until:
            return "stale"
        return "error_only" if self.now_ms < entry.error_until else "expired"

    def sentence(self) -> str:
        """Return the answer in one sentence."""
        entry, now = self.family.entry, self.now_ms
        if self.family.entry_refused is not None:
            return (
                f"Unreadable ({self.family.entry_refused}): no reader trusts what is "
                f"stored; {self._next_step()}."
            )
        if entry is None:
            return f"Absent: {self._why_absent()}; {self._next_step()}."
        match self.verdict:
            case "fresh":
                waiting = self._not_applied()
                but = f"; {waiting}" if waiting else ""
                return (
                    f"Fresh for {span(entry.fresh_until - now)} more: "
                    f"loaded {span(now - entry.created_at)} ago{but}."
                )
            case "stale":
                served = f"Stale, served for {span(entry.stale_until - now)} more"
            case "error_only":
                served = (
                    f"Stale, served for {span(entry.error_until - now)} more only if "
                    "the origin fails"
                )
            case _:
                over = now - max(entry.stale_until, entry.error_until)
                served = f"Expired {span(over)} ago, served to nobody"
        return f"{served}, because {self._why_stale(entry)}; {self._next_step()}."

    # --- reasons ----------------------------------------------------------------------

    def _why_stale(self, entry: Entry) -> str:
        if entry.kept_stale:
            return (
                "an invalidation came in while it was loaded, and the load does not "
                "prove that it holds the change"
            )
        guard = self.guard
        if (
            guard is None
            or guard.purged_at is None
            or guard.purged_at < entry.created_at
        ):
            return self._why_over(entry)
        at = clock_time(guard.purged_at)
        versions = readable_versions(entry)
        for scope, floor in guard.floors.items():
            loaded = version_for(scope, versions)
            if _reached(loaded, floor.version):
                continue
            event = self._event_of(scope, floor.version)
            cause = f"event {event.event.id}" if event else "an invalidation"
            return (
                f"{cause} at {at} raised the floor of {scope} to "
                f"{floor.version}, and the entry has "
                f"{loaded or 'no version of it'}"
            )
        blind = next((seen for seen in self.events if seen.event.version is None), None)
        cause = f"event {blind.event.id}" if blind else "an invalidation"
        return f"{cause} without a comparable version came at {at}, and no load since"

    def _why_over(self, entry: Entry) -> str:
        over = f"its fresh time ended {span(self.now_ms - entry.fresh_until)} ago"
        settle_ms = self.dataset.settle_ms
        purged_at = self.guard.purged_at if self.guard else None
        if purged_at is None or entry.fresh_until != purged_at + settle_ms:
            return over
        return (
            f"{over}: loaded within settle_for ({span(settle_ms)}) of a change that "
            "no version proves it to hold, it was fresh no longer than that"
        )

    def _why_absent(self) -> str:
        guard = self.guard
        if guard is None:
            return "never loaded, or forgotten by the server"
        if (
            guard.hard
            and guard.hard == guard.generation
            and guard.purged_at is not None
        ):
            return f"a hard purge removed it at {clock_time(guard.purged_at)}"
        if guard.failures:
            return "no load has succeeded"
        return "its last window ended, or the server evicted it"

    def _next_step(self) -> str:
        now, guard, place = self.now_ms, self.guard, self.place
        if self.family.lease_token is not None:
            left = self.family.lease_ms
            time = "without an end" if left is None else f"for {span(left)} more"
            return f"a refresher holds the lease {time}"
        if guard is not None and guard.retry_at is not None and guard.retry_at > now:
            return (
                f"loading failed {_times(guard.failures)} and is tried again in "
                f"{span(guard.retry_at - now)}"
            )
        if place is not None and not place.working and place.due_in_ms <= 0:
            return (
                f"it has been due for {span(-place.due_in_ms)}, and no worker has "
                f"taken it (lane {place.lane})"
            )
        if place is not None and not place.working:
            tried = (
                f", after {_times(place.attempts)} in vain" if place.attempts else ""
            )
            return (
                f"a worker is to load it in {span(place.due_in_ms)} "
                f"(lane {place.lane}){tried}"
            )
        return "the next caller loads it"

    def _not_applied(self) -> str | None:
        for seen in self.events:
            told = f"event {seen.event.id} of {clock_time(seen.at_ms)} is in the log"
            if self.standing(seen.event) is Standing.NOT_APPLIED:
                return f"{told} and not applied"
            if seen.event.version is None and self._nothing_since(seen.at_ms):
                return f"{told}, and nothing was invalidated since"
        return None

    def _nothing_since(self, at_ms: int) -> bool:
        """Return whether neither a load nor a purge can have followed this instant."""
        entry, purged_at = self.family.entry, self.guard and self.guard.purged_at
        seen_ms = max(entry.created_at if entry else 0, purged_at or 0)
        return seen_ms < at_ms - CLOCKS_APART_MS

    def standing(self, event: Event) -> Standing:
        """Return what the event means for this key now."""
        if event.version is None:
            return Standing.UNVERSIONED
        entry = self.family.entry
        versions = readable_versions(entry) if entry else {}
        floors = self.guard.floors if self.guard else {}
        standings = [
            _standing(event.version, floors.get(scope), version_for(scope, versions))
            for scope in (f"{event.source}/{entity}" for entity in event.entities)
            if depends(self.dataset, self.key, scope)
        ]
        # What is still to be done is said before what has been.
        order = (Standing.NOT_APPLIED, Standing.RAISED_FLOOR, Standing.IN_ENTRY)
        return next((one for one in order if one in standings), Standing.SUPERSEDED)

    def _event_of(self, scope: Scope, version: SourceVersion) -> SeenEvent | None:
        return next(
            (
                seen
                for seen in self.events
                if seen.event.version == version
                and scope
                in {f"{seen.event.source}/{one}" for one in seen.event.entities}
            ),
            None,
        )

    # --- data -------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return all of it, as `warmer why --json` prints it."""
        family, guard, now = self.family, self.guard, self.now_ms
        return {
            "key": self.key.text,
            "dataset": self.key.dataset,
            "schema_version": self.key.schema_version,
            "parts": dict(self.key.parts),
            "now_ms": now,
            "verdict": self.verdict,
            "because": self.sentence(),
            "entry": family.entry and _entry_json(family.entry, now),
            "entry_refused": family.entry_refused,
            "lease": None
            if family.lease_token is None
            else {"token": family.lease_token, "ends_in_ms": family.lease_ms},
            "guard": guard and _guard_json(guard, now, family.guard_ms),
            "due": self.place and _place_json(self.place),
            "events": [
                {**_event_json(seen), "standing": self.standing(seen.event).value}
                for seen in self.events
            ],
            "control_error": self.control_error,
        }


def guard_of(fields: dict[str, str]) -> Guard | None:
    """Return the guard that these fields make, None for none."""
    if not fields:
        return None
    floors = {}
    for name, encoded in fields.items():
        scope = name.removeprefix("floor.")
        if scope != name:
            floors[scope] = Floor(
                SourceVersion.decode(source_of(scope), encoded),
                _number(fields, f"raised.{scope}") or 0,
            )
    return Guard(
        fence=_number(fields, "fence") or 0,
        generation=_number(fields, "generation") or 0,
        blind=_number(fields, "blind") or 0,
        hard=_number(fields, "hard") or 0,
        failures=_number(fields, "failures") or 0,
        purged_at=_number(fields, "purged_at"),
        retry_at=_number(fields, "retry_at"),
        floors=floors,
    )


def depends(dataset: Dataset, key: Key, scope: Scope) -> bool:
    """Return whether `key` is one of those that a change of this entity reaches."""
    source, _, entity = scope.partition("/")
    parts = dict(key.parts)
    for pattern in dataset.entities:
        bound = pattern.match(entity) if pattern.source == source else None
        if bound is not None and all(
            encode_part(name, value) == parts[name]
            for name, value in bound.items()
            if name in parts
        ):
            return True
    return False


def clock_time(at_ms: int) -> str:
    """Return an instant in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(ms: int) -> str:
    """Return a duration for people: 12 ms, 4.2 s, 3 min, 5 h, 2 d."""
    if ms < 1_000:  # noqa: PLR2004 - units
        return f"{ms} ms"
    for size, unit, until in (
        (1_000, "s", 120),
        (60_000, "min", 120),
        (3_600_000, "h", 48),
    ):
        if ms < size * until:
            count = ms / size
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"  # noqa: PLR2004
    return f"{ms // 86_400_000} d"


def versions_json(versions: Versions) -> dict[str, dict[str, object]]:
    """Return versions as JSON: parts as text, because 2^53 is the end of many numbers."""
    return {scope: _version_json(version) for scope, version in versions.items()}


def _standing(
    version: SourceVersion, floor: Floor | None, loaded: SourceVersion | None
) -> Standing:
    to_floor = version.compare(floor.version) if floor else Order.NEWER
    if to_floor is Order.EQUAL and not _reached(loaded, version):
        return Standing.RAISED_FLOOR
    if to_floor is Order.OLDER:
        return Standing.SUPERSEDED
    return Standing.IN_ENTRY if _reached(loaded, version) else Standing.NOT_APPLIED


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _reached(version: SourceVersion | None, floor: SourceVersion) -> bool:
    return version is not None and version.compare(floor) in {Order.EQUAL, Order.NEWER}


def _number(fields: dict[str, str], name: str) -> int | None:
    text = fields.get(name, "")
    return int(text) if text.isdigit() else None


def _version_json(version: SourceVersion) -> dict[str, object]:
    return {"epoch": version.epoch, "parts": [str(part) for part in version.parts()]}


def _entry_json(entry: Entry, now: int) -> dict[str, object]:
    return {
        "age_ms": now - entry.created_at,
        "created_at_ms": entry.created_at,
        "fresh_for_ms": entry.fresh_until - now,
        "stale_for_ms": entry.stale_until - now,
        "error_for_ms": entry.error_until - now,
        "fence": entry.fence,
        "load_ms": entry.load_ms,
        "negative": entry.negative,
        "kept_stale": entry.kept_stale,
        "body_bytes": len(entry.body),
        "versions": versions_json(readable_versions(entry)),
    }


def _guard_json(guard: Guard, now: int, ends_in_ms: int | None) -> dict[str, object]:
    return {
        "fence": guard.fence,
        "generation": guard.generation,
        "blind": guard.blind,
        "hard": guard.hard,
        "failures": guard.failures,
        "purged_ms_ago": None if guard.purged_at is None else now - guard.purged_at,
        "retry_in_ms": None if guard.retry_at is None else max(0, guard.retry_at - now),
        "ends_in_ms": ends_in_ms,
        "floors": {
            scope: {**_version_json(floor.version), "raised": floor.raised}
            for scope, floor in guard.floors.items()
        },
    }


def _place_json(place: Place) -> dict[str, object]:
    return {
        "lane": place.lane.value,
        "working": place.working,
        "due_in_ms": place.due_in_ms,
        "attempts": place.attempts,
    }


def _event_json(seen: SeenEvent) -> dict[str, object]:
    event = seen.event
    return {
        "id": event.id,
        "log_id": seen.log_id,
        "at_ms": seen.at_ms,
        "source": event.source,
        "entities": list(event.entities),
        "version": event.version and _version_json(event.version),
        "mode": event.mode and event.mode.value,
    }
