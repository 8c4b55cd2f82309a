"""A real `warmer serve`, and a producer that knows the secrets."""

import base64
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.processes import ChildProcess, Children
from tests.servers import ServerProcess
from warmer.clock import SystemClock

CLOCK = SystemClock()
KEY = b"0123456789abcdef01234567"
ENVIRONMENT = {
    "WHSEC": "whsec_" + base64.b64encode(KEY).decode(),
    "TOKEN": "t0ken",
    "GITHUB": "It's a Secret to Everybody",
}

CONFIG = """
[cache]
url = "{url}"

[control]
url = "{url}"
timeout = "500ms"

[sources.shop-db]
format = "debezium"
signature = "standard-webhooks"
secrets = ["env:WHSEC"]
key = ["id"]

[sources.shop]
format = "plain"
signature = "bearer"
secrets = ["env:TOKEN"]

[sources.catalog]
format = "cloudevents"
cloudevents_source = "/shop/catalog"
signature = "bearer"
secrets = ["env:TOKEN"]

[sources.orders]
format = "cloudevents"
cloudevents_source = "/shop/orders"
signature = "standard-webhooks"
secrets = ["env:WHSEC"]

[sources.cdn]
format = "purge"
signature = "bearer"
secrets = ["env:TOKEN"]

[sources.inside]
format = "plain"

[hooks.deploys]
signature = "github"
secrets = ["env:GITHUB"]

[serve]
{serve}
"""


@dataclass(slots=True)
class Door:
    """The process, and a client of it."""

    process: ChildProcess
    port: int
    client: httpx.Client
    sent: int = field(default=0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def signed(self, body: bytes, *, id_: str | None = None) -> dict[str, str]:
        """Headers of the standard-webhooks scheme."""
        self.sent += 1
        id_ = id_ or f"msg_{self.sent}"
        at = str(CLOCK.now_ms() // 1000)
        mac = hmac.digest(KEY, f"{id_}.{at}.".encode() + body, "sha256")
        return {
            "webhook-id": id_,
            "webhook-timestamp": at,
            "webhook-signature": "v1," + base64.b64encode(mac).decode(),
        }

    def post(
        self, path: str, body: object, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """POST with the bearer token; a body that is no bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        bearer = {"authorization": f"Bearer {ENVIRONMENT['TOKEN']}"}
        return self.client.post(path, content=raw, headers=bearer | (headers or {}))

    def post_signed(
        self, path: str, body: object, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """POST with a signature over the bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(
            path, content=raw, headers=self.signed(raw) | (headers or {})
        )


@contextmanager
def door_on(
    server: ServerProcess, children: Children, directory: Path, *, serve: str = ""
) -> Iterator[Door]:
    """Give a door whose control server is `server`; `serve` are lines of that table."""
    file = directory / "warmer.toml"
    file.write_text(CONFIG.format(url=server.url, serve=serve))
    process = children.warmer(
        "serve",
        "--config",
        str(file),
        "--listen",
        "127.0.0.1:0",
        env=ENVIRONMENT,
    )
    found = process.wait_for_line(r"server_ready listen=\S+:(\d+)", within_s=20)
    port = int(found[1])
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        yield Door(process, port, client)


def counts(answer: httpx.Response) -> dict[str, int]:
    """The counts of an answer that everything is kept."""
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return {name: number for name, number in found.items() if number}


def logged(server: ServerProcess) -> list[dict[str, Any]]:
    """The events in the log, in order."""
    entries = server.command("XRANGE", "warmer:events", "-", "+")
    return [json.loads(fields[b"event"]) for _, fields in entries]


def letters(server: ServerProcess) -> list[dict[bytes, bytes]]:
    """The dead letters, in order."""
    return [fields for _, fields in server.command("XRANGE", "warmer:dead", "-", "+")]
