"""Whether this process gets anywhere: the watchdog is fed by what is done, not by a timer."""

from warmer.clock import Clock


class Pulse:
    """Who must give a sign of life, and when each last did."""

    def __init__(self, clock: Clock, *, within_s: float) -> None:
        self._clock = clock
        self._within_s = within_s
        self._beats: dict[str, float] = {}

    def beat(self, who: str) -> None:
        """Note that `who` has got one round further, be it only to a reported error."""
        self._beats[who] = self._clock.monotonic()

    def end(self, who: str) -> None:
        """Note that `who` has finished, and is not waited for."""
        self._beats.pop(who, None)

    def stuck(self) -> list[str]:
        """Return who has given no sign for too long."""
        since = self._clock.monotonic() - self._within_s
        return sorted(who for who, at in self._beats.items() if at < since)
