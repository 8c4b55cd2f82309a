"""Options and arguments that several commands share."""

import json
import sys
from collections.abc import Mapping

import click

CONFIG = click.option(
    "--config",
    "-c",
    "file",
    metavar="FILE",
    type=click.Path(),
    help="Settings. Default: $WARMER_CONFIG, else ./warmer.toml, ./config/warmer.toml or "
    "/etc/warmer/warmer.toml.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def print_json(data: Mapping[str, object]) -> None:
    """Print one object; on a terminal with line breaks."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(data, indent=indent, ensure_ascii=False))
