"""Sentry, scrubbed. Imported only where a DSN is configured; see `warmer.ops.telemetry`.

Holds: no event carries a value, a secret, the process's arguments, a key, a breadcrumb or
a local variable; each has a fingerprint of bounded variety, and few of each are sent.
arq's jobs report their exceptions by Sentry's own integration, which finds them only if
this is started before arq's worker is made, by `arq.worker.create_worker`.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import sentry_sdk
from sentry_sdk.integrations.arq import ArqIntegration
from sentry_sdk.integrations.dedupe import DedupeIntegration

from warmer.clock import Clock
from warmer.ops.telemetry import WITHHELD, Fingerprint, Flood, told

if TYPE_CHECKING:
    from sentry_sdk.transport import Transport
    from sentry_sdk.types import Event, Hint

    from warmer.settings import Sentry

FLUSH_S = 2.0


class SentrySender:
    """Starts Sentry for this process, and sends it reports."""

    def __init__(
        self,
        sentry: "Sentry",
        *,
        clock: Clock,
        transport: "Transport | None" = None,
    ) -> None:
        if sentry.dsn is None:
            raise ValueError("Sentry without a DSN")
        sentry_sdk.init(
            dsn=sentry.dsn.get_secret_value(),
            environment=sentry.environment,
            release=sentry.release or f"warmer@{_own_version()}",
            transport=transport,
            before_send=Scrubber(Flood(clock)).scrub,
            # The default ones send argv, modules, log lines, and breadcrumbs with keys.
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[ArqIntegration(), DedupeIntegration()],
            max_breadcrumbs=0,
            include_local_variables=False,
            include_source_context=False,
            shutdown_timeout=FLUSH_S,
        )

    def send(self, name: str, labels: Fingerprint, error: BaseException | None) -> None:
        """Hand one report over."""
        with sentry_sdk.new_scope() as scope:
            scope.fingerprint = ["warmer", name, *labels, type(error).__name__]
            scope.set_tag("warmer.event", name)
            if error is None:
                sentry_sdk.capture_message(" ".join([name, *labels]), level="error")
            else:
                sentry_sdk.capture_exception(error)

    def flush(self) -> None:
        """Wait a moment for what is on its way."""
        sentry_sdk.flush(timeout=FLUSH_S)


class Scrubber:
    """The last look at an event before it leaves the process."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood

    def scrub(self, event: "Event", hint: "Hint") -> "Event | None":
        """Return what may be sent, None for one too many of its kind."""
        fingerprint = _fingerprint(event)
        kept = self._flood.admit(fingerprint)
        if kept is None:
            return None
        event["fingerprint"] = list(fingerprint)
        event["extra"] = {"suppressed": kept}
        event.pop("breadcrumbs", None)
        _, error, _ = hint.get("exc_info") or (None, None, None)
        texts = _texts(error)
        for thrown in event.get("exception", {}).get("values", []):
            thrown["value"] = texts.get(thrown.get("type", ""), WITHHELD)
        return event


def _fingerprint(event: "Event") -> Fingerprint:
    """Return what the event is counted by: for a failed job, its name and the error's."""
    given = event.get("fingerprint")
    if given:
        return tuple(given)
    thrown = event.get("exception", {}).get("values", [])
    kind = thrown[-1].get("type", "error") if thrown else "message"
    return ("warmer", "job_failed", event.get("transaction", "-"), kind)


def _texts(error: BaseException | None) -> dict[str, str]:
    """Return what may be told, by type, of an error and of what led to it."""
    texts: dict[str, str] = {}
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        texts.setdefault(type(error).__name__, told(error))
        error = error.__cause__ or error.__context__
    return texts


def _own_version() -> str:
    try:
        return version("warmer")
    except PackageNotFoundError:
        return "unknown"
