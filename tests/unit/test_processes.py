"""The child processes the other tests stand on are watched and ended as asked."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import CHECKOUT, Children
from tests.servers import wait_until

SLEEPER = "import time; print('ready', flush=True); time.sleep(60)"
TICKER = """
import time
while True:
    print("tick", flush=True)
    time.sleep(0.01)
"""
PARENT = """
import time
from tests.processes import ChildProcess
print(ChildProcess(["sleep", "60"]).pid, flush=True)
time.sleep(60)
"""


def _state(pid: int) -> str:
    """The letter that ps shows: T for stopped, Z for dead and not yet reaped."""
    status = Path(f"/proc/{pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0]


def _gone(pid: int) -> bool:
    try:
        # A zombie is dead; who reaps it, and when, is not ours to say.
        return _state(pid) == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_line_is_found_and_its_groups_given(children: Children) -> None:
    child = children.run([sys.executable, "-c", "print('listening on 4711')"])

    assert child.wait_for_line(r"listening on (\d+)").group(1) == "4711"
    assert child.wait() == 0


async def test_a_line_can_be_awaited_while_the_loop_goes_on(children: Children) -> None:
    child = children.run([sys.executable, "-c", SLEEPER])

    await child.line("ready")
    child.terminate()
    assert await child.exited() == -signal.SIGTERM


def test_a_line_that_never_comes_fails_with_the_output(children: Children) -> None:
    child = children.run([sys.executable, "-c", "print('something else')"])

    with pytest.raises(AssertionError, match="something else"):
        child.wait_for_line("ready")


def test_a_paused_child_stands_still_until_it_resumes(children: Children) -> None:
    child = children.run([sys.executable, "-c", TICKER])
    child.wait_for_line("tick")

    child.pause()
    wait_until(lambda: _state(child.pid) == "T", what="the child stands still")
    child.resume()

    child.wait_for_line("tick", after=len(child.lines))


def test_kill_ends_the_childs_own_children_too(children: Children) -> None:
    child = children.run(["/bin/sh", "-c", "sleep 60 & echo started $!; wait"])
    grandchild = int(child.wait_for_line(r"started (\d+)").group(1))

    child.kill()

    assert child.exit_status == -signal.SIGKILL
    wait_until(lambda: _gone(grandchild), what="the grandchild is gone")


def test_a_child_does_not_outlive_a_killed_test_process() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()

    wait_until(lambda: _gone(child), what="the orphan is gone")
