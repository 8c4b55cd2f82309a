"""Mutated requests at a real door: no error, nothing lost, memory flat."""

import gzip
import itertools
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.door import ENVIRONMENT
from tests.processes import ChildProcess, Children
from tests.servers import ServerProcess
from tests.unit.formats.test_fuzz import ODD, SEEDS, mutated
from warmer.ingest.event_log import decode
from warmer.ingest.formats import FORMATS
from warmer.store.keyspace import source_state

SOURCE = """
[sources.{name}]
format = "{name}"
signature = "bearer"
secrets = ["env:TOKEN"]
key = ["id"]
"""
BEARER = {"authorization": f"Bearer {ENVIRONMENT['TOKEN']}"}
HEADERS: list[tuple[str, str]] = [
    ("content-type", "application/json"),
    ("content-type", "application/cloudevents+json"),
    ("content-type", "application/cloudevents-batch+json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-encoding", "gzip"),
    ("content-encoding", "identity"),
    ("ce-specversion", "1.0"),
    ("ce-id", "1"),
    ("ce-source", "/a"),
    ("ce-type", "t"),
    ("ce-subject", "%FF"),
    ("ce-subject", "product:7"),
    ("webhook-id", "a" * 300),
    ("x-debezium-id", "?"),
    ("surrogate-key", "a b"),
    ("fastly-soft-purge", "1"),
    ("accept", "text/html"),
]
WISHES = ("h2c", "websocket", "TLS/1.0")


class Fuzzed:
    """The door, and what is counted around it."""

    def __init__(self, server: ServerProcess, process: ChildProcess, port: int) -> None:
        self.server = server
        self.process = process
        self.port = port
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def kept(self) -> tuple[int, int]:
        """How many events the log has, openings of epochs left out, and dead letters."""
        openings = sum(
            int(epoch)
            for name in FORMATS
            if (epoch := self.server.command("HGET", source_state(name), "epoch"))
        )
        return (
            self.server.command("XLEN", "warmer:events") - openings,
            self.server.command("XLEN", "warmer:dead"),
        )

    def resident_kb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


@pytest.fixture(scope="module")
def fuzzed(
    valkey: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fuzzed]:
    valkey.renew()
    file = tmp_path_factory.mktemp("fuzz") / "warmer.toml"
    sources = "".join(SOURCE.format(name=name) for name in FORMATS)
    file.write_text(f'[cache]\nurl = "{valkey.url}"\n{sources}')
    children = Children()
    try:
        process = children.warmer(
            "serve", "-c", str(file), "--listen", "127.0.0.1:0", env=ENVIRONMENT
        )
        found = process.wait_for_line(r"server_ready listen=\S+:(\d+)", within_s=20)
        fuzzed = Fuzzed(valkey, process, int(found[1]))
        with fuzzed.client:
            yield fuzzed
    finally:
        children.kill_all()


def body_of(name: str, rng: random.Random) -> bytes:
    """A body that was one of that format's, and is something else now."""
    values = [mutated(rng.choice(SEEDS[name]), rng) for _ in range(rng.randint(1, 4))]
    value: Any = values if rng.random() < 0.5 else values[0]
    if rng.random() < 0.1:
        value = rng.choice(ODD)
    try:
        body = json.dumps(value).encode()
    except (ValueError, RecursionError):
        body = b"[" * 3_000
    if rng.random() < 0.3:
        at = rng.randrange(len(body) + 1)
        junk = rng.choice((b"\x00", b"\xff", b"\\ud800", b'"', b"1e999", b"}", b"\n"))
        body = body[:at] + junk + body[at + rng.randrange(3) :]
    return body


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_whatever_a_proven_sender_sends_is_counted_and_kept(
    fuzzed: Fuzzed, seed: int
) -> None:
    """R-CARD-5: every message is in the log, a dead letter, ignored, or a repetition."""
    rng = random.Random(seed)
    name = rng.choice(FORMATS)
    headers = dict(rng.sample(HEADERS, rng.randint(0, 4)))
    before = fuzzed.kept()

    answer = fuzzed.client.post(
        f"/v1/events/{name}", content=body_of(name, rng), headers=BEARER | headers
    )

    assert answer.status_code == 202, (answer.text, fuzzed.process.output)
    told = answer.json()
    assert sum(told.values()) >= 1 or answer.request.content.strip().startswith(b"[]")
    log, dead = fuzzed.kept()
    assert (log - before[0], dead - before[1]) == (told["accepted"], told["dead"])


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_however_requests_are_framed_each_is_answered_for_what_it_brought(
    fuzzed: Fuzzed, seed: int
) -> None:
    """R-CARD-5: several on one connection, cut anywhere, compressed, wished elsewhere."""
    rng = random.Random(seed)
    sent = [framed(rng) for _ in range(rng.randint(1, 8))]
    before = fuzzed.kept()

    stream = (
        b"".join(sent) + b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", fuzzed.port), timeout=20) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cuts = sorted(rng.randrange(len(stream)) for _ in range(rng.randrange(5)))
        for start, end in itertools.pairwise([0, *cuts, len(stream)]):
            connection.sendall(stream[start:end])
        received = b"".join(iter(lambda: connection.recv(2**16), b""))

    told = [
        json.loads(found) for found in re.findall(rb'\{"accepted":[^}]*\}', received)
    ]
    assert len(told) == len(sent), (received, fuzzed.process.output)
    assert received.endswith(b'{"alive":true}')
    log, dead = fuzzed.kept()
    assert (log - before[0], dead - before[1]) == (
        sum(each["accepted"] for each in told),
        sum(each["dead"] for each in told),
    )


def framed(rng: random.Random) -> bytes:
    """A request of a proven sender as some client or proxy may send it."""
    name = rng.choice(FORMATS)
    path = "/v1/events" if rng.random() < 0.3 else f"/v1/events/{name}"
    body = body_of("cloudevents" if path == "/v1/events" else name, rng)
    headers = [*BEARER.items(), *rng.sample(HEADERS[6:], rng.randint(0, 4))]
    if rng.random() < 0.3:
        half = rng.randrange(len(body) + 1)
        body = gzip.compress(body[:half]) + gzip.compress(body[half:])
        body = body[: len(body) - rng.choice((0, 0, 0, 1))]
        headers.append(("content-encoding", "gzip"))
    if rng.random() < 0.2:
        headers += [("Connection", "Upgrade"), ("Upgrade", rng.choice(WISHES))]
    if rng.random() < 0.3:
        headers.append(("Transfer-Encoding", "chunked"))
        size = rng.randint(1, len(body) + 1)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        body = b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        body += b"0\r\n" + rng.choice((b"", b"Authorization: none\r\n")) + b"\r\n"
    else:
        headers.append(("Content-Length", str(len(body))))
    lines = [f"POST {path} HTTP/1.1", "Host: a", *(f"{k}: {v}" for k, v in headers)]
    return "\r\n".join([*lines, "", ""]).encode() + body


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"]),
    path=st.sampled_from(
        ["/v1/events", "/v1/events/plain", "/v1/purge", "/v1/hooks/x", "/service/purge/purge/a",
         "/service/purge/purge_all", "/service/plain/purge", "/livez", "/readyz", "/", "//",
         "/v1/events/%00", "/v1/events/../livez", "/service/purge/purge/%2F%2e%2e", "/v1/events/é"]
    ),
    headers=st.lists(st.sampled_from(HEADERS), max_size=4),
    body=st.binary(max_size=100),
    proven=st.booleans(),
)  # fmt: skip
def test_no_request_is_answered_with_an_error_of_ours(
    fuzzed: Fuzzed,
    method: str,
    path: str,
    headers: list[tuple[str, str]],
    body: bytes,
    *,
    proven: bool,
) -> None:
    """And an unproven one leaves nothing."""
    before = fuzzed.kept()
    answer = fuzzed.client.request(
        method, path, content=body, headers=dict(headers) | (BEARER if proven else {})
    )
    assert answer.status_code < 500, (answer.text, fuzzed.process.output)
    if not proven:
        assert fuzzed.kept() == before


def test_what_was_kept_can_be_read_and_memory_is_flat(fuzzed: Fuzzed) -> None:
    """Every entry of the log is an event; a thousand more requests take no room."""
    for _, fields in fuzzed.server.command("XRANGE", "warmer:events", "-", "+"):
        decode(fields[b"event"])

    def send(count: int) -> None:
        rng = random.Random(count)
        for _ in range(count):
            name = rng.choice(FORMATS)
            fuzzed.client.post(
                f"/v1/events/{name}", content=body_of(name, rng), headers=BEARER
            )

    send(300)
    warm = fuzzed.resident_kb()
    send(700)
    assert fuzzed.resident_kb() - warm < 16_384
