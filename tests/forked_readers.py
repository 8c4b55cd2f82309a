"""Many reader processes from one interpreter: it imports once, then forks.

`python -m tests.forked_readers --config FILE --processes 20` obeys the commands of
`warmer.ops.demo.reader`; each process carries them out, and the reports come as one.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
from pathlib import Path
from typing import IO

import click

# Otherwise imported when an origin is opened, by each process for itself.
import warmer.origin.loader  # noqa: F401
from warmer.clock import SystemClock
from warmer.ops.demo.reader import obey_all


class Forked:
    """One reader process, and the two pipes to it."""

    def __init__(self, config: Path, siblings: "list[Forked]") -> None:
        their_input, our_output = os.pipe()
        our_input, their_output = os.pipe()
        if os.fork() == 0:
            # A write end kept open here would keep that sibling's input from ending.
            for sibling in siblings:
                sibling.close()
            os.close(our_output)
            os.close(our_input)
            os.dup2(their_input, 0)
            os.dup2(their_output, 1)
            asyncio.run(obey_all(config, SystemClock()))
            os._exit(0)
        os.close(their_input)
        os.close(their_output)
        self.output: IO[str] = os.fdopen(our_output, "w")
        self.input: IO[str] = os.fdopen(our_input)

    def close(self) -> None:
        self.output.close()
        self.input.close()

    def tell(self, line: str) -> None:
        self.output.write(line)
        self.output.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.forked_readers")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--processes", type=int, required=True)
    chosen = parser.parse_args()
    readers: list[Forked] = []
    for _ in range(chosen.processes):
        readers.append(Forked(chosen.config, readers))
    ready = {reader.input.readline() for reader in readers}
    click.echo("".join(ready), nl=False)
    for command in sys.stdin:
        for reader in readers:
            reader.tell(command)
        reports = [json.loads(reader.input.readline()) for reader in readers]
        click.echo(json.dumps([*itertools.chain.from_iterable(reports)]))


if __name__ == "__main__":
    main()
