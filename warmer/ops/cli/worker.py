"""`warmer worker`: read the event log, refresh what is due, until told to stop."""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import click

import warmer
from warmer.model.dataset_config import configure
from warmer.ops.cli.options import CONFIG


@click.command()
@CONFIG
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    help="Refreshes at once; goes before worker.concurrency.",
)
@click.option(
    "--lane",
    "lanes",
    type=click.Choice(["now", "warm"]),
    multiple=True,
    help="Serve this lane only; goes before worker.lanes.",
)
def worker(file: str | None, concurrency: int | None, lanes: tuple[str, ...]) -> int:
    """Run a worker. SIGTERM drains it: running refreshes finish, nothing new begins.

    Exits with 78 if the configuration is wrong, before anything is started.
    """
    flags: dict[str, object] = {}
    if concurrency is not None:
        flags["worker.concurrency"] = concurrency
    if lanes:
        flags["worker.lanes"] = list(lanes)
    configuration = configure(file, flags=flags)
    sys.path.insert(0, str(application_folder()))
    status: int = import_module("jobs.worker").main(configuration)
    return status


def application_folder() -> Path:
    """Return the folder that holds `jobs/`: the checkout, or the environment's share/warmer.

    `jobs` is not a package of site-packages: the name belongs to users' own code.
    """
    checkout = Path(warmer.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "jobs").is_dir():
        return checkout
    try:
        files = distribution("warmer").files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        if file.as_posix().endswith("share/warmer/jobs/worker.py"):
            return Path(str(file.locate())).resolve().parents[1]
    raise click.ClickException(
        "this installation of warmer has no share/warmer/jobs; install the wheel again"
    )
