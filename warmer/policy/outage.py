"""Whether to ask a server that has just failed: not for a short while, then one at a time.

Without it, every request to a hanging cache server waits out the store's timeout.
"""

from random import Random

from warmer.policy.backoff import retry_ms

PAUSE_BASE_MS = 200
PAUSE_CAP_MS = 2_000
PROBE_MS = 1_000
"""Time in which a probe answers or fails; one that is cancelled holds up no longer."""


class Outage:
    """What is known of one server; instants are monotonic seconds, handed in.

    `failures`: how often in a row it was asked in vain; 0 says there is no outage.
    """

    __slots__ = ("_again_at", "_noticed_at", "_random", "failures")

    def __init__(self, random: Random) -> None:
        self._random = random
        self.failures = 0
        self._noticed_at = 0.0
        self._again_at = 0.0

    def may_ask(self, now: float) -> bool:
        """Return whether the server may be asked; during an outage, once per pause."""
        if not self.failures:
            return True
        if now < self._again_at:
            return False
        self._again_at = now + PROBE_MS / 1000
        return True

    def answered(self) -> None:
        """Note that the server answered."""
        self.failures = 0

    def failed(self, now: float, *, asked_at: float) -> None:
        """Note a failure. Of requests that were under way together, the first one counts."""
        if self.failures and asked_at <= self._noticed_at:
            return
        pause_ms = retry_ms(self.failures, self._random, PAUSE_BASE_MS, PAUSE_CAP_MS)
        self.failures += 1
        self._noticed_at = now
        self._again_at = now + pause_ms / 1000
