"""Refreshes at once in one process."""

import asyncio

from jobs.slots import Slots
from warmer.model.due import Lane


def test_no_more_are_granted_than_there_are() -> None:
    """R-CARD-3: bounded concurrency."""
    slots = Slots(8)

    granted = [slots.reserve(Lane.NOW, 5) for _ in range(3)]

    assert granted == [5, 3, 0]
    slots.give_back(2)
    assert slots.reserve(Lane.NOW, 5) == 2
    assert slots.used == 8


def test_warming_leaves_room_for_what_is_due_now() -> None:
    """R-ADM-3: a campaign does not stand in the way of an event."""
    slots = Slots(8)

    warm = slots.reserve(Lane.WARM, 100)

    assert warm == 6
    assert slots.reserve(Lane.WARM, 100) == 0
    assert slots.reserve(Lane.NOW, 100) == 2


def test_a_single_slot_serves_both_lanes() -> None:
    """R-WRM-2: the smallest worker still warms."""
    assert Slots(1).reserve(Lane.WARM, 10) == 1


async def test_a_freed_slot_wakes_those_who_wait() -> None:
    """R-CARD-3."""
    slots = Slots(1)
    slots.reserve(Lane.NOW, 1)
    waiting = [asyncio.create_task(slots.freed(20)) for _ in range(2)]
    await asyncio.wait(waiting, timeout=0)

    slots.give_back()

    await asyncio.gather(*waiting)
    assert slots.reserve(Lane.NOW, 1) == 1


async def test_waiting_for_a_slot_ends_by_itself() -> None:
    """SYSTEMD-3: so that the waiter can give a sign of life."""
    slots = Slots(1)
    slots.reserve(Lane.NOW, 1)

    await slots.freed(0.01)
