"""`warmer serve`: take events, purges and deploy hooks over HTTP, until told to stop."""

import click

from warmer.model.dataset_config import configure
from warmer.ops.cli.options import CONFIG


@click.command()
@CONFIG
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Or unix:/path; goes before serve.listen.",
)
def serve(file: str | None, listen: str | None) -> int:
    """Take events, purges and deploy hooks over HTTP.

    Sources and hooks that have a signature in the configuration are served. SIGTERM drains:
    running requests finish. Exits with 78 if the configuration is wrong.
    """
    flags: dict[str, object] = {} if listen is None else {"serve.listen": listen}
    configuration = configure(file, flags=flags)
    from warmer.ops.server.process import main  # noqa: PLC0415 - after a wrong flag

    return main(configuration)
