"""How long to leave an origin or a server alone after failures."""

from random import Random

MAX_DOUBLINGS = 30


def retry_ms(failures: int, random: Random, base_ms: int, cap_ms: int) -> int:
    """Return a wait after `failures` failures before this one: exponential, full jitter.

    Between half of `base_ms` and `base_ms x 2^failures`, at most `cap_ms`. The floor is
    there because full jitter alone may draw an instant retry.
    """
    ceiling = min(cap_ms, base_ms << min(max(failures, 0), MAX_DOUBLINGS))
    floor = min(base_ms // 2, ceiling)
    return random.randint(floor, ceiling)
