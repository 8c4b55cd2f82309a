"""The `warmer` command.

Data goes to standard output, talk to standard error. `--json` prints one object whose
names stay; each command's help lists them. Colour only on a terminal, never with NO_COLOR.

Exit status: 0 done; 1 failed, or the source has no such thing; 2 wrong usage; 3 finished
below its goal; 4 refused by a guard; 69 a server does not answer; 75 try again later;
78 the configuration is wrong; 130 interrupted.

A command's module is imported when it runs: `warmer --help` and completion must not wait
for redis, pydantic and httpx.
"""

import difflib
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

import click
from typing_extensions import override

from warmer.ops.cli.exits import Exit, exit_status
from warmer.ops.cli.options import print_json

COMMANDS = {
    "worker": "Run a worker.",
    "serve": "Take events, purges and deploy hooks over HTTP.",
    "demo": "Show what warmer does, on this machine.",
    "get": "Print one value, read through the cache.",
    "invalidate": "Tell the fleet that entities changed.",
    "source": "Look at sources; open an epoch, pause, resume, replay.",
    "dlq": "Look at dead letters; replay or drop them.",
    "permits": "Show what origins bear, and who holds how much of it.",
    "why": "Say why a key is fresh, stale or absent.",
    "config": "Check and show the configuration.",
}
"""Each is the command of that name in the module of that name, here."""


class Commands(click.Group):
    """The commands, found by name and imported by need."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"warmer.ops.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{guess}", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", "wanted", is_flag=True, help="Print the version and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --version: one object.")
@click.pass_context
def warmer(context: click.Context, *, wanted: bool, as_json: bool) -> int:
    """Cache warm-up and invalidation under the leases that request paths use."""
    if _colourless():
        context.color = False
    if wanted and as_json:
        print_json({"version": version("warmer"), "python": platform.python_version()})
    elif wanted:
        click.echo(f"warmer {version('warmer')}")
    elif context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return Exit.USAGE
    elif as_json:
        raise click.UsageError(
            f"--json goes after the command: warmer {context.invoked_subcommand} --json"
        )
    if wanted:
        context.exit()
    return Exit.DONE


def _colourless() -> bool:
    """Return whether the user wants none: no-color.org, and terminals that have none."""
    environment = os.environ  # noqa: TID251 - the terminal's, not a setting
    return bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status."""
    sys.exit(exit_status(lambda: _run(arguments)))


def _run(arguments: Sequence[str] | None) -> int:
    status = warmer.main(args=arguments, prog_name="warmer", standalone_mode=False)
    return status if isinstance(status, int) else Exit.DONE
