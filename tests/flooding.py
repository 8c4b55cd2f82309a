"""A request path that reads keys at random: `python -m tests.flooding CONFIG KEYS SEED PACE`.

PACE readers, each with one read at a time. On SIGTERM it says as JSON what they were given,
and how long those waited whose value was loaded for them.
"""

import asyncio
import json
import signal
import sys
from collections import Counter
from random import Random

from warmer.clock import SystemClock
from warmer.errors import NothingToServe
from warmer.model.answer import State
from warmer.wiring import open_client

CLOCK = SystemClock()


async def main(config: str, keys: int, seed: int, readers: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    random = Random(seed)
    given: Counter[str] = Counter()
    loaded_ms: list[int] = []

    async with open_client(config) as client:

        async def reader() -> None:
            while not stop.is_set():
                began = CLOCK.monotonic()
                try:
                    answer = await client.get("product", id=random.randrange(keys))
                except NothingToServe as exc:
                    given[f"nothing_{exc.reason}"] += 1
                else:
                    given[answer.state] += 1
                    if answer.state is State.LOADED:
                        loaded_ms.append(int((CLOCK.monotonic() - began) * 1000))
                await CLOCK.sleep(random.uniform(0.01, 0.05))

        say("ready")
        await asyncio.gather(*(reader() for _ in range(readers)))
    say("done " + json.dumps({"given": given, "loaded_ms": loaded_ms}))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
