"""Connections that no well-meaning client makes, and one that Java's makes, at a real door."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.door import CONFIG, ENVIRONMENT, Door, door_on, logged
from tests.processes import Children
from tests.servers import ServerProcess, wait_until

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"

LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def open_door(
    valkey: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """One process for all tests: it lives through them."""
    started = Children()
    directory = tmp_path_factory.mktemp("connections")
    try:
        times = 'head_timeout = "3s"\nbody_timeout = "1s"'
        with door_on(valkey, started, directory, serve=times) as door:
            yield door
    finally:
        started.kill_all()


@pytest.fixture
def door(open_door: Door, valkey: ServerProcess) -> Door:
    valkey.renew()
    return open_door


def connected(door: Door) -> socket.socket:
    return socket.create_connection(("127.0.0.1", door.port), timeout=20)


def posted(id_: str, *headers: str) -> bytes:
    """A request that brings one event."""
    body = b'{"id": "%s", "entity": "a:1"}' % id_.encode()
    lines = [
        "POST /v1/events/shop HTTP/1.1",
        "Host: a",
        f"Authorization: Bearer {ENVIRONMENT['TOKEN']}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes, however it does it."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(2**16):
            received += piece
    return received


@pytest.mark.parametrize(
    "wish",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"),
        ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_body_is_read_whatever_protocol_its_sender_wishes_for(
    door: Door, valkey: ServerProcess, wish: tuple[str, ...], pieces: int
) -> None:
    """R-CARD-5: Java's client wishes for HTTP/2 with each request: Debezium Server's does."""
    sent = posted("1", *wish) + posted("2", *wish) + posted("3", "Connection: close")
    size = len(sent) // pieces + 1
    with connected(door) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), size):
            connection.sendall(sent[at : at + size])
        received = everything(connection)
    assert received.count(b'{"accepted":1,"duplicate":0') == 3, received
    assert [event["id"] for event in logged(valkey)] == ["1", "2", "3"]


def test_requests_far_ahead_of_their_answers_take_no_room(door: Door) -> None:
    """A thousand requests come in one piece, and each is a task."""
    with connected(door) as connection, contextlib.suppress(ConnectionError):
        for _ in range(100):
            connection.sendall(LIVEZ * 1_000)
        received = everything(connection)
        assert received.count(b"200 OK") < 1_000
    assert door.client.get("/livez").status_code == 200


def test_requests_a_little_ahead_are_answered_in_turn(
    door: Door, valkey: ServerProcess
) -> None:
    """R-CARD-5: what began to arrive after them changes none of their answers."""
    ids = [str(at) for at in range(8)]
    with connected(door) as connection:
        connection.sendall(b"".join(map(posted, ids)) + LIVEZ[:9])
        received = everything(connection)
    assert received.count(b'"accepted":1') == len(ids)
    assert received.endswith(LATE)
    assert [event["id"] for event in logged(valkey)] == ids


def test_whoever_never_reads_is_cut_off(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """Each answer that nobody takes would hold its connection for ever.

    Of a Unix socket, as no buffer of it grows.
    """
    file, path = tmp_path / "warmer.toml", tmp_path / "socket"
    file.write_text(CONFIG.format(url=valkey.url, serve='body_timeout = "1s"'))
    listen = ("--config", str(file), "--listen", f"unix:{path}")
    children.warmer("serve", *listen, env=ENVIRONMENT).wait_for_line("server_ready")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))

        def cut_off() -> bool:
            try:
                connection.sendall(LIVEZ)
            except ConnectionError:
                return True
            # It is answered by the same loop, and later than those that can be.
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(str(path))
                other.sendall(LIVEZ)
                assert other.recv(2**16).startswith(b"HTTP/1.1 200 ")
            return False

        wait_until(cut_off, within_s=25, what="the connection is closed")
