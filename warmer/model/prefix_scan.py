"""What a scan of the cache server is asked to invalidate."""

from dataclasses import dataclass

from warmer.model.event import PurgeMode
from warmer.model.version import SourceVersion


@dataclass(frozen=True, slots=True)
class PrefixAsk:
    """All keys of the entities of `source` whose ids begin with `prefix`; "" = all of it.

    `mode` None = as each dataset says. `event_id`: who asked last.
    """

    source: str
    prefix: str
    mode: PurgeMode | None
    version: SourceVersion | None
    event_id: str


@dataclass(frozen=True, slots=True)
class TakenScan:
    """A scan that this process may go on with from `cursor`.

    A cursor is of use only with the server whose `run_id` is given; "" = none was told.
    """

    asks: tuple[PrefixAsk, ...]
    cursor: int
    run_id: str
