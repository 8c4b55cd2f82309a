"""Dead letters on both servers: exact, bounded, read in order, dropped."""

from collections.abc import AsyncIterator

import pytest

from tests.control import control_of
from tests.servers import ServerProcess
from warmer.store import dead_letters
from warmer.store.control import ControlServer
from warmer.store.keyspace import DEAD_LETTERS, DEAD_LETTERS_SIZE


@pytest.fixture
async def control(server: ServerProcess) -> AsyncIterator[ControlServer]:
    async with control_of(server) as connected:
        yield connected


async def reasons(control: ControlServer) -> list[str]:
    return [letter.fields["reason"] for letter in await control.parked(count=10_000)]


async def test_a_letter_comes_back_as_it_was(control: ControlServer) -> None:
    """CDC-SHAPE-6: bytes that are no text too."""
    payload = bytes(range(256)) * 4
    letter: dead_letters.Letter = {
        "reason": 'ü"\\',
        "kind": "body",
        "payload": payload,
        "key": b"\xff\x00",
    }
    assert await control.park([letter]) == 0
    (stored,) = await control.parked()
    assert (stored.payload, stored.key) == (payload, b"\xff\x00")
    assert stored.fields["reason"] == 'ü"\\'
    assert await control.dead.one(stored.id) == stored
    assert await control.dead.one("1-1") is None


async def test_letters_are_read_in_order_from_either_end(
    control: ControlServer,
) -> None:
    await control.park([{"reason": str(number)} for number in range(250)])
    first, second = await control.parked(count=2)
    (after,) = await control.parked(count=1, after=first.id)
    newest = await control.dead.newest(count=2)
    older = await control.dead.newest(count=1, before=newest[1].id)
    assert (first.fields["reason"], after) == ("0", second)
    assert [each.fields["reason"] for each in (*newest, *older)] == [
        "249",
        "248",
        "247",
    ]
    assert await control.parked_count() == 250


async def test_beyond_their_number_the_oldest_go_and_are_counted(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-CARD-3: what was set aside does not grow for ever."""
    monkeypatch.setattr(dead_letters, "MAX_LETTERS", 100)
    gone = [
        await control.park([{"reason": str(begin + at)} for at in range(60)])
        for begin in (0, 60)
    ]
    assert gone == [0, 20]
    assert await reasons(control) == [str(number) for number in range(20, 120)]


async def test_beyond_their_bytes_the_oldest_go_and_the_newest_stays(
    control: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_BYTES", 10_000)
    for number in range(5):
        await control.park([{"reason": str(number), "payload": b"x" * 4_000}])
    assert await reasons(control) == ["3", "4"]
    await control.park([{"reason": "huge", "payload": b"x" * 50_000}])
    assert await reasons(control) == ["huge"]


async def test_what_is_dropped_takes_no_room(
    control: ControlServer, server: ServerProcess
) -> None:
    await control.park(
        [{"reason": str(number), "payload": b"x"} for number in range(3)]
    )
    one, two, three = await control.parked()
    assert await control.dead.drop([one.id, "1-1"]) == 1
    assert int(server.command("GET", DEAD_LETTERS_SIZE)) == 2 * 513
    assert await control.dead.drop([two.id, three.id]) == 2
    assert await control.dead.drop([]) == 0
    assert server.command("EXISTS", DEAD_LETTERS_SIZE) == 0
    assert server.command("XLEN", DEAD_LETTERS) == 0


async def test_a_letter_of_another_hand_or_release_is_read(
    control: ControlServer, server: ServerProcess
) -> None:
    server.command("XADD", DEAD_LETTERS, "*", "reason", "by hand", "odd", b"\xff")
    (letter,) = await control.parked()
    assert letter.fields == {"reason": "by hand", "odd": "\\xff"}
    assert (letter.payload, letter.key) == (b"", b"")
    assert await control.dead.drop([letter.id]) == 1
