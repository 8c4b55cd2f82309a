"""Schedules on the contract in plain Python, or on a mutant of it."""

import copy
from types import ModuleType
from typing import Any

from tests.interleaving.gate import run_by_hand
from tests.interleaving.invariants import Peek, Stored
from tests.interleaving.scenarios import Play, search
from tests.interleaving.world import KEY
from tests.protocol.world import Now
from warmer.store import reference


class ReferenceServer:
    """The contract in plain Python; `module` = a mutant of it."""

    def __init__(self, now: Now, module: ModuleType = reference) -> None:
        self.store: reference.ReferenceStore = module.ReferenceStore(now)
        self._now = now
        self._stored = module.Stored
        self._replica = self._state()
        self._last: Stored | None = None

    async def peek(self) -> Peek:
        """Return what it holds for the key."""
        store, now = self.store, self._now.ms
        entry = store.entries.get(KEY.text)
        lease = store.leases.get(KEY.text)
        guard = store.guards.get(KEY.text)
        return Peek(
            self._parsed(entry.value) if entry and entry.expires_at > now else None,
            lease.value if lease and lease.expires_at > now else None,
            guard.value if guard and guard.expires_at > now else {},
        )

    async def lose(self, what: str) -> None:
        """Lose the entry, the lease or the guard."""
        store = self.store
        lost: dict[str, dict[str, Any]] = {
            "entry": store.entries,
            "lease": store.leases,
            "guard": store.guards,
        }
        lost[what].pop(KEY.text, None)

    async def take_plain_lease(self, token: str, lease_ms: int | None) -> bool:
        """SET NX PX, as a client does that knows nothing else; None = without PX."""
        now = self._now.ms
        held = self.store.leases.get(KEY.text)
        if held and held.expires_at > now:
            return False
        until = reference.NEVER if lease_ms is None else now + lease_ms
        self.store.leases[KEY.text] = self._stored(token, until)
        return True

    async def drop_plain_lease(self, token: str) -> None:
        """Compare and delete."""
        held = self.store.leases.get(KEY.text)
        if held and held.value == token:
            del self.store.leases[KEY.text]

    async def replicate(self) -> None:
        """Let its replica know all that it knows."""
        self._replica = self._state()

    async def fail_over(self) -> None:
        """Go back to what its replica knows."""
        store = self.store
        kept = copy.deepcopy(self._replica)
        store.entries, store.leases, store.guards = kept

    def _state(self) -> tuple[Any, Any, Any]:
        store = self.store
        return copy.deepcopy((store.entries, store.leases, store.guards))

    def _parsed(self, raw: bytes) -> Stored:
        if self._last is None or self._last.raw is not raw:
            self._last = Stored.of(raw)
        return self._last


def play_reference(seed: int, module: ModuleType = reference) -> Play:
    """Play one schedule on the reference, or on a mutant of it."""
    now = Now()
    return run_by_hand(search(seed, ReferenceServer(now, module), now))
