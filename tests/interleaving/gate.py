"""Interleavings by seed: one actor at a time is let go to its next call.

Holds: the same seed gives the same trace. A script is atomic, so one call to the store or
the origin is the unit of interleaving; between two turns nobody else moves.
Does not hold: that all orders are seen. Many seeds are, and a failing one is printed.

Actors are plain coroutines. A store that never suspends is searched without an event
loop (`run_by_hand`), 20 times as fast; one that does suspend is awaited on a loop.
"""

import types
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """What an actor waits for before its next call."""

    step: str


@types.coroutine
def turn(step: str) -> Generator[Turn, None, None]:
    """Wait to be let go; `step` is what comes next, for the trace."""
    yield Turn(step)


@dataclass(slots=True)
class Actor:
    """A coroutine held before `step`. Of two actors, the heavier one moves more often."""

    name: str
    weight: float
    step: str
    body: Coroutine[Any, Any, None]


class Gate:
    """Holds every actor before its next call and lets one go, chosen by `random`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._held: list[Actor] = []
        self.trace: list[str] = []

    def add(
        self, name: str, body: Coroutine[Any, Any, None], *, weight: float = 1
    ) -> None:
        """Hold a new actor before its first call."""
        try:
            first = body.send(None)
        except StopIteration:
            return
        if not isinstance(first, Turn):
            raise TypeError(f"{name} awaits {first!r} before its first turn")
        self._held.append(Actor(name, weight, first.step, body))

    def __bool__(self) -> bool:
        """Return whether an actor is held."""
        return bool(self._held)

    async def step(self) -> None:
        """Let one actor do its next call."""
        actor = self._choose()
        self.trace.append(f"{actor.name}: {actor.step}")
        following = await _advance(actor.body)
        if following is None:
            self._held.remove(actor)
        else:
            actor.step = following.step

    def note(self, what: str) -> None:
        """Add what the last step led to, or what the adversary did, to the trace."""
        self.trace.append(f"    {what}")

    def close(self) -> None:
        """End the actors that are held still."""
        for actor in self._held:
            actor.body.close()
        self._held.clear()

    def _choose(self) -> Actor:
        held = self._held
        at = self._random.random() * sum(actor.weight for actor in held)
        for actor in held:
            at -= actor.weight
            if at < 0:
                return actor
        return held[-1]


@types.coroutine
def _advance(body: Coroutine[Any, Any, None]) -> Generator[Any, None, Turn | None]:
    """Let an actor run to its next turn; what else it awaits goes to the event loop."""
    try:
        awaited = body.send(None)
        while not isinstance(awaited, Turn):
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - it is the actor's
                awaited = body.throw(thrown)
            else:
                awaited = body.send(None)
    except StopIteration:
        return None
    return awaited


def run_by_hand(body: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine that never suspends returns, without an event loop."""
    try:
        body.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    body.close()
    raise RuntimeError("it suspends: await it on an event loop")
