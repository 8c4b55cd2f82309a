"""systemd's notification protocol: ready, stopping, alive. Outside systemd, nothing.

Holds: it never raises and never blocks; a socket that is gone is no reason to stop.
"""

import contextlib
import os
import socket
from collections.abc import Mapping

_MICROS = 1_000_000


class Notifier:
    """The service manager's socket, if this process has one."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        # systemd's own protocol, not a setting of ours.
        environment = os.environ if environment is None else environment  # noqa: TID251
        self._address = environment.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        self._watchdog = environment.get("WATCHDOG_USEC", "")
        self._watched = environment.get("WATCHDOG_PID", str(os.getpid()))

    @property
    def watchdog_s(self) -> float | None:
        """How often `alive` must be called, None if nobody watches."""
        if not self._watchdog.isdigit() or self._watched != str(os.getpid()):
            return None
        return int(self._watchdog) / _MICROS / 3

    def ready(self, status: str) -> None:
        """Say that the service is usable."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """Say what the service does, for `systemctl status`."""
        self._send(f"STATUS={text}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self, *, within_s: float) -> None:
        """Say that the service drains, and how long that may take."""
        extended = int(within_s * _MICROS)
        self._send(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={extended}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            sender.setblocking(False)  # noqa: FBT003 - the standard library's name for it
            sender.connect(self._address)
            sender.send(message.encode())
