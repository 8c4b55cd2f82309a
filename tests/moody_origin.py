"""An origin that is well, then is not, then is again; and what a fleet makes of it.

    course = await course_of(MOODS["hangs"], server=..., children=..., ...)

Three request paths read two thousand keys that may be served stale for a minute, so that
what an origin's failure costs readers can be told from what it costs the origin.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.origin_server import OriginServer, Reply, json_answer
from tests.processes import Children
from tests.servers import ServerProcess
from warmer.clock import SystemClock

CLOCK = SystemClock()
LIMIT, FLOOR = 16, 2
KEYS, CLIENTS, READERS = 2_000, 3, 10
SLICE_S = 0.25

Mood = Callable[[int], Reply]
"""The answer to the request of this number."""

WELL = json_answer({"price": 1990}, delay_s=0.05)
MOODS: dict[str, Mood] = {
    "500_to_a_fifth": lambda number: WELL if number % 5 else Reply(status=500),
    "hangs": lambda _: Reply(hang=True),
    "takes_5_s": lambda _: replace(WELL, delay_s=5.0),
    "drops_mid_body": lambda _: replace(WELL, drop_at=5),
    "429_retry_after": lambda _: Reply(status=429, headers={"Retry-After": "3"}),
}

CONFIG = """
[cache]
url = "{url}"
timeout = "2s"

[origins.shop]
base_url = "{origin}"
limit = {limit}
limit_floor = {floor}
local_limit = 4
local_queue = 1000

[client]
deadline = "1s"

[datasets.product]
key = "product:v{{schema}}:{{id}}"
schema_version = 3
entities = ["shop-db/product:{{id}}"]
origin = "shop"
path = "/products/{{id}}"
fresh_for = "1s"
stale_for = "60s"
stale_if_error_for = "60s"
lease_for = "3s"
load_timeout = "1s"
"""


class MoodyOrigin(OriginServer):
    """Answers everything, by its mood."""

    def __init__(self) -> None:
        super().__init__()
        self.mood: Mood = lambda _: WELL
        self._numbers = itertools.count()

    @override
    def _reply(self, target: str) -> Reply:
        return self.mood(next(self._numbers))


@dataclass(slots=True)
class Course:
    """What happened: calls in each quarter of a second, of three times, and what readers got.

    `at_once`: the most at once in each quarter after it healed; `most`: in any.
    """

    well: list[int] = field(default_factory=list)
    ill: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    at_once: list[int] = field(default_factory=list)
    most: int = 0
    given: dict[str, int] = field(default_factory=dict)

    @property
    def usual(self) -> float:
        """Calls in a quarter of a second while it was well, at its end."""
        return sum(self.well[-8:]) / 8

    def recovered_s(self, share: float = 0.8) -> float:
        """Seconds after it healed until a quarter had that share of the usual calls."""
        for number, calls in enumerate(self.again):
            if calls >= share * self.usual:
                return number * SLICE_S
        return float("inf")


async def course_of(
    mood: Mood,
    *,
    server: ServerProcess,
    children: Children,
    directory: Path,
    well_s: float = 6.0,
    ill_s: float,
    again_s: float,
) -> Course:
    """Let a fleet read through an origin's illness."""
    course = Course()
    async with MoodyOrigin() as origin:
        config = directory / "warmer.toml"
        config.write_text(
            CONFIG.format(url=server.url, origin=origin.url, limit=LIMIT, floor=FLOOR)
        )
        clients = [
            children.python(
                "tests.flooding", str(config), str(KEYS), str(seed), str(READERS)
            )
            for seed in range(CLIENTS)
        ]
        for client in clients:
            await client.line("ready", within_s=60)
        await _watched(origin, course.well, well_s)
        origin.mood = mood
        most = await _watched(origin, course.ill, ill_s)
        origin.mood = lambda _: WELL
        course.at_once = await _watched(origin, course.again, again_s)
        course.most = max(*most, *course.at_once)
        for client in clients:
            client.terminate()
        for client in clients:
            said: dict[str, Any] = json.loads(
                (await client.line("^done (.*)", within_s=30))[1]
            )
            for word, count in said["given"].items():
                course.given[word] = course.given.get(word, 0) + count
    return course


async def _watched(origin: OriginServer, calls: list[int], for_s: float) -> list[int]:
    """Count calls in slices, and return the most at once in each."""
    most = []
    for _ in range(round(for_s / SLICE_S)):
        before, origin.max_running = len(origin.requests), origin.running
        await CLOCK.sleep(SLICE_S)
        calls.append(len(origin.requests) - before)
        most.append(origin.max_running)
    return most
