"""The play as a person at a terminal reads it: colours where there are any, else plain."""

from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from warmer.ops.demo.findings import (
    InvalidatedDuringLoad,
    OriginLoad,
    OutOfOrder,
    Promise,
    Scene,
    Stampede,
    States,
    Update,
)


class Teller:
    """Says what happens while it happens."""

    def __init__(self, out: IO[str]) -> None:
        # rich knows a terminal from a file, and NO_COLOR.
        self._console = Console(file=out, highlight=False, soft_wrap=True)
        self._told = 0

    def opening(self, title: str, *cast: str) -> None:
        """Say what is about to run."""
        self._console.print()
        self._console.print(Text(title, style="bold"))
        for line in cast:
            self._console.print(Text(f"  {line}", style="dim"))

    def working(self, what: str) -> Status:
        """Show that something is under way, where that can be shown."""
        return self._console.status(what)

    def scene(self, title: str, plot: str, scene: Scene) -> None:
        """Tell one scene: what was played, what was measured, which promises held."""
        self._told += 1
        self._console.print()
        self._console.print(Text(f"{self._told}. {title}", style="bold"))
        self._console.print(Text(f"   {plot}", style="dim"))
        for name, text in _measured(scene):
            self._console.print(Text(f"   {name:<16}", style="cyan"), text, sep="")
        for promise in scene.promises():
            self._console.print(_verdict(promise))

    def note(self, *lines: str) -> None:
        """Say something as it stands; commands can be copied out of it."""
        self._console.print()
        for line in lines:
            self._console.print(Text(line))

    def closing(self, broken: Iterable[Promise], seconds: float) -> None:
        """Say how it ended."""
        broken = list(broken)
        self._console.print()
        for promise in broken:
            self._console.print(
                Text(
                    f"Broken promise: {promise.sentence}, but {promise.found}.",
                    style="bold red",
                )
            )
        if not broken:
            self._console.print(
                Text(f"Every promise held. {seconds:.1f} s in all.", style="bold green")
            )


def _verdict(promise: Promise) -> Text:
    if promise.held:
        return Text(f"   ✓ {promise.sentence}", style="green")
    return Text(f"   ✗ {promise.sentence}: {promise.found}", style="bold red")


def _measured(scene: Scene) -> Iterable[tuple[str, str]]:
    match scene:
        case Stampede():
            yield (
                "origin queries",
                f"{scene.origin_loads} for {scene.distinct_keys} keys",
            )
            yield "readers", f"{_states(scene.states)} of {scene.callers:,} callers"
            yield "last answer", f"after {scene.last_answer_s:.2f} s"
        case Update():
            yield "origin queries", f"{scene.origin_loads} for {scene.keys} keys"
            yield "readers", _states(scene.states)
            yield "fresh", _seconds(scene.seconds_to_fresh, "the commit")
        case OutOfOrder():
            yield "refused", f"for {scene.rejected} keys"
            yield "origin queries", f"{scene.origin_loads}"
            yield "readers", _states(scene.states)
        case InvalidatedDuringLoad():
            yield "origin queries", f"{scene.origin_loads}"
            yield "readers", _states(scene.states)
            yield "fresh", _seconds(scene.seconds_to_fresh, "the load was let go")
        case OriginLoad():
            yield "queries", f"{scene.queries} in all"
            yield (
                "at once",
                f"{scene.max_concurrency} at most; the limit is {scene.limit}",
            )


def _states(states: States) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in states.items())


def _seconds(seconds: float | None, since: str) -> str:
    if seconds is None:
        return "not in time"
    return f"{seconds:.2f} s after {since}"
