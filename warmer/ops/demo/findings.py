"""What the play measured, and which promises that keeps. Values only; all of it is JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

States = Mapping[str, int]
"""How many reads were given which state."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A sentence, whether it held, and what was found."""

    sentence: str
    held: bool
    found: str


@dataclass(frozen=True, slots=True)
class Stampede:
    """Many callers, few keys, nothing cached."""

    callers: int
    processes: int
    distinct_keys: int
    origin_loads: int
    failed: int
    last_answer_s: float
    states: States

    def promises(self) -> Iterator[Promise]:
        """Yield what this scene is to show."""
        yield Promise(
            "each key was loaded once",
            self.origin_loads == self.distinct_keys,
            f"{self.origin_loads} origin queries for {self.distinct_keys} keys",
        )
        yield _nobody_failed(self.failed)


@dataclass(frozen=True, slots=True)
class Update:
    """One row changed; its change event went through the event log."""

    seconds_to_fresh: float | None
    stale_reads_after_fresh: int
    keys: int
    origin_loads: int
    failed: int
    states: States

    def promises(self) -> Iterator[Promise]:
        """Yield what this scene is to show."""
        yield Promise(
            "every reader got the new price",
            self.seconds_to_fresh is not None,
            _after(self.seconds_to_fresh),
        )
        yield Promise(
            "no reader got the old price once any had the new one",
            self.seconds_to_fresh is not None and not self.stale_reads_after_fresh,
            "none ever had it"
            if self.seconds_to_fresh is None
            else f"{self.stale_reads_after_fresh} did",
        )
        yield Promise(
            "each changed key was loaded once",
            self.origin_loads == self.keys,
            f"{self.origin_loads} origin queries for {self.keys} keys",
        )
        yield _nobody_failed(self.failed)


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """Two changes of one row; the older one's event arrived last."""

    rejected: int
    value_unchanged: bool
    origin_loads: int
    failed: int
    states: States

    def promises(self) -> Iterator[Promise]:
        """Yield what this scene is to show."""
        yield Promise(
            "the older event was refused",
            self.rejected >= 1,
            f"refused for {self.rejected} keys",
        )
        yield Promise(
            "it changed nothing that readers saw, and loaded nothing",
            self.value_unchanged and not self.origin_loads,
            f"{self.origin_loads} origin queries, value "
            + ("unchanged" if self.value_unchanged else "changed"),
        )
        yield _nobody_failed(self.failed)


@dataclass(frozen=True, slots=True)
class InvalidatedDuringLoad:
    """A row changed after a running load had read it."""

    final_version_is_newest: bool
    old_given_as_current: int
    seconds_to_fresh: float | None
    origin_loads: int
    failed: int
    states: States

    def promises(self) -> Iterator[Promise]:
        """Yield what this scene is to show."""
        yield Promise(
            "the newest value won",
            self.final_version_is_newest,
            "it did not" if not self.final_version_is_newest else "it did",
        )
        yield Promise(
            "nobody who asked after the change was given the old value as current",
            not self.old_given_as_current,
            f"{self.old_given_as_current} were",
        )
        yield _nobody_failed(self.failed)


@dataclass(frozen=True, slots=True)
class OriginLoad:
    """What the origin bore in all."""

    limit: int
    max_concurrency: int
    queries: int

    def promises(self) -> Iterator[Promise]:
        """Yield what the whole play is to show."""
        yield Promise(
            "the origin was kept within its limit",
            self.max_concurrency <= self.limit,
            f"{self.max_concurrency} of {self.limit} at once",
        )


Scene = Stampede | Update | OutOfOrder | InvalidatedDuringLoad | OriginLoad


@dataclass(frozen=True, slots=True)
class Findings:
    """The whole play."""

    stampede: Stampede
    update: Update
    out_of_order: OutOfOrder
    invalidated_during_load: InvalidatedDuringLoad
    origin: OriginLoad

    def broken(self) -> list[Promise]:
        """Return the promises that did not hold."""
        scenes: tuple[Scene, ...] = (
            self.stampede,
            self.update,
            self.out_of_order,
            self.invalidated_during_load,
            self.origin,
        )
        return [
            promise
            for scene in scenes
            for promise in scene.promises()
            if not promise.held
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all of it as one JSON object."""
        broken = [f"{promise.sentence}: {promise.found}" for promise in self.broken()]
        return {**asdict(self), "broken_promises": broken}


def _after(seconds: float | None) -> str:
    return "not in time" if seconds is None else f"after {seconds:.2f} s"


def _nobody_failed(failed: int) -> Promise:
    return Promise("every read was answered", not failed, f"{failed} were not")
