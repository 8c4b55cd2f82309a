"""What happened, counted: nothing is dropped without a counter and a reason.

Names and label values are of bounded variety: a dataset, an origin, a source, a reason;
never a key, a token or a text from outside.
"""

from collections import Counter
from typing import Protocol


class Signals(Protocol):
    """Where counts go. Cheap enough for the read path."""

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add `by` to the counter `name` with these label values, in fixed order."""
        ...


class Counters:
    """Counts kept in this process."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add `by` to the counter `name` with these label values."""
        self.counts[(name, *labels)] += by

    def total(self, name: str, *labels: str) -> int:
        """Return the sum of all counts that begin with `name` and these labels."""
        prefix = (name, *labels)
        return sum(
            count
            for labelled, count in self.counts.items()
            if labelled[: len(prefix)] == prefix
        )
