"""A worker process that is told of a service manager's socket, as systemd does."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fleet import Shop, shop_on
from tests.origin_server import Reply
from tests.processes import Children
from tests.servers import ServerProcess


class Manager:
    """What systemd would see."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver

    @property
    def env(self) -> dict[str, str]:
        return {
            "NOTIFY_SOCKET": self._receiver.getsockname(),
            "WATCHDOG_USEC": "600000",
        }

    async def told(self, beginning: str) -> str:
        """The next message that begins so."""
        while True:
            message = (await asyncio.to_thread(self._receiver.recv, 4096)).decode()
            if message.startswith(beginning):
                return message


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(20)
        yield Manager(receiver)


@pytest.fixture
async def shop(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    valkey.renew()
    async with shop_on(valkey.url, tmp_path) as opened:
        yield opened


async def test_ready_alive_during_a_slow_load_and_stopping_are_told(
    shop: Shop, manager: Manager, children: Children
) -> None:
    """SYSTEMD-1, SYSTEMD-3: the watchdog is fed while a load hangs."""
    worker = shop.start_worker(children, env=manager.env, drain="1s")
    ready = await manager.told("READY=1")
    shop.write(1)
    shop.origin.on("/products/1", Reply(hang=True))
    await shop.control.events.append([shop.event(1, 1)])
    await shop.origin.sees(running=1)
    for _ in range(3):
        await manager.told("WATCHDOG=1")

    worker.terminate()
    stopping = await manager.told("STOPPING=1")

    assert "serving now warm" in ready
    assert "EXTEND_TIMEOUT_USEC=" in stopping
    assert await worker.exited(within_s=15) == 0


async def test_a_worker_is_not_ready_before_its_server_is(
    shop: Shop, valkey: ServerProcess, manager: Manager, children: Children
) -> None:
    """SYSTEMD-1, FAILOVER-4."""
    await asyncio.to_thread(valkey.kill)
    shop.start_worker(children, env=manager.env)

    waiting = await manager.told("")
    await asyncio.to_thread(valkey.start)

    assert waiting == "STATUS=waiting for the control server"
    assert await manager.told("READY=1")
