"""Entries that another consumer left behind: taken, and those that ended it set aside.

Holds: an entry that ends its consumers again and again is set aside in the end; those that
were delivered together with it are taken before, or after, and none is set aside for it.
The server's count of deliveries is what outlives the processes.
"""

from collections.abc import Awaitable, Callable, Sequence

from warmer.store.consumer_group import ConsumerGroup, StreamEntry

SUSPECT_AFTER, POISON_AFTER = 3, 6
"""Deliveries. A suspect is taken alone: from then on no other is counted with it."""


async def take_over(
    group: ConsumerGroup,
    consumer: str,
    abandoned: Sequence[StreamEntry],
    *,
    take: Callable[[Sequence[StreamEntry]], Awaitable[None]],
    set_aside: Callable[[StreamEntry], Awaitable[None]],
) -> None:
    """Have abandoned entries taken and acknowledged, suspects last and each alone."""
    deliveries = await group.deliveries(consumer, abandoned)
    counted = [
        (entry, deliveries.get((entry.stream, entry.id), 1)) for entry in abandoned
    ]
    harmless = [entry for entry, given in counted if given <= SUSPECT_AFTER]
    if harmless:
        await take(harmless)
        await group.acknowledge(harmless)
    suspects = [each for each in counted if each[1] > SUSPECT_AFTER]
    waiting = [entry for entry, _ in suspects]
    await group.count_as(consumer, waiting, SUSPECT_AFTER)
    for entry, given in suspects:
        if given > POISON_AFTER:
            await set_aside(entry)
        else:
            # Counted against it alone, if this process dies of it.
            await group.count_as(consumer, [entry], given)
            await take([entry])
        await group.acknowledge([entry])
