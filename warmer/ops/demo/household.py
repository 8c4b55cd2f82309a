"""The demo's processes and files: started together, gone together.

Holds: however the demo ends (done, failed, Ctrl-C, terminal closed, SIGKILL), its
processes and its directory go within seconds; a process that ends early ends the demo,
with its name and its last lines.
Does not hold: that a process ends gracefully once the demo is killed.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from warmer.errors import WarmerError
from warmer.settings.reading import CREDENTIALS_VARIABLE, PREFIX

_STARTS_WITHIN_S = 60.0
_ENDS_WITHIN_S = 5.0
_SHOWN_LINES = 15
_LONGEST_LINE = 16 * 2**20
"""A reader reports everything it saw in one line."""

_T = TypeVar("_T")

_LEASH = """
trap '' TERM
read -r gone
kill -TERM 0
sleep 2
rm -rf "$1"
kill -KILL 0
"""
"""The leash: a shell that holds the read end of a pipe, whose only writer is the demo.
It leads the process group that all others are started in."""


class DemoError(WarmerError):
    """The demo cannot go on, or a promise did not hold; the message is for its user."""


class Member:
    """One process of the household. What it says on stderr is in its log."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._process = process

    async def line(self) -> str:
        """Return the next line it prints; raises DemoError if it ends or takes too long."""
        if self._process.stdout is None:
            raise DemoError(f"{self.name} prints to its log only")
        try:
            async with asyncio.timeout(_STARTS_WITHIN_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise DemoError(
                f"{self.name} said nothing for {_STARTS_WITHIN_S:.0f} s{self.last_words()}"
            ) from None
        if not line:
            raise DemoError(f"{self.name} ended{self.last_words()}")
        return line.decode().rstrip("\n")

    async def tell(self, line: str) -> None:
        """Give it one line on its standard input."""
        if self._process.stdin is None:
            raise DemoError(f"{self.name} takes no input")
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def ended(self) -> int:
        """Return its exit status when it has ended."""
        return await self._process.wait()

    async def end(self) -> None:
        """Ask it to end, and return when it has; it is killed if it takes too long."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def last_words(self) -> str:
        """Return the end of its log, to be appended to a message."""
        with suppress(FileNotFoundError):
            lines = self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            if lines:
                return ":\n  " + "\n  ".join(lines)
        return ""


class Household:
    """The processes, ended in the reverse order of their start."""

    def __init__(self, directory: Path, leash: asyncio.subprocess.Process) -> None:
        self.directory = directory
        self._leash = leash
        self._members: list[Member] = []
        self._ends: list[asyncio.Task[None]] = []
        self._lost: asyncio.Future[Member] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """An empty household with a directory of its own; all of it is gone at the end."""
        directory = Path(tempfile.mkdtemp(prefix="warmer-demo-"))
        try:
            leash = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _LEASH, "leash", str(directory)),
                stdin=asyncio.subprocess.PIPE,
                process_group=0,
            )
            household = cls(directory, leash)
            try:
                yield household
            finally:
                await household.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def start(self, name: str, *command: str, talks: bool = False) -> Member:
        """Start a process. `talks`: its standard input and output are for the demo."""
        log = self.directory / f"{name.replace(' ', '-')}.log"
        pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe if talks else none,
                stdout=pipe if talks else errors,
                stderr=errors,
                limit=_LONGEST_LINE,
                env=_environment(),
                process_group=self._leash.pid,
            )
        member = Member(name, process, log)
        self._members.append(member)
        self._ends.append(asyncio.create_task(self._notice_end(member)))
        return member

    async def start_module(self, name: str, module: str, *arguments: str) -> Member:
        """Start `python -m module`, that talks to the demo."""
        return await self.start(
            name, sys.executable, "-m", module, *arguments, talks=True
        )

    async def start_warmer(self, name: str, *arguments: str) -> Member:
        """Start the `warmer` command of this installation."""
        command = "from warmer.ops.cli import main; main()"
        return await self.start(name, sys.executable, "-c", command, *arguments)

    async def while_all_run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what `work` gives; raises DemoError as soon as any process ends."""
        working = asyncio.ensure_future(work)
        try:
            first: set[asyncio.Future[Any]] = {working, self._lost}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                lost = self._lost.result()
                raise DemoError(f"{lost.name} ended unexpectedly{lost.last_words()}")
            return working.result()
        finally:
            working.cancel()
            await asyncio.wait({working})

    async def _notice_end(self, member: Member) -> None:
        await member.ended()
        if not self._lost.done():
            self._lost.set_result(member)

    async def close(self) -> None:
        """End all processes, the last one started first."""
        for each in self._ends:
            each.cancel()
        while self._members:
            await self._members.pop().end()
        with suppress(ProcessLookupError):
            # And whatever was being started when the end came.
            os.killpg(self._leash.pid, signal.SIGKILL)
        await self._leash.wait()


def _environment() -> dict[str, str]:
    """Return this process's environment without settings: they may name another cache."""
    return {
        name: value
        for name, value in os.environ.items()  # noqa: TID251 - to leave settings out
        if not name.startswith(PREFIX) and name != CREDENTIALS_VARIABLE
    }
