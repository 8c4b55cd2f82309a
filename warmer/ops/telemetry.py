"""Errors that people should hear of: one log line each, and Sentry where it is configured.

Holds: without a DSN nothing of Sentry is imported. An event carries no value, no secret,
no argument of the process and no key; its fingerprint is a name and labels of bounded
variety. A thousand errors of one kind are a few events, and a count of the rest.
Does not hold: that an event arrives. Sentry drops when it is slow, and so does its queue.

`start` must come before arq's worker is made: see `jobs.worker`.
"""

import logging
import re
from typing import TYPE_CHECKING, Protocol

from warmer.clock import Clock
from warmer.errors import ConfigError, OriginError, StoreError

if TYPE_CHECKING:
    from warmer.settings import Sentry

log = logging.getLogger("warmer")

EVENTS_PER_MINUTE = 5
MAX_FINGERPRINTS = 1_000
"""Bound of what is remembered; above it the oldest are forgotten."""
WITHHELD = "[withheld]"

_WINDOW_S = 60.0
_TELLING = (StoreError, OriginError, ConfigError)
"""Errors whose text is ours and about servers. Any other may quote somebody's data."""
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*(?=@)")

Fingerprint = tuple[str, ...]


class Report(Protocol):
    """Where errors go that no caller is there to be told of."""

    def __call__(
        self, name: str, *labels: str, error: BaseException | None = None
    ) -> None:
        """Report `name`; labels are of bounded variety: a dataset, a lane, a reason."""
        ...


class Flood:
    """Lets few of a kind through, and knows how many it kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[Fingerprint, tuple[float, int]] = {}
        self._kept: dict[Fingerprint, int] = {}

    def admit(self, fingerprint: Fingerprint) -> int | None:
        """Return how many like it were kept since the last one, None to keep this too."""
        now = self._clock.monotonic()
        since, count = self._windows.pop(fingerprint, (now, 0))
        if now - since >= _WINDOW_S:
            since, count = now, 0
        while len(self._windows) >= MAX_FINGERPRINTS:
            oldest = next(iter(self._windows))
            del self._windows[oldest]
            self._kept.pop(oldest, None)
        self._windows[fingerprint] = (since, count + 1)
        if count >= EVENTS_PER_MINUTE:
            self._kept[fingerprint] = self._kept.get(fingerprint, 0) + 1
            return None
        return self._kept.pop(fingerprint, 0)


class Sender(Protocol):
    """What carries reports out of the process."""

    def send(self, name: str, labels: Fingerprint, error: BaseException | None) -> None:
        """Hand one report over; never blocks."""
        ...

    def flush(self) -> None:
        """Wait a moment for what is on its way."""
        ...


class Reporter:
    """Reports errors of this process. `start` makes it."""

    def __init__(self, clock: Clock, *, sender: Sender | None) -> None:
        self._flood = Flood(clock)
        self._sender = sender

    def __call__(
        self, name: str, *labels: str, error: BaseException | None = None
    ) -> None:
        """Log it, and send it where Sentry is configured; few of a kind."""
        kept = self._flood.admit((name, *labels, type(error).__name__))
        if kept is None:
            return
        text = " ".join([name, *labels])
        log.error("%s error=%s suppressed=%d", text, described(error), kept)
        log.debug("%s", text, exc_info=error)
        if self._sender is not None:
            self._sender.send(name, labels, error)

    def close(self) -> None:
        """Wait a moment for what is on its way."""
        if self._sender is not None:
            self._sender.flush()


def start(sentry: "Sentry", *, clock: Clock) -> Reporter:
    """Return where to report. Sentry is started if there is a DSN, else not even imported."""
    if sentry.dsn is None:
        return Reporter(clock, sender=None)
    from warmer.ops.sentry import SentrySender  # noqa: PLC0415 - only with a DSN

    return Reporter(clock, sender=SentrySender(sentry, clock=clock))


def described(error: BaseException | None) -> str:
    """Return an error as it may be logged and sent: its text only where it is ours."""
    return "-" if error is None else f"{type(error).__name__}({told(error)})"


def told(error: BaseException) -> str:
    """Return an error's text if it cannot quote anybody's data, without credentials."""
    if not isinstance(error, _TELLING):
        return WITHHELD
    return _CREDENTIALS.sub("***", str(error))
