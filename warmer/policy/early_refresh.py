"""Refreshing before the end, by chance (XFetch), so that a hot key is never seen to expire.

Every reader draws for itself; the more readers and the slower the load, the earlier one of
them refreshes: `now - load_ms x beta x ln(random) >= fresh_until`. Off where beta is 0.
"""

import math
from random import Random

from warmer.model.entry import Entry


def due_early(entry: Entry, now_ms: int, *, beta: float, random: Random) -> bool:
    """Return whether this reader is the one to refresh a still fresh entry."""
    if beta <= 0:
        return False
    drawn = 1 - random.random()  # (0, 1]: ln(0) is not a number
    return now_ms - entry.load_ms * beta * math.log(drawn) >= entry.fresh_until
