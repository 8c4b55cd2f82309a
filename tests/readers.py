"""A process with a hundred callers of one key: `python -m tests.readers URL`.

At each message on the channel `go` they all ask for product 42. Loads are counted where
every process can count them, on the server itself.
"""

import asyncio
import sys
from datetime import timedelta

from tests.clients import CLOCK, request_path
from tests.datasets import product
from warmer import NothingToServe

CALLERS = 100


async def main(url: str) -> None:
    async with request_path(url, product()) as path:

        async def load() -> int:
            loads = int(await path.redis.incr("origin:loads"))
            await CLOCK.sleep(0.2)
            return loads

        async def caller() -> bool:
            try:
                deadline = timedelta(seconds=20)
                await path.get(id=42, load=load, deadline=deadline)
            except NothingToServe:
                return False
            return True

        async with path.redis.pubsub() as go:
            await go.subscribe("go")
            await go.get_message(timeout=10)
            say("ready")
            async for message in go.listen():
                served = sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))
                turn = message["data"].decode()
                errors = CALLERS - served
                say(f"turn {turn}: {served} values {errors} errors")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
