"""A PostgreSQL cluster of the test's own, and sessions on it that keep a transaction open."""

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any, Self

from tests.servers import free_port, wait_until

OWNER = "postgres"


def binaries() -> Path:
    """The newest installed release's programs."""
    (*_, newest) = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda at: int(at.parent.name)
    )
    return newest


class Session:
    """One connection, by psql: what it is told it has done when `run` returns."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, sql: str) -> str:
        """Run statements; return what they printed."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("psql has no pipes")
        mark = f"done-{uuid.uuid4()}"
        self._process.stdin.write(f"{sql}\n\\echo {mark}\n".encode())
        await self._process.stdin.drain()
        lines: list[str] = []
        while True:
            line = (await self._process.stdout.readline()).decode()
            if not line:
                raise AssertionError(f"psql ended: {lines}")
            if line.strip() == mark:
                return "\n".join(lines)
            lines.append(line.rstrip("\n"))

    async def close(self) -> None:
        """End the session."""
        self._process.kill()
        await self._process.wait()


class Database:
    """The cluster: started, asked, discarded."""

    def __init__(self) -> None:
        # Not pytest's folder, which is for its own user alone.
        self.directory = Path(tempfile.mkdtemp(prefix="warmer-pg-"))
        self.port = free_port()
        self._user = pwd.getpwnam(OWNER) if os.getuid() == 0 else None
        self._sessions: list[Session] = []

    def start(self) -> Self:
        """Make the cluster and start it; it answers when this returns."""
        if self._user is not None:
            shutil.chown(self.directory, OWNER, OWNER)
        data = self.directory / "data"
        self._owned("initdb", "-D", str(data), "-A", "trust", "-U", "app", "-N")
        (data / "postgresql.auto.conf").write_text(
            f"port = {self.port}\nlisten_addresses = '127.0.0.1'\n"
            f"unix_socket_directories = ''\nwal_level = logical\nfsync = off\n"
        )
        self._owned(
            "pg_ctl", "-D", str(data), "-l", str(self.directory / "log"), "start"
        )
        wait_until(self._answers, what="PostgreSQL answers", within_s=30)
        return self

    def discard(self) -> None:
        """Stop it at once, and remove it."""
        data = str(self.directory / "data")
        self._owned("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(self.directory)

    async def session(self) -> Session:
        """Return a new connection."""
        process = await asyncio.create_subprocess_exec(
            *self._psql(),
            "-v",
            "ON_ERROR_STOP=1",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        session = Session(process)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        """End all sessions."""
        for session in self._sessions:
            await session.close()

    def connector(self) -> dict[str, Any]:
        """What Debezium has to know of it."""
        return {
            "database.hostname": "127.0.0.1",
            "database.port": str(self.port),
            "database.user": "app",
            "database.password": "none",
            "database.dbname": "postgres",
        }

    def _psql(self) -> list[str]:
        return [
            str(binaries() / "psql"),
            *("-h", "127.0.0.1", "-p", str(self.port), "-U", "app", "-d", "postgres"),
            "-qAtX",
        ]

    def _answers(self) -> bool:
        asked = subprocess.run(
            [*self._psql(), "-c", "SELECT 1"], capture_output=True, check=False
        )
        return asked.returncode == 0

    def _owned(self, program: str, *arguments: str) -> None:
        """Run a program as who owns the cluster: the server refuses root."""
        as_owner: list[str] = []
        if self._user is not None:
            as_owner = [
                "setpriv",
                f"--reuid={self._user.pw_uid}",
                f"--regid={self._user.pw_gid}",
                "--clear-groups",
            ]
        done = subprocess.run(
            [*as_owner, str(binaries() / program), *arguments],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"
