"""Who may use how much of a limit: max-min over the processes, the urgent before the rest.

Holds: shares never sum to more than the limit, and what only requests may use is never
given to another purpose. Within one purpose nobody is given less than another who wants as
much or less, but for one permit that goes round. What the urgent leave is lent downwards.
Does not hold: that a campaign gets anything while requests want all.

The script `permit_share` decides the same; `tests/protocol/test_permits.py` holds both to
each other.
"""

from collections.abc import Sequence
from math import ceil

from warmer.model.permit import Counts, Pool


def reserve_of(limit: int, ratio: float) -> int:
    """Return how much of `limit` only requests may use; the others always keep one."""
    return max(0, min(ceil(limit * ratio), limit - 1))


def level(limit: int, wants: Sequence[int], turn: int) -> list[int]:
    """Return max-min shares. What cannot be split evenly goes round with `turn`."""
    shares = [0] * len(wants)
    waiting = sorted(range(len(wants)), key=lambda at: (wants[at], at))
    left = limit
    while waiting and wants[waiting[0]] <= left // len(waiting):
        satisfied = waiting.pop(0)
        shares[satisfied] = wants[satisfied]
        left -= wants[satisfied]
    waiting.sort()
    for place, at in enumerate(waiting):
        nth = (place + turn) % len(waiting)
        shares[at] = left // len(waiting) + (nth < left % len(waiting))
    return shares


def shares_of(pool: Pool, wants: Sequence[Counts], *, turn: int = 0) -> list[Counts]:
    """Return what each process may use, by purpose."""
    left, lent = pool.limit, pool.limit - pool.reserve
    by_purpose: list[list[int]] = []
    for rank in range(len(Counts._fields)):
        room = left if rank == 0 else min(left, lent)
        given = level(room, [want[rank] for want in wants], turn)
        by_purpose.append(given)
        left -= sum(given)
        if rank > 0:
            lent -= sum(given)
    return [Counts(*shares) for shares in zip(*by_purpose, strict=True)]


def within(share: Counts, *, room: int, room_to_lend: int) -> Counts:
    """Return as much of a share as there is room for, the urgent first."""
    request = min(share.request, room)
    left = min(room - request, room_to_lend)
    given = [request]
    for wanted in share[1:]:
        given.append(min(wanted, left))
        left -= given[-1]
    return Counts(*given)


def lowered(share: Counts, wants: Counts) -> Counts:
    """Return what is kept of a share: no more than is wanted, or the first keeps all."""
    return Counts(*map(min, share, wants))


def admits(share: Counts, used: Counts, rank: int) -> bool:
    """Return whether a load of this rank may begin.

    The urgent may use what is granted to the others, never the reverse.
    """
    return all(sum(used[at:]) < sum(share[at:]) for at in range(rank + 1))
