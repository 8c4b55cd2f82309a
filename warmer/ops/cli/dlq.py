"""`warmer dlq`: what was set aside, why, and once more."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import click

from warmer.clock import SystemClock
from warmer.ingest.replay import Replay
from warmer.model.dataset_config import Configuration, configure, known_sources
from warmer.ops.cli.exits import Exit, say
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.signals import Counters
from warmer.store.control import ControlServer
from warmer.store.dead_letters import Parked
from warmer.wiring import open_control

KINDS = ("message", "body", "event", "key")
PAGE = 200
_SHOWN_REASON = 100

IDS = click.argument("ids", nargs=-1, metavar="[ID]...")
ALL = click.option("--all", "everything", is_flag=True, help="All that match.")
SOURCE = click.option("--source", metavar="NAME", help="Of this source only.")
KIND = click.option("--kind", type=click.Choice(KINDS), help="Of this kind only.")


@click.group()
def dlq() -> None:
    """Look at dead letters; replay or drop them.

    A letter is a message that was not understood, a whole body that was no message, an
    event that could not be applied, or a key whose refresh was given up.
    """


@dlq.command(name="list")
@SOURCE
@KIND
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, help="Default: 50."
)
@CONFIG
@JSON
def list_(
    source: str | None,
    kind: str | None,
    limit: int,
    file: str | None,
    *,
    as_json: bool,
) -> int:
    """List letters, newest first.

    \b
    JSON: {"letters": [{"id", "kind", "source", "reason", "at", "first_at", "attempts",
          "size"}], "count": int}; instants are Unix ms, count is of all there are.
    """  # noqa: D301 - click takes the byte

    async def look(control: ControlServer, _: Configuration) -> int:
        letters = [
            letter
            async for letter in _matching(
                control, source=source, kind=kind, limit=limit
            )
        ]
        count = await control.dead.count()
        if as_json:
            print_json({"letters": list(map(_summary, letters)), "count": count})
            return Exit.DONE
        for letter in letters:
            click.echo(_line(letter))
        say(f"{len(letters)} of {count} letters")
        return Exit.DONE

    return _with(file, look)


@dlq.command()
@click.argument("id_", metavar="ID")
@CONFIG
@JSON
def show(id_: str, file: str | None, *, as_json: bool) -> int:
    """Show one letter whole. Its payload may be somebody's data.

    \b
    JSON: the letter's fields by name, texts; what is no UTF-8 is escaped.
    """  # noqa: D301 - click takes the byte

    async def look(control: ControlServer, _: Configuration) -> int:
        letter = await _one(control, id_)
        if as_json:
            print_json({"id": letter.id, **letter.fields})
            return Exit.DONE
        for name, text in _told(letter):
            click.echo(f"{name:<10} {text}")
        return Exit.DONE

    return _with(file, look)


@dlq.command()
@IDS
@ALL
@SOURCE
@KIND
@click.option("--dry-run", is_flag=True, help="Count them only.")
@CONFIG
@JSON
def replay(
    ids: tuple[str, ...],
    source: str | None,
    kind: str | None,
    file: str | None,
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Send letters the way they came, once more, with today's configuration.

    What is taken leaves; what fails again stays, and counts its attempts. Exits with 3 if
    some of them failed.

    \b
    JSON: {"replayed": int, "failed": [{"id": str, "reason": str}], "dry_run": bool}
    """  # noqa: D301 - click takes the byte

    async def act(control: ControlServer, configuration: Configuration) -> int:
        letters = await _chosen(control, ids, everything, source, kind)
        again = _replay(control, configuration)
        failed: list[tuple[str, str]] = []
        for letter in () if dry_run else letters:
            reason = await again.replay(letter)
            if reason is not None:
                failed.append((letter.id, reason))
        replayed = 0 if dry_run else len(letters) - len(failed)
        if as_json:
            print_json(
                {
                    "replayed": replayed,
                    "failed": [{"id": one, "reason": why} for one, why in failed],
                    "dry_run": dry_run,
                }
            )
        for one, why in () if as_json else failed:
            click.echo(f"{one}  {why}")
        say(
            f"{len(letters)} letters would be replayed"
            if dry_run
            else f"{replayed} of {len(letters)} letters were taken"
        )
        return Exit.BELOW_GOAL if failed else Exit.DONE

    return _with(file, act)


@dlq.command()
@IDS
@ALL
@SOURCE
@KIND
@click.option("--yes", is_flag=True, help="Do not ask.")
@CONFIG
@JSON
def drop(
    ids: tuple[str, ...],
    source: str | None,
    kind: str | None,
    file: str | None,
    *,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove letters for good.

    \b
    JSON: {"dropped": int}
    """  # noqa: D301 - click takes the byte

    async def act(control: ControlServer, _: Configuration) -> int:
        letters = await _chosen(control, ids, everything, source, kind)
        if letters and not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("nobody is there to be asked: --yes")
            click.confirm(
                f"{len(letters)} letters go for good; go on?", abort=True, err=True
            )
        dropped = await control.dead.drop([letter.id for letter in letters])
        if as_json:
            print_json({"dropped": dropped})
        say(f"{dropped} letters are gone")
        return Exit.DONE

    return _with(file, act)


def _with(
    file: str | None,
    act: Callable[[ControlServer, Configuration], Awaitable[int]],
) -> int:
    configuration = configure(file)

    async def run() -> int:
        async with open_control(configuration, clock=SystemClock()) as control:
            return await act(control, configuration)

    return asyncio.run(run())


def _replay(control: ControlServer, configuration: Configuration) -> Replay:
    return Replay(
        control,
        sources=known_sources(configuration.sources, configuration.datasets),
        datasets=configuration.datasets,
        clock=SystemClock(),
        signals=Counters(),
        report=lambda name, *labels: say(" ".join((name, *labels))),
    )


async def _chosen(
    control: ControlServer,
    ids: tuple[str, ...],
    everything: bool,  # noqa: FBT001 - one of five that belong together
    source: str | None,
    kind: str | None,
) -> list[Parked]:
    """Return the letters that are meant, oldest first."""
    if bool(ids) == everything:
        raise click.UsageError("name letters by ID, or say --all")
    if ids and (source or kind):
        raise click.UsageError("--source and --kind are for --all")
    if ids:
        return [await _one(control, id_) for id_ in ids]
    found = [letter async for letter in _matching(control, source=source, kind=kind)]
    return found[::-1]


async def _one(control: ControlServer, id_: str) -> Parked:
    parts = id_.split("-")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):  # noqa: PLR2004 - ms-number
        raise click.UsageError(f"{id_!r} is no letter's id; `warmer dlq list` has them")
    letter = await control.dead.one(id_)
    if letter is None:
        raise click.UsageError(f"there is no letter {id_}")
    return letter


async def _matching(
    control: ControlServer,
    *,
    source: str | None,
    kind: str | None,
    limit: int = sys.maxsize,
) -> AsyncIterator[Parked]:
    """Yield letters, newest first, that are of the source and kind if given."""
    before = "+"
    while True:
        page = await control.dead.newest(count=PAGE, before=before)
        for letter in page:
            if source not in {None, letter.fields.get("source")}:
                continue
            if kind not in {None, letter.fields.get("kind")}:
                continue
            yield letter
            limit -= 1
            if limit == 0:
                return
        if len(page) < PAGE:
            return
        before = page[-1].id


def _summary(letter: Parked) -> dict[str, Any]:
    fields = letter.fields
    return {
        "id": letter.id,
        "kind": fields.get("kind", ""),
        "source": fields.get("source", ""),
        "reason": fields.get("reason", ""),
        "at": _number(letter, "at"),
        "first_at": _number(letter, "first_at") or _number(letter, "at"),
        "attempts": _number(letter, "attempts") or 1,
        "size": _number(letter, "size"),
    }


def _line(letter: Parked) -> str:
    summary = _summary(letter)
    reason = _escaped(summary["reason"])[:_SHOWN_REASON]
    return (
        f"{letter.id}  {_instant(summary['at'])}  {summary['kind']:<7} "
        f"{summary['source'] or '-'}  {reason}"
    )


def _told(letter: Parked) -> Iterator[tuple[str, str]]:
    summary = _summary(letter)
    yield "id", letter.id
    for name in ("kind", "source"):
        yield name, summary[name] or "-"
    yield "reason", _escaped(summary["reason"])
    yield "first", _instant(summary["first_at"])
    yield "last", _instant(summary["at"])
    yield "attempts", str(summary["attempts"])
    known = {"kind", "source", "reason", "at", "first_at", "attempts", "payload"}
    for name, text in letter.fields.items():
        if name not in known and text:
            yield name, _escaped(text)
    yield "payload", _escaped(letter.fields.get("payload", "")) or "-"


def _number(letter: Parked, name: str) -> int:
    text = letter.fields.get(name, "")
    return int(text) if text.isdecimal() else 0


def _escaped(text: str) -> str:
    """Return text that can do nothing to a terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def _instant(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
