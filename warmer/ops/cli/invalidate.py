"""`warmer invalidate`: tell the fleet that entities changed."""

import asyncio
import secrets

import click

from warmer.clock import SystemClock
from warmer.ingest.event_log import record_of
from warmer.model.arrival import Arrival
from warmer.model.dataset import Datasets
from warmer.model.dataset_config import Configuration, configure, known_sources
from warmer.model.event import Event, PurgeMode
from warmer.model.key import canonical_entity
from warmer.model.version import SourceVersion, check_source
from warmer.ops.cli.exits import Exit, say
from warmer.ops.cli.keys import closest
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.wiring import open_control

_LARGEST_EPOCH = 2**32 - 1


@click.command()
@click.argument("entities", nargs=-1, required=True, metavar="ENTITY...")
@click.option("--source", required=True, help="Where the change happened: shop-db.")
@click.option(
    "--version",
    "version",
    metavar="N[:N...]",
    help="The source's version of the change; what is newer stays as it is.",
)
@click.option(
    "--epoch",
    type=click.IntRange(0, _LARGEST_EPOCH),
    default=0,
    help="The source's generation, after a restore. Default: 0.",
)
@click.option(
    "--hard", is_flag=True, help="Remove entries; default: as the dataset says."
)
@CONFIG
@JSON
def invalidate(
    entities: tuple[str, ...],
    source: str,
    version: str | None,
    epoch: int,
    file: str | None,
    *,
    hard: bool,
    as_json: bool,
) -> int:
    """Append one event to the event log: these entities, such as product:42, changed.

    Workers make stale what depends on them, or remove it, and refresh what was cached.
    Prints the event's id, which log lines carry. Refuses entities that no dataset depends
    on: nothing would happen.

    \b
    JSON: {"id": str, "log_id": str | null, "keys": {"product": 3}}; keys are counted per
    dataset, and log_id is null while the source is paused.
    """  # noqa: D301 - click takes the byte
    configuration = configure(file)
    event = Event(
        id=f"cli-{secrets.token_hex(8)}",
        source=source,
        entities=tuple(dict.fromkeys(map(canonical_entity, entities))),
        version=_version(source, version, epoch),
        mode=PurgeMode.HARD if hard else None,
    )
    keys = _keys_of(configuration.datasets, event)
    log_id = asyncio.run(_accept(configuration, event))
    if as_json:
        print_json({"id": event.id, "log_id": log_id, "keys": keys})
    else:
        click.echo(event.id)
    reached = ", ".join(f"{count} of {name}" for name, count in keys.items())
    later = "" if log_id else f", once {source} is not paused any more"
    say(f"accepted; it reaches the keys: {reached}{later}")
    return Exit.DONE


def _version(source: str, text: str | None, epoch: int) -> SourceVersion | None:

    check_source(source)
    if text is None:
        if epoch:
            raise click.UsageError("--epoch needs --version")
        return None
    parts = text.split(":")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise click.BadParameter("--version is whole numbers, separated by ':'")
    return SourceVersion.of(source, *map(int, parts), epoch=epoch)


def _keys_of(datasets: Datasets, event: Event) -> dict[str, int]:
    """Count the keys that the event reaches, per dataset."""
    patterns = [
        pattern
        for dataset in datasets.values()
        for pattern in dataset.entities
        if pattern.source == event.source
    ]
    if not patterns:
        sources = {one.source for of in datasets.values() for one in of.entities}
        raise click.UsageError(
            f"no dataset depends on source {event.source!r}"
            f"{closest(event.source, sources)}"
        )
    counts = dict.fromkeys(datasets, 0)
    for entity in event.entities:
        if not any(pattern.match(entity) is not None for pattern in patterns):
            known = sorted({one.text.partition("/")[2] for one in patterns})
            raise click.UsageError(
                f"no dataset depends on {entity!r} of {event.source}; there are: "
                + ", ".join(known)
            )
        for name, dataset in datasets.items():
            counts[name] += sum(1 for _ in dataset.keys_of(event.source, entity))
    return {name: count for name, count in counts.items() if count}


async def _accept(configuration: Configuration, event: Event) -> str | None:
    """Append the event in its source's order; return where, None if it was kept back."""
    sources = known_sources(configuration.sources, configuration.datasets)
    record = record_of(Arrival(event))
    async with open_control(configuration, clock=SystemClock()) as control:
        accepted = await control.events.accept([record], sources[event.source])
        return accepted.log_id or None
