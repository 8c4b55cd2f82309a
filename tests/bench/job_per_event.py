"""The peer: an arq worker that purges one key in a job of its own for each event.

    python -m tests.bench.job_per_event CONFIG REDIS_URL

It runs the same invalidation as the event log's reader, and says when it is ready.
"""

import asyncio
import sys
from typing import Any

from arq.connections import ArqRedis
from arq.worker import Worker, func

from warmer.ingest.event_log import decode
from warmer.wiring import open_worker_parts

QUEUE = "arq:peer"
JOBS_AT_ONCE = 100


async def main(config: str, url: str) -> None:
    async with open_worker_parts(config) as parts:

        async def purge(ctx: dict[Any, Any], *args: Any, **_: Any) -> None:
            _ = ctx
            (stored,) = args
            await parts.invalidator.apply([decode(stored)])

        worker = Worker(
            functions=[func(purge, name="purge", keep_result=0)],
            redis_pool=ArqRedis.from_url(url),
            queue_name=QUEUE,
            max_jobs=JOBS_AT_ONCE,
            poll_delay=0.01,
            queue_read_limit=JOBS_AT_ONCE * 2,
            log_results=False,
        )
        print("peer_ready")
        await worker.async_run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
