"""Lua scripts as calls by name: a file of lua/ cannot be called wrongly in silence.

The first two statements of a file name its KEYS and ARGV, and are read from there. The
server keeps scripts by content (EVALSHA), so two releases can share one server.

Holds: a server that lost its scripts (restart, SCRIPT FLUSH, failover) gets them again
within the call that met the loss, also in the middle of a pipeline.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

Argument: TypeAlias = str | bytes | int
Reply: TypeAlias = object
"""What redis-py gives: bytes, int, None, a list of them; or an error, as a value."""

_NAMES = re.compile(
    r"\Alocal ([\w\s,]+?) = unpack\(KEYS\)\s+local ([\w\s,]+?) = unpack\(ARGV\)"
)
_NOW = "now_ms"


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys and arguments in place, ready to be sent."""

    script: "Script"
    arguments: tuple[Argument, ...]

    def words(self) -> tuple[Argument, ...]:
        """Return the command, for a server that knows the script."""
        script = self.script
        return ("EVALSHA", script.sha, len(script.keys), *self.arguments)

    def words_in_full(self) -> tuple[Argument, ...]:
        """Return the command, for a server that does not; it will then."""
        script = self.script
        return ("EVAL", script.text, len(script.keys), *self.arguments)


Command: TypeAlias = Call | tuple[Argument, ...]


class Script:
    """One file of lua/. `keys` and `arguments` are the names it gives them."""

    __slots__ = ("_known", "_names", "arguments", "keys", "sha", "text")

    def __init__(self, name: str, text: str | None = None) -> None:
        """Read lua/`name`.lua, unless its text is given."""
        if text is None:
            text = (files("warmer.store") / "lua" / f"{name}.lua").read_text()
        found = _NAMES.match(text)
        if found is None:
            raise ValueError(f"{name}.lua: its first statements do not name KEYS, ARGV")
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.keys = _split(found[1])
        self.arguments = _split(found[2])
        self._names = (*self.keys, *self.arguments)
        self._known = set(self._names)

    def call(self, **named: Argument) -> Call:
        """Return the call; TypeError for a missing or unknown name. `now_ms` may be absent."""
        if _NOW not in named and self.arguments[-1] == _NOW:
            named[_NOW] = ""
        if named.keys() != self._known:
            raise TypeError(_difference(self._known, set(named)))
        return Call(self, tuple([named[name] for name in self._names]))


async def run(redis: Redis, call: Call) -> Reply:
    """Return the reply of one call; raises redis-py's errors."""
    reply = (await pipelined(redis, [call]))[0]
    if isinstance(reply, ResponseError):
        raise reply
    return reply


async def pipelined(redis: Redis, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies of `commands`, sent together; errors among them are values.

    Calls whose script the server does not have are sent again with its text: after the
    other commands, therefore, and not in between.
    """
    replies = await _send(redis, [_words(command) for command in commands])
    unknown = {
        at: command.words_in_full()
        for at, (command, reply) in enumerate(zip(commands, replies, strict=True))
        if isinstance(reply, NoScriptError) and isinstance(command, Call)
    }
    if unknown:
        # Not SCRIPT LOAD and EVALSHA: a flush may come between the two.
        answers = await _send(redis, list(unknown.values()))
        for at, answer in zip(unknown, answers, strict=True):
            replies[at] = answer
    return replies


async def _send(redis: Redis, commands: Sequence[tuple[Argument, ...]]) -> list[Reply]:
    pipeline = redis.pipeline(transaction=False)
    for words in commands:
        pipeline.execute_command(*words)
    return cast("list[Reply]", await pipeline.execute(raise_on_error=False))


def _words(command: Command) -> tuple[Argument, ...]:
    return command.words() if isinstance(command, Call) else command


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(","))


def _difference(expected: set[str], given: set[str]) -> str:
    missing, unknown = sorted(expected - given), sorted(given - expected)
    return f"missing {missing}, unknown {unknown}"
