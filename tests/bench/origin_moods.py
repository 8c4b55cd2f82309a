"""What readers and an origin go through when it is ill: a table.

    make bench-origin-moods

Six seconds well, eight ill, then well again; a limit of 16 at once, an origin of 50 ms, three
request paths whose keys are fresh for a second and may be stale for a minute.
"""

import asyncio
import tempfile
from pathlib import Path

from tests.moody_origin import MOODS, SLICE_S, course_of
from tests.origin_server import Reply
from tests.processes import Children
from tests.servers import ValkeyProcess, running

MOODS_HERE = MOODS | {
    "429_retry_after": lambda _: Reply(status=429, headers={"Retry-After": "30"})
}


async def main() -> None:
    for name, mood in MOODS_HERE.items():
        children = Children()
        with running(ValkeyProcess()) as server, tempfile.TemporaryDirectory() as place:
            try:
                course = await course_of(
                    mood,
                    server=server,
                    children=children,
                    directory=Path(place),
                    ill_s=8.0,
                    again_s=40.0 if "429" in name else 20.0,
                )
            finally:
                children.kill_all()
        per_s = sum(course.ill) / len(course.ill) / SLICE_S
        print(f"== {name}: readers {course.given}")
        print(
            f"== calls/s well {course.usual / SLICE_S:.0f} ill {per_s:.1f}, most at once "
            f"{course.most}, recovered after {course.recovered_s()} s"
        )
        print(f"== ill {course.ill}")
        print(f"== after {course.again}")


if __name__ == "__main__":
    asyncio.run(main())
