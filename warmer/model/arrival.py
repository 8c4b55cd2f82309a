"""An event on its way into the event log, with what tells its place among others."""

from dataclasses import dataclass
from typing import NamedTuple

from warmer.model.event import Event


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event, and what its source says about it.

    `lineage` names within what its version compares (one binlog, one server): a version
    of another lineage says nothing. "" where the source has none.
    `position` is where it stands in the commit order of its whole source, as hex digits
    of fixed width; "" where only its entity's own order is known, or none.
    `identity` tells a repetition of this very event; "" where nothing does.
    """

    event: Event
    lineage: str = ""
    position: str = ""
    identity: str = ""

    @property
    def ordered_by(self) -> str:
        """What `digits` is ordered by: "" for the whole source, else the entity."""
        if self.position or not self.event.entities:
            return ""
        return self.event.entities[0]

    @property
    def digits(self) -> str:
        """Hex digits to compare with those of the same `ordered_by`; "" for none.

        An entity's begin with the epoch that its event was given by the producer.
        """
        version = self.event.version
        if self.position or version is None:
            return self.position
        return f"{version.epoch:08x}{version.digits}"


class Record(NamedTuple):
    """An arrival as the event log takes it: the event as it is stored, and its place.

    A tuple: the door makes two for each event, and a frozen dataclass costs more.
    """

    event: bytes
    lineage: str
    entity: str
    ordered_by: str
    digits: str
    occurred_at: int | None
    identity: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of records: which were new, and what their order told of the source.

    `regressed` counts versions that went back although their commits are newer;
    `regression` is True once, when enough entities did so. `epoch` is the one that was
    opened, None for none. `log_id` is the last one's in the log, "" if it was kept back.
    """

    new: tuple[bool, ...]
    regressed: int = 0
    regression: bool = False
    epoch: int | None = None
    log_id: str = ""
