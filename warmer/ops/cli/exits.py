"""Exit status of every way a command can end, and what is said about it.

Holds: a mistake of the user, a wrong configuration and a server that is away end in a
sentence on standard error and a status of their own, never in a traceback.
"""

from collections.abc import Callable
from enum import IntEnum

import click

from warmer.errors import (
    BadKey,
    BadValue,
    ConfigError,
    EventError,
    NothingToServe,
    StoreError,
    WarmerError,
)


class Exit(IntEnum):
    """What a script that runs `warmer` may rely on (69 and above: sysexits.h)."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    BELOW_GOAL = 3
    REFUSED = 4
    UNAVAILABLE = 69
    TRY_AGAIN = 75
    CONFIGURATION = 78
    INTERRUPTED = 130


_MEANS = {
    "no_loader": ": it is not cached, and its dataset has no origin; "
    "what loads it is in your program",
    "deadline": ": no load ended within --deadline",
    "cooling": ": it could not be loaded just now, and rests before the next try",
}
"""The reasons for which an error has no cause to tell."""


def exit_status(run: Callable[[], int]) -> int:
    """Return the status `run` gives or its error stands for; say what the error was."""
    try:
        return run()
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has what it wanted: `warmer … | head -1`.
        return Exit.DONE
    except WarmerError as exc:
        return _told(exc)


def say(text: str) -> None:
    """Print talk, which is not data, on standard error."""
    click.echo(f"warmer: {text}", err=True)


def _told(error: WarmerError) -> int:
    match error:
        case ConfigError():
            for problem in error.problems:
                click.echo(problem.line, err=True)
            count = len(error.problems)
            say(f"{count} problem{'s' * (count != 1)} in the configuration")
            return Exit.CONFIGURATION
        case StoreError():
            say(f"a server did not answer as it should: {error}")
            return Exit.UNAVAILABLE
        case NothingToServe():
            cause = f": {error.__cause__}" if error.__cause__ else ""
            again = error.retry_in_ms
            later = f"; again in {again / 1000:g} s" if again is not None else ""
            means = _MEANS.get(error.reason, "")
            say(f"{error}{means}{cause}{later}")
            return Exit.TRY_AGAIN
        case BadKey() | EventError() | BadValue():
            say(str(error))
            return Exit.USAGE
        case _:
            say(str(error))
            return Exit.FAILED
