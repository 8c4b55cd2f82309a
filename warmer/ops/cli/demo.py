"""`warmer demo`: all of it on this machine, in one command."""

import click

from warmer.ops.cli.options import JSON
from warmer.ops.demo.play import run


@click.command()
@click.option("--keep", is_flag=True, help="Leave it running at the end, until Ctrl-C.")
@JSON
def demo(*, keep: bool, as_json: bool) -> int:
    """Show what warmer does: a server, an origin, workers and readers, started here.

    Exits with 1 if a promise did not hold. Needs the extra: pip install 'warmer[demo]'.
    """
    return run(as_json=as_json, keep=keep)
