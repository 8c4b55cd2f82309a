"""`warmer get`: read one key as a request path would."""

import asyncio
import base64
import json
import sys
from datetime import timedelta

import click

from warmer.model.answer import Answer, State
from warmer.model.dataset_config import Configuration, configure
from warmer.ops.cli.exits import Exit, say
from warmer.ops.cli.keys import dataset_named, parts_of
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.ops.explain import versions_json
from warmer.settings.units import parse_duration
from warmer.wiring import open_client


@click.command()
@click.argument("dataset")
@click.argument("parts", nargs=-1, metavar="[PART=VALUE]...")
@CONFIG
@click.option("--raw", is_flag=True, help="Print the value's bytes as they are.")
@click.option("--deadline", metavar="TIME", default="5s", help="Default: 5s.")
@JSON
def get(
    dataset: str,
    parts: tuple[str, ...],
    file: str | None,
    deadline: str,
    *,
    raw: bool,
    as_json: bool,
) -> int:
    """Print one value, read through the cache, and loaded if need be.

    The value goes to standard output, how it came about to standard error. Exits with 1
    if the source has no such thing, with 75 if there is nothing to serve now.

    \b
    JSON: {"key": str, "state": "fresh" | "stale" | "loaded" | …, "age_ms": int or null,
           "versions": {"shop-db/product:42": {"epoch": 0, "parts": ["17"]}},
           "value": any, or "value_base64": str where the value is bytes}
    """  # noqa: D301 - click takes the byte
    ms = parse_duration(deadline)
    if ms is None:
        raise click.BadParameter(f"--deadline {deadline!r} is not 500ms, 5s, 2m …")
    configuration = configure(file)
    dataset_named(configuration.datasets, dataset)
    named = parts_of(parts)
    answer = asyncio.run(_get(configuration, dataset, named, ms, decode=not raw))
    if as_json:
        print_json(_as_json(answer))
    elif answer.state is not State.NEGATIVE:
        _print_value(answer.value)
    age = "" if answer.age_ms is None else f", {answer.age_ms / 1000:g} s old"
    if answer.state is State.NEGATIVE:
        say(f"{answer.key}: the source has no such thing{age}")
        return Exit.FAILED
    say(f"{answer.key}: {answer.state.value}{age}")
    return Exit.DONE


async def _get(
    configuration: Configuration,
    dataset: str,
    parts: dict[str, str],
    deadline_ms: int,
    *,
    decode: bool,
) -> Answer:

    async with open_client(configuration) as client:
        deadline: timedelta = timedelta(milliseconds=deadline_ms)
        return await client.get(
            dataset, deadline=deadline, load=None, decode=decode, **parts
        )


def _print_value(value: object) -> None:
    if isinstance(value, bytes):
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
        return
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _as_json(answer: Answer) -> dict[str, object]:

    value: dict[str, object] = {"value": answer.value}
    if isinstance(answer.value, bytes):
        value = {"value_base64": base64.b64encode(answer.value).decode()}
    return {
        "key": answer.key,
        "state": answer.state.value,
        "age_ms": answer.age_ms,
        "versions": versions_json(answer.versions),
        **value,
    }
