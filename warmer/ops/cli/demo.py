"""`warmer demo`: all of it on this machine, in one command."""

import click

from warmer.ops.demo import main


@click.command()
def demo() -> int:
    """Show what warmer does: a server, an origin and a worker, started here and stopped."""
    return main()
