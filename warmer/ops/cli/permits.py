"""`warmer permits`: the limits of origins as the fleet goes by them now."""

import asyncio
from dataclasses import asdict

import click

from warmer.clock import SystemClock
from warmer.model.dataset_config import Configuration, configure
from warmer.model.permit import Phase
from warmer.ops.cli.exits import Exit, say
from warmer.ops.cli.keys import closest
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.store.permits import PermitState
from warmer.wiring import limits_of, open_control, permits_of


@click.command()
@click.argument("name", required=False)
@CONFIG
@JSON
def permits(name: str | None, file: str | None, *, as_json: bool) -> int:
    """Show the limit of an origin as it is now, and how much of it is held.

    Origins without a limit have none: each process keeps to its local_limit.

    \b
    JSON: {"origins": [{"name": str, "limit": int, "ceiling": int, "phase": "closed" | "open"
    | "probing", "ends_ms": int, "usual_ms": float, "processes": int, "held": int,
    "wanted": int}]}
    """  # noqa: D301 - click takes the byte
    configuration = configure(file)
    known = {
        origin: limits.limit
        for origin in configuration.settings.origins
        if (limits := limits_of(configuration, origin)) is not None
    }
    if name is not None and name not in known:
        raise click.UsageError(f"no origin {name!r} has a limit{closest(name, known)}")
    names = sorted(known) if name is None else [name]
    states = asyncio.run(_look(configuration, names))
    if as_json:
        print_json(
            {
                "origins": [
                    {"name": each, "ceiling": known[each], **asdict(state)}
                    for each, state in states.items()
                ]
            }
        )
        return Exit.DONE
    if not states:
        say("no origin has a limit")
    for each, state in states.items():
        click.echo(_line(each, state, known[each]))
    return Exit.DONE


async def _look(
    configuration: Configuration, names: list[str]
) -> dict[str, PermitState]:
    async with open_control(configuration, clock=SystemClock()) as control:
        return {
            name: await permits_of(configuration, control, name).look()
            for name in names
        }


def _line(name: str, state: PermitState, ceiling: int) -> str:
    at = f"limit {state.limit} of {ceiling}"
    held = f"{state.held} held, {state.wanted} wanted by {state.processes} processes"
    down = "" if state.phase is Phase.CLOSED else f"  {state.phase}"
    return f"{name}  {at}, {held}; a load takes {state.usual_ms:.0f} ms{down}"
