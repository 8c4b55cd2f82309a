"""What systemd is told, on a socket of the test's own."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmer.ops.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        yield receiver


def test_readiness_life_and_the_end_are_told(manager: socket.socket) -> None:
    """SYSTEMD-1, SYSTEMD-3."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})

    notifier.ready("serving now warm")
    notifier.alive()
    notifier.stopping(within_s=80)

    told = [manager.recv(4096).decode() for _ in range(3)]
    assert told == [
        "READY=1\nSTATUS=serving now warm",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=80000000",
    ]


def test_an_abstract_socket_is_understood() -> None:
    """SYSTEMD-1: an address that begins with @."""
    name = f"warmer-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).status("draining")

        assert receiver.recv(4096) == b"STATUS=draining"


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_outside_systemd_nothing_happens(environment: dict[str, str]) -> None:
    """SYSTEMD-1: no socket, or one that is gone, is no error."""
    notifier = Notifier(environment)

    notifier.ready("serving")
    notifier.alive()

    assert notifier.watchdog_s is None


def test_the_watchdog_is_fed_three_times_as_often_as_it_barks() -> None:
    """SYSTEMD-3: and only by the process that is watched."""
    watched = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}

    assert Notifier(watched).watchdog_s == 10
    assert Notifier({**watched, "WATCHDOG_PID": "1"}).watchdog_s is None
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_s is None
