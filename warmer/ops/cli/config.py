"""`warmer config`: check it, show what it comes to, print its schema."""

import json
from collections.abc import Iterator, Mapping

import click

from warmer.errors import ConfigError
from warmer.model.dataset_config import configure
from warmer.ops.cli.exits import Exit, say
from warmer.ops.cli.options import CONFIG, JSON, print_json
from warmer.settings import Settings
from warmer.settings.parts import dotted, nearest
from warmer.settings.schema import schema_text
from warmer.store.connections import redacted


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command()
@click.argument("named", required=False, metavar="[FILE]")
@CONFIG
@JSON
def check(named: str | None, file: str | None, *, as_json: bool) -> int:
    """Name every mistake at once; exit with 78 if there is one.

    \b
    JSON: {"valid": bool, "file": str or null, "problems":
           [{"where": "warmer.toml:12", "setting": "cache.url", "message": str}]}
    """  # noqa: D301 - click takes the byte
    file = named or file
    try:
        configuration = configure(file)
    except ConfigError as exc:
        if not as_json:
            raise
        problems = [problem._asdict() for problem in exc.problems]
        print_json({"valid": False, "file": file, "problems": problems})
        return Exit.CONFIGURATION
    place = configuration.settings.places.get((), file)
    if as_json:
        print_json({"valid": True, "file": place, "problems": []})
        return Exit.DONE
    count = len(configuration.datasets)
    say(f"{place} is right: {count} dataset{'s' * (count != 1)}")
    return Exit.DONE


@config.command()
@CONFIG
@click.option("--origin", "with_origin", is_flag=True, help="Say where each is from.")
@JSON
def show(file: str | None, *, with_origin: bool, as_json: bool) -> int:
    """Print every setting in force, as TOML paths. Passwords are not shown.

    \b
    JSON: {"cache.timeout": {"value": "100ms", "origin": "warmer.toml:12"}, …};
          an origin is file:line, a variable, a credential, a flag, or "default".
    """  # noqa: D301 - click takes the byte
    settings = configure(file).settings
    origin_of = dict(_origins(settings))
    values = dict(_leaves(settings.model_dump(mode="json"))) | dict(_urls(settings))
    if as_json:
        print_json(
            {
                dotted(path): {"value": value, "origin": origin_of[path]}
                for path, value in values.items()
            }
        )
        return Exit.DONE
    for path, value in values.items():
        line = f"{dotted(path)} = {json.dumps(value, ensure_ascii=False)}"
        click.echo(f"{line}  # {origin_of[path]}" if with_origin else line)
    return Exit.DONE


@config.command()
def schema() -> int:
    """Print the JSON schema of the file, for editors and for CI."""
    click.echo(schema_text(), nl=False)
    return Exit.DONE


def _urls(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield which servers are meant: the whole URL is kept as a secret."""
    for name, server in (("cache", settings.cache), ("control", settings.control)):
        if server.url is not None:
            yield (name, "url"), redacted(server.url.get_secret_value())


def _leaves(
    table: Mapping[str, object], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, value in table.items():
        path = (*at, name)
        # `empty = {}` is a value, and so is a table without entries.
        if isinstance(value, Mapping) and value and name != "empty":
            yield from _leaves(value, path)
        elif value is not None:
            yield path, value


def _origins(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:

    for path, _ in _leaves(settings.model_dump(mode="json")):
        given = _is_given(settings, path)
        yield path, nearest(settings.places, path) if given else "default"


def _is_given(settings: Settings, path: tuple[str, ...]) -> bool:
    at: object = settings
    for name in path:
        if isinstance(at, Mapping):
            at = at.get(name)
            continue
        if name not in getattr(at, "model_fields_set", {name}):
            return False
        at = getattr(at, name, None)
    return True
