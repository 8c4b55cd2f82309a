"""A real Debezium engine that delivers as Debezium Server's HTTP sink does.

Run by the interpreter of .venv-debezium: `engine.py PROPERTIES.json`. One record a request,
strictly in order, the value only; the key in a header; signed as Standard Webhooks; what is
not answered 2xx is sent again, five times a second apart, and then the engine stops. A null
value (a tombstone) is not sent.
"""

import base64
import hmac
import http.client
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

RETRIES = 5


class Sink(BasePythonChangeHandler):  # type: ignore[misc]
    """Posts records to the door, by the table they are of."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._host, self._port = settings["door"]
        self._paths = settings["paths"]
        self._key = base64.b64decode(os.environ["SECRET"].removeprefix("whsec_"))
        self._connection: http.client.HTTPConnection | None = None

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802 - the engine's name
        """Deliver a batch; the engine notes its offsets when this has returned."""
        for record in records:
            value = record.value()
            if value is None:
                continue
            table = str(record.destination()).rpartition(".")[2]
            path = self._paths.get(table, self._paths["*"])
            key = record.key()
            self._deliver(path, str(value).encode(), None if key is None else str(key))
            print("delivered", table, flush=True)

    def _deliver(self, path: str, body: bytes, key: str | None) -> None:
        id_ = f"msg_{uuid.uuid4()}"
        for _ in range(RETRIES + 1):
            if self._post(path, body, key, id_):
                return
            time.sleep(1)
        raise RuntimeError("the door took it not")

    def _post(self, path: str, body: bytes, key: str | None, id_: str) -> bool:
        at = str(int(time.time()))
        mac = hmac.digest(self._key, f"{id_}.{at}.".encode() + body, "sha256")
        headers = {
            "content-type": "application/json",
            "webhook-id": id_,
            "webhook-timestamp": at,
            "webhook-signature": "v1," + base64.b64encode(mac).decode(),
        }
        if key is not None:
            headers["X-DEBEZIUM-KEY"] = base64.b64encode(key.encode()).decode()
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._host, self._port)
            self._connection.request("POST", path, body, headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._connection = None
            return False
        return 200 <= answer.status < 300


def main() -> None:
    """Run the engine until it is killed."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    engine = DebeziumJsonEngine(
        properties=settings["properties"],
        handler=Sink(settings),
        jvm_opts=["-Xmx512m"],
    )
    print("engine_starting", flush=True)
    engine.run()
    print("engine_ended", flush=True)


if __name__ == "__main__":
    main()
