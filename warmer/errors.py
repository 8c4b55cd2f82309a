"""Every error this package raises, as one tree.

    WarmerError
    ├ ConfigError                 the process does not start; field and file are named
    ├ StoreError                  the cache or control server did not do what was asked
    │ ├ StoreTimeout              no reply in time; the command may have been carried out
    │ ├ StoreUnavailable          no connection, or the server is loading
    │ ├ Backlogged                the event log is at its bound; again later
    │ └ StoreRefused              the server answered no: READONLY, OOM, NOAUTH, NOPERM …
    ├ OriginError                 a load failed; never cached as a value
    │ ├ OriginTimeout             in which phase: connect, read, write, pool, total
    │ ├ OriginUnavailable         refused, reset, name not resolved, 5xx
    │ ├ OriginRefused             401, 403, 429 or 503 with Retry-After: retry_in_ms says when
    │ │ └ NoPermit                it was not asked: no capacity, or it is known to be down
    │ └ OriginInvalid             an answer that must not be stored: too large, no version
    │   └ OriginTruncated         it ended before it was complete
    ├ EventError                  4xx or dead letter, never retried
    │ ├ BadSignature
    │ └ BadEvent
    ├ BadKey                      the parts do not make a key of this dataset
    ├ BadValue                    a loaded value that would not read back equal
    ├ WrongLoop                   a client is used outside the event loop it was made for
    └ NothingToServe              the only one a reader meets in normal operation

What is expected (a lease held by another, a fenced publish) is not here: it is
an outcome, see `warmer.model.outcome`.
"""

from typing import NamedTuple


class WarmerError(Exception):
    """Base of all errors of this package."""


class Problem(NamedTuple):
    """One wrong setting: where it was read, its path in the file, what is allowed."""

    where: str
    setting: str
    message: str

    @property
    def line(self) -> str:
        """One line for people."""
        return ": ".join(part for part in self if part)


class ConfigError(WarmerError):
    """Settings are wrong. Each problem names file, field, and what is allowed."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(
            problem if isinstance(problem, Problem) else Problem("", "", problem)
            for problem in problems
        )
        super().__init__("\n".join(problem.line for problem in self.problems))


class StoreError(WarmerError):
    """The cache or control server did not do what was asked."""


class StoreTimeout(StoreError):
    """No reply in time. The command may have been carried out all the same."""


class StoreUnavailable(StoreError):
    """No connection to the server, or the server is still loading its data."""


class Backlogged(StoreError):
    """So many events wait in the log that no more are taken; `waiting` of them."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} events wait in the event log, which is its bound")
        self.waiting = waiting


class StoreRefused(StoreError):
    """The server answered no; `code` is its first word (READONLY, OOM, NOPERM …)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code


class OriginError(WarmerError):
    """A load failed. `reason` is a word of bounded variety, fit for a label.

    `busy`: the origin said that it has too much to do.
    """

    reason = "failed"

    def __init__(
        self, message: str, *, retry_in_ms: int | None = None, busy: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_in_ms = retry_in_ms
        self.busy = busy


class OriginTimeout(OriginError):
    """The origin was too slow; `phase` is connect, read, write, pool or total."""

    reason = "timeout"

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class OriginUnavailable(OriginError):
    """No connection, a broken one, or a 5xx answer."""

    reason = "unavailable"


class OriginRefused(OriginError):
    """401, 403, 429 or 503: the origin answers and says no; `retry_in_ms` if it said when."""

    reason = "refused"


class NoPermit(OriginRefused):
    """The origin was not asked: its limit is used up, or it is known to be down.

    `why` is a word of bounded variety: line_full, too_late, no_capacity, lapsed, open.
    """

    reason = "no_permit"

    def __init__(self, why: str, message: str, *, retry_in_ms: int) -> None:
        super().__init__(message, retry_in_ms=retry_in_ms)
        self.why = why


class OriginInvalid(OriginError):
    """An answer that must not be stored: too large, truncated, unreadable version."""

    reason = "invalid"


class OriginTruncated(OriginInvalid):
    """The answer ended before it was complete: the origin is not well."""


class EventError(WarmerError):
    """An event that is answered with 4xx or parked as a dead letter, never retried."""


class BadSignature(EventError):
    """The signature is absent or wrong."""


class BadEvent(EventError):
    """The event cannot be understood; the message names the field and the value's shape."""


class BadKey(WarmerError, ValueError):
    """The parts given do not make a key of the dataset; the message names the part."""


class BadValue(WarmerError, ValueError):
    """A value that would not read back equal from JSON (NaN, datetime, tuple, …)."""


class WrongLoop(WarmerError, RuntimeError):
    """A client is used from another thread's event loop, from a later one, or after a fork."""


class NothingToServe(WarmerError):
    """No value may be given for this key now.

    `reason` is a word of bounded variety; `retry_in_ms` says when another call can
    find a value, if that is known. `__cause__` is the origin's error, if one led here.
    """

    def __init__(
        self, key: str, reason: str, *, retry_in_ms: int | None = None
    ) -> None:
        super().__init__(f"nothing to serve for {key}: {reason}")
        self.key = key
        self.reason = reason
        self.retry_in_ms = retry_in_ms
