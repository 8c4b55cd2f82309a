"""`warmer why`: what is stored for one key, and what that means."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click

from warmer.clock import SystemClock
from warmer.errors import BadEvent, StoreError
from warmer.ingest.event_log import decode
from warmer.model.dataset import Dataset
from warmer.model.dataset_config import Configuration, configure
from warmer.model.due import member_of
from warmer.model.entry import readable_versions
from warmer.model.key import Key
from warmer.ops.cli.exits import Exit
from warmer.ops.cli.keys import key_named
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.ops.explain import (
    Explanation,
    SeenEvent,
    clock_time,
    depends,
    guard_of,
    span,
)
from warmer.signals import Counters
from warmer.store.control import ControlServer
from warmer.store.dead_letters import Parked
from warmer.wiring import open_control, open_store

PAGE = 500
EVENTS_LOOKED_AT = 10_000
"""Newest events of the log that are searched for those of the key."""
EVENTS_SHOWN = 5
LETTERS_LOOKED_AT = 10_000
LETTERS_SHOWN = 5


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="KEY | DATASET PART=VALUE...")
@CONFIG
@JSON
def why(words: tuple[str, ...], file: str | None, *, as_json: bool) -> int:
    """Say why a key is fresh, stale or absent, and what is stored for it.

    One sentence first; then entry, lease, guard, its place in the due set, the newest
    events of its entities and what each means for it, and dead letters about it. Windows
    are told by the cache server's clock. Without a control server, what depends on it is
    left out. A user who may only read is enough.

    \b
    JSON: {"key", "dataset", "schema_version", "parts", "now_ms",
           "verdict": "fresh" | "stale" | "error_only" | "expired" | "absent" | "unreadable",
           "because": the sentence,
           "entry": {"age_ms", "created_at_ms", "fresh_for_ms", "stale_for_ms",
                     "error_for_ms", "fence", "load_ms", "negative", "kept_stale",
                     "body_bytes", "versions": {scope: {"epoch", "parts"}}} or null,
           "entry_refused": str or null,
           "lease": {"token", "ends_in_ms"} or null,
           "guard": {"fence", "generation", "blind", "hard", "failures",
                     "purged_ms_ago", "retry_in_ms", "ends_in_ms",
                     "floors": {scope: {"epoch", "parts", "raised"}}} or null,
           "due": {"lane", "working", "due_in_ms", "attempts"} or null,
           "events": [{"id", "log_id", "at_ms", "source", "entities", "version", "mode",
                       "standing": "raised_floor" | "superseded" | "in_entry" |
                                   "not_applied" | "unversioned"}],
           "dead_letters": [{"id", "kind", "reason", …}], "control_error": str or null}
    """  # noqa: D301 - click takes the byte
    configuration = configure(file)
    dataset, key = key_named(configuration.datasets, words)
    found = asyncio.run(_gather(configuration, dataset, key))
    if as_json:
        letters = [{"id": letter.id, **letter.fields} for letter in found.letters]
        print_json({**found.explanation.as_json(), "dead_letters": letters})
        return Exit.DONE
    for line in _lines(found):
        click.echo(line)
    return Exit.DONE


@dataclass(frozen=True, slots=True)
class _Found:
    explanation: Explanation
    letters: Sequence[Parked]


async def _gather(configuration: Configuration, dataset: Dataset, key: Key) -> _Found:

    clock = SystemClock()
    async with (
        open_store(configuration, clock=clock, signals=Counters()) as store,
        open_control(configuration, clock=clock) as control,
    ):
        family = await store.inspect(key)
        explanation = Explanation(
            dataset, key, family, guard_of(family.guard), store.now_ms()
        )
        try:
            explanation = replace(
                explanation,
                events=await _events(control, dataset, key),
                place=await control.due.find(key),
            )
            return _Found(explanation, await _letters(control, dataset, key))
        except StoreError as exc:
            # What the cache server holds answers most questions by itself.
            return _Found(replace(explanation, control_error=str(exc)), ())


async def _events(
    control: ControlServer, dataset: Dataset, key: Key
) -> list[SeenEvent]:
    """Return the newest events that reach this key, newest first."""
    found: list[SeenEvent] = []
    before = "+"
    for _ in range(EVENTS_LOOKED_AT // PAGE):
        page = await control.events.newest(count=PAGE, before=before)
        for logged in page:
            try:
                event = decode(
                    logged.event or b"", epoch=logged.epoch, ordered=logged.ordered
                )
            except BadEvent:
                continue  # a dead letter tells of it
            if event.warm:
                continue  # it invalidates nothing
            scopes = (f"{event.source}/{entity}" for entity in event.entities)
            if any(depends(dataset, key, scope) for scope in scopes):
                found.append(SeenEvent(event, logged.id))
        if len(page) < PAGE or len(found) >= EVENTS_SHOWN:
            break
        before = page[-1].id
    return found[:EVENTS_SHOWN]


async def _letters(control: ControlServer, dataset: Dataset, key: Key) -> list[Parked]:
    """Return the newest dead letters about this key, or about an event of its entities."""

    def concerns(letter: Parked) -> bool:
        if letter.fields.get("member") == member_of(key):
            return True
        try:
            event = decode(letter.payload)
        except BadEvent:
            return False
        return any(
            depends(dataset, key, f"{event.source}/{of}") for of in event.entities
        )

    found: list[Parked] = []
    after = "-"
    for _ in range(LETTERS_LOOKED_AT // PAGE):
        page = await control.parked(count=PAGE, after=after)
        found += filter(concerns, page)
        if len(page) < PAGE:
            break
        after = page[-1].id
    return found[-LETTERS_SHOWN:]


# --- for people -----------------------------------------------------------------------


def _lines(found: _Found) -> Iterator[str]:
    explanation = found.explanation
    yield click.style(explanation.sentence(), bold=True)
    yield ""
    yield _row("key", explanation.key.text)
    yield from _entry_lines(explanation)
    yield from _lease_lines(explanation)
    yield from _guard_lines(explanation)
    if explanation.control_error is not None:
        yield _row("control", explanation.control_error)
        return
    yield from _due_lines(explanation)
    yield from _event_lines(explanation)
    yield from _letter_lines(found.letters)


def _row(name: str, text: str) -> str:
    return f"{name:<13}{text}"


def _entry_lines(explanation: Explanation) -> Iterator[str]:

    entry, now = explanation.family.entry, explanation.now_ms
    if entry is None:
        yield _row("entry", explanation.family.entry_refused or "none")
        return
    what = "not found" if entry.negative else f"{len(entry.body)} bytes"
    yield _row(
        "entry",
        f"{what}, loaded {span(now - entry.created_at)} ago in {span(entry.load_ms)}, "
        f"fence {entry.fence}",
    )
    windows = [
        ("fresh until", entry.fresh_until),
        ("stale until", entry.stale_until),
    ]
    # Without `stale_if_error_for` it ends with the others, and says nothing.
    if entry.error_until > entry.stale_until:
        windows.append(("on error until", entry.error_until))
    for name, until in windows:
        left = until - now
        when = f"in {span(left)}" if left > 0 else f"{span(-left)} ago"
        yield _row("", f"{name} {clock_time(until)}, {when}")
    for scope, version in readable_versions(entry).items():
        yield _row("", f"{scope} = {version}")


def _lease_lines(explanation: Explanation) -> Iterator[str]:

    family = explanation.family
    if family.lease_token is None:
        yield _row("lease", "none")
        return
    left = "no end" if family.lease_ms is None else f"ends in {span(family.lease_ms)}"
    yield _row("lease", f"held by {family.lease_token}, {left}")


def _guard_lines(explanation: Explanation) -> Iterator[str]:

    guard, now = explanation.guard, explanation.now_ms
    if guard is None:
        yield _row("guard", "none")
        return
    text = f"fence {guard.fence}, generation {guard.generation}"
    if guard.purged_at is not None:
        text += f", last purge {span(now - guard.purged_at)} ago"
    if guard.failures:
        text += f", {guard.failures} failed in a row"
    if guard.retry_at is not None and guard.retry_at > now:
        text += f", cooling for {span(guard.retry_at - now)}"
    yield _row("guard", text)
    for scope, floor in guard.floors.items():
        yield _row("", f"floor {scope} = {floor.version}")


def _due_lines(explanation: Explanation) -> Iterator[str]:
    place = explanation.place
    if place is None:
        yield _row("due", "no")
        return
    if place.working:
        when = f"taken by a worker, and due again in {span(place.due_in_ms)}"
    elif place.due_in_ms > 0:
        when = f"in {span(place.due_in_ms)}"
    else:
        when = f"for {span(-place.due_in_ms)}"
    failed = f", {place.attempts} failed" if place.attempts else ""
    yield _row("due", f"lane {place.lane}, {when}{failed}")


def _event_lines(explanation: Explanation) -> Iterator[str]:

    if not explanation.events:
        yield _row("events", f"none among the newest {EVENTS_LOOKED_AT}")
    for at, seen in enumerate(explanation.events):
        event = seen.event
        version = f" version {event.version}" if event.version else ""
        mode = f" {event.mode.value}" if event.mode else ""
        entities = " ".join(event.entities[:3]) + " …" * (len(event.entities) > 3)  # noqa: PLR2004 - a line
        yield _row(
            "" if at else "events",
            f"{clock_time(seen.at_ms)} {event.id}: {event.source} {entities}{version}"
            f"{mode}, {explanation.standing(event).value.replace('_', ' ')}",
        )


def _letter_lines(letters: Sequence[Parked]) -> Iterator[str]:

    if not letters:
        yield _row("dead letters", "none")
    for at, letter in enumerate(letters):
        told = letter.fields
        what = "refresh given up" if told.get("kind") == "key" else "event set aside"
        reason = told.get("reason", "")
        if reason == "outdated":
            reason += ", what was loaded was older than the change"
        event = f", event {told['event_id']}" if told.get("event_id") else ""
        parked_at = int(letter.id.partition("-")[0])
        yield _row(
            "" if at else "dead letters",
            f"{clock_time(parked_at)} {what}: {reason}{event}",
        )
