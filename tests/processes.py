"""Child processes that a test starts, watches and kills.

Holds: no child outlives the test process, however that ends; no wait is unbounded; a
wait that fails shows what the child printed.
Does not hold: that a child is stopped when a test forgets it outside the fixtures.

The waits come in two forms. The plain ones block the caller's thread. The async ones
(`line`, `exited`) let the event loop go on: a test whose own server answers the child
needs those.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

CHECKOUT = Path(__file__).parent.parent
WARMER = Path(sys.executable).with_name("warmer")


class Leash:
    """Kills a process group when the test process is gone, even by SIGKILL.

    A shell holds the read end of a pipe whose only writer is this process.
    PR_SET_PDEATHSIG would do the same for a thread, and servers outlive threads.
    """

    def __init__(self, pid: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read gone; kill -9 -{pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def slip(self) -> None:
        """Let go: the process has ended, and its number may soon be another's."""
        if self._shell.stdin is not None and not self._shell.stdin.closed:
            self._shell.kill()
            self._shell.communicate()


class ChildProcess:
    """A running command: its output as lines, and the signals a test sends it."""

    def __init__(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = CHECKOUT,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self.command = command
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._silent = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._leash = Leash(self._process.pid)
        output = self._process.stdout
        if output is None:
            raise RuntimeError("the child's output is not captured")
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    @classmethod
    def python(
        cls,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = CHECKOUT,
    ) -> Self:
        """`python -m module arguments`, with this interpreter."""
        return cls([sys.executable, "-m", module, *arguments], env=env, cwd=cwd)

    @classmethod
    def warmer(
        cls,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = CHECKOUT,
    ) -> Self:
        """The `warmer` command of this environment."""
        return cls([str(WARMER), *arguments], env=env, cwd=cwd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    @property
    def output(self) -> str:
        with self._changed:
            return "\n".join(self.lines)

    def wait_for_line(
        self, pattern: str, *, within_s: float = 10, after: int = 0
    ) -> re.Match[str]:
        """The first match among the lines from number `after` on, printed or to come.

        A child that ends or falls silent without it fails the test at once.
        """
        seen = after
        found: re.Match[str] | None = None

        def arrived() -> bool:
            nonlocal seen, found
            while found is None and seen < len(self.lines):
                found = re.search(pattern, self.lines[seen])
                seen += 1
            return found is not None or self._silent

        with self._changed:
            self._changed.wait_for(arrived, timeout=within_s)
        if found is None:
            raise AssertionError(
                f"no line matched {pattern!r} within {within_s} s "
                f"(exit status {self.exit_status}):\n{self.output}"
            )
        return found

    async def line(
        self, pattern: str, *, within_s: float = 10, after: int = 0
    ) -> re.Match[str]:
        """`wait_for_line`, while the event loop goes on."""
        return await asyncio.to_thread(
            self.wait_for_line, pattern, within_s=within_s, after=after
        )

    def wait(self, *, within_s: float = 10) -> int:
        """The exit status, with all output read."""
        try:
            status = self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {within_s} s:\n{self.output}"
            ) from None
        self._leash.slip()
        self._reader.join(timeout=within_s)
        return status

    async def exited(self, *, within_s: float = 10) -> int:
        """`wait`, while the event loop goes on."""
        return await asyncio.to_thread(self.wait, within_s=within_s)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def pause(self) -> None:
        """SIGSTOP: alive, holding what it holds, answering nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to it and its own children: nothing of it runs a last line."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._silent = True
            self._changed.notify_all()


class Children:
    """The child processes of one test; the fixture kills what is left of them."""

    def __init__(self) -> None:
        self._started: list[ChildProcess] = []

    def python(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = CHECKOUT,
    ) -> ChildProcess:
        return self._keep(ChildProcess.python(module, *arguments, env=env, cwd=cwd))

    def warmer(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = CHECKOUT,
    ) -> ChildProcess:
        return self._keep(ChildProcess.warmer(*arguments, env=env, cwd=cwd))

    def run(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = CHECKOUT,
        pass_fds: tuple[int, ...] = (),
    ) -> ChildProcess:
        return self._keep(ChildProcess(command, env=env, cwd=cwd, pass_fds=pass_fds))

    def kill_all(self) -> None:
        """End them, and print what they said: pytest shows it where a test failed."""
        for child in self._started:
            child.kill()
            print(f"$ {' '.join(child.command)}\n{child.output}")
        self._started.clear()

    def _keep(self, child: ChildProcess) -> ChildProcess:
        self._started.append(child)
        return child
