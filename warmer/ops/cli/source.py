"""`warmer source`: what is known of sources, and what people may do about them."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click

from warmer.clock import SystemClock
from warmer.model.dataset_config import configure, known_sources
from warmer.model.source import Source, Sources
from warmer.ops.cli.exits import Exit, say
from warmer.ops.cli.keys import closest
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.settings.units import parse_duration
from warmer.store.control import ControlServer
from warmer.store.source_states import SourceState
from warmer.wiring import open_control

_LONGEST_MS = 7 * 86_400_000

NAME = click.argument("name")
REASON = click.option(
    "--reason", required=True, metavar="TEXT", help="Why, for whoever looks later."
)


def _milliseconds(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    ms = parse_duration(value)
    if ms is None or not 0 < ms <= _LONGEST_MS:
        raise click.BadParameter("allowed are 1s … 7d, such as 90s, 10m, 2h")
    return ms


@click.group()
def source() -> None:
    """Look at sources; open an epoch, pause, resume, replay."""


@source.command()
@click.argument("name", required=False)
@CONFIG
@JSON
def show(name: str | None, file: str | None, *, as_json: bool) -> int:
    """Show what is known of a source, or of all.

    \b
    JSON: {"sources": [{"name": str, "epoch": int, "held": int, …}], "waiting": int};
    instants are Unix ms, null for never; a position's numbers are decimal text.
    """  # noqa: D301 - click takes the byte

    async def look(control: ControlServer, known: Sources) -> None:
        names = {*known, *await control.sources.names()}
        if name is not None and name not in names:
            raise click.UsageError(f"no source {name!r}{closest(name, names)}")
        wanted = sorted(names) if name is None else [name]
        states = [await control.sources.show(each) for each in wanted]
        log = await control.events.state()
        waiting = log.pending + (log.lag or 0)
        if as_json:
            print_json({"sources": list(map(_data, states)), "waiting": waiting})
        else:
            click.echo("\n".join(line for state in states for line in _lines(state)))
            say(f"{waiting} events of all sources wait in the log")

    return _with(file, look)


@source.command()
@NAME
@click.option("--open", "opens", is_flag=True, help="Open the next one.")
@click.option("--reason", metavar="TEXT", help="Why; needed to open one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@CONFIG
@JSON
def epoch(
    name: str,
    reason: str | None,
    file: str | None,
    *,
    opens: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Show a source's epoch, or open the next one, after a restore or a failover.

    An opening makes every key of the source stale once (or removes it, where its dataset
    says so); what was cached is loaded again, at the origins' limits. Versions count anew.

    \b
    JSON: {"name": str, "epoch": int, "opened": bool}
    """  # noqa: D301 - click takes the byte
    if opens and not reason:
        raise click.UsageError("--open needs --reason")
    if reason and not opens:
        raise click.UsageError("--reason is for --open")

    async def look(control: ControlServer, known: Sources) -> None:
        of = _named(name, known)
        if opens:
            _confirmed(
                f"every key of {name} becomes stale once and is loaded again", yes=yes
            )
            await control.events.accept([], of, open_epoch=reason or "")
        state = await control.sources.show(name)
        if as_json:
            print_json({"name": name, "epoch": state.epoch, "opened": opens})
        else:
            click.echo(state.epoch)
        if opens and state.held:
            say(f"{name} is paused: its keys become stale when that is over")

    return _with(file, look)


@source.command()
@NAME
@click.option(
    *("--for", "for_ms"),
    required=True,
    callback=_milliseconds,
    metavar="DURATION",
    help="How long: 1h, up to 7d.",
)
@REASON
@CONFIG
@JSON
def pause(
    name: str, for_ms: int, reason: str, file: str | None, *, as_json: bool
) -> int:
    """Keep a source's events back; producers are answered as always.

    They go into the log when the time is over, or by `warmer source resume`. A pause that
    there is already ends when this one does.

    \b
    JSON: {"name": str, "paused_until": int}
    """  # noqa: D301 - click takes the byte

    async def act(control: ControlServer, known: Sources) -> None:
        until = await control.sources.pause(
            _named(name, known).name, for_ms=for_ms, why=reason
        )
        if as_json:
            print_json({"name": name, "paused_until": until})
        else:
            click.echo(_instant(until))

    return _with(file, act)


@source.command()
@NAME
@CONFIG
@JSON
def resume(name: str, file: str | None, *, as_json: bool) -> int:
    """End a pause: what was kept back goes into the log, in its order.

    \b
    JSON: {"name": str, "moved": int}
    """  # noqa: D301 - click takes the byte

    async def act(control: ControlServer, known: Sources) -> None:
        moved = await control.sources.resume(_named(name, known).name)
        if as_json:
            print_json({"name": name, "moved": moved})
        else:
            say(f"{moved} events went into the log")

    return _with(file, act)


@source.command()
@NAME
@click.option(
    *("--since", "since_ms"),
    required=True,
    callback=_milliseconds,
    metavar="DURATION",
    help="How far back: 10m, up to 7d.",
)
@click.option("--dry-run", is_flag=True, help="Count them only.")
@CONFIG
@JSON
def replay(
    name: str, since_ms: int, file: str | None, *, dry_run: bool, as_json: bool
) -> int:
    """Append a source's events of the last minutes again, as they were and in order.

    For after a failover of the cache server that forgot purges. Harmless: versions that
    are known change nothing, and a key is loaded once more at most.

    \b
    JSON: {"name": str, "events": int, "dry_run": bool}
    """  # noqa: D301 - click takes the byte

    async def act(control: ControlServer, known: Sources) -> None:
        count = await control.events.replay(
            _named(name, known).name, since_ms=since_ms, dry_run=dry_run
        )
        if as_json:
            print_json({"name": name, "events": count, "dry_run": dry_run})
        else:
            say(f"{count} events {'would be' if dry_run else 'were'} appended again")

    return _with(file, act)


def _with(
    file: str | None, act: Callable[[ControlServer, Sources], Awaitable[None]]
) -> int:
    configuration = configure(file)
    known = known_sources(configuration.sources, configuration.datasets)

    async def run() -> None:
        async with open_control(configuration, clock=SystemClock()) as control:
            await act(control, known)

    asyncio.run(run())
    return Exit.DONE


def _named(name: str, known: Sources) -> Source:
    if name not in known:
        raise click.UsageError(
            f"no source {name!r} is declared or depended on{closest(name, known)}"
        )
    return known[name]


def _confirmed(what: str, *, yes: bool) -> None:
    """Return if somebody wants it; a script must say so beforehand."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked: --yes")
    click.confirm(f"{what}; go on?", abort=True, err=True)


def _data(state: SourceState) -> dict[str, object]:
    return {**asdict(state), "newest": [str(part) for part in state.newest]}


def _lines(state: SourceState) -> Sequence[str]:
    """Return a source for people."""
    lines = [
        f"{state.name}  epoch {state.epoch}",
        f"  heard      {_instant(state.heard_at)}",
        (
            f"  events     {state.accepted} accepted, {state.duplicate} repeated, "
            f"{state.unversioned} without order, {state.regressed} went back"
        ),
    ]
    if state.newest:
        parts = ":".join(map(str, state.newest))
        lines.append(f"  newest     {parts}, of {_instant(state.newest_at)}")
    if state.lineage:
        lines.append(f"  lineage    {state.lineage} ({state.lineages} known)")
    if state.opened_at is not None:
        lines.append(f"  opened     {_instant(state.opened_at)}: {state.opened_why}")
    if state.paused_until is not None:
        lines.append(
            f"  paused     until {_instant(state.paused_until)}: {state.paused_why}"
        )
    if state.held:
        lines.append(f"  kept back  {state.held}")
    return lines


def _instant(ms: int | None) -> str:
    if ms is None:
        return "never"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
