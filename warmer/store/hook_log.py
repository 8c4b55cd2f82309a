"""Deploy hooks as they came, in order, for whoever acts on them.

Holds: a hook that was kept stays until `MAX_HOOKS` newer ones came; a delivery that comes
again within `WINDOW_MS` is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import orjson

from warmer.store.control_link import ControlLink
from warmer.store.keyspace import HOOKS, HOOKS_SEEN
from warmer.store.script import Script

MAX_HOOKS = 10_000
"""The server keeps up to one node (about 100) more."""
MAX_SEEN = 10_000
WINDOW_MS = 3 * 86_400_000
"""As long as a delivery can be sent again by hand."""

_KEEP = Script("hook_keep")


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook as it is stored; `headers` hold no secret."""

    id: str
    name: str
    body: bytes
    headers: Mapping[str, str]
    delivery_id: str


class HookLog:
    """The hooks on one control server."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    async def keep(
        self, name: str, *, body: bytes, headers: Mapping[str, str], delivery_id: str
    ) -> bool:
        """Keep a hook; return False if its delivery is known already."""
        identity = f"{name}#{delivery_id}".encode()
        fields = {
            "name": name,
            "body": body.decode(errors="backslashreplace"),
            "headers": orjson.dumps(headers).decode(),
            "delivery_id": delivery_id,
        }
        reply = await self._link.run(
            _KEEP.call(
                hooks=HOOKS,
                seen=HOOKS_SEEN,
                identity=blake2b(identity, digest_size=16).hexdigest()
                if delivery_id
                else "",
                fields=orjson.dumps(fields),
                window_ms=WINDOW_MS,
                max_hooks=MAX_HOOKS,
                max_seen=MAX_SEEN,
            )
        )
        return bool(reply[0] == b"KEPT")

    async def newest(self, *, count: int) -> Sequence[Hook]:
        """Return hooks, newest first."""
        entries = await self._link.ask(
            self._link.redis.xrevrange(HOOKS, "+", "-", count=count)
        )
        return [_hook(id_, fields) for id_, fields in entries]


def _hook(id_: bytes, fields: Mapping[bytes, bytes]) -> Hook:
    return Hook(
        id=id_.decode(),
        name=fields[b"name"].decode(),
        body=fields[b"body"],
        headers=orjson.loads(fields[b"headers"]),
        delivery_id=fields[b"delivery_id"].decode(),
    )
