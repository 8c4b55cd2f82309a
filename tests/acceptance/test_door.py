"""`warmer serve` as its callers meet it: a real process, a real control server."""

import contextlib
import gzip
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.door import ENVIRONMENT, Door, counts, door_on, letters, logged
from tests.processes import WARMER, Children
from tests.servers import ServerProcess, Servers, wait_until
from warmer.store.keyspace import HOOKS

CHANGE: dict[str, Any] = {
    "before": None,
    "after": {"id": 7, "sku": "A-1"},
    "source": {
        "version": "3.6.3.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_790_000_000_123,
        "db": "shop",
        "schema": "public",
        "table": "product",
        "lsn": 500,
    },
    "op": "u",
}
EVENT = {
    "specversion": "1.0",
    "id": "01J",
    "source": "/shop/catalog",
    "type": "shop.product.updated",
    "subject": "product:7",
    "sequence": "4711",
}


@pytest.fixture(scope="module")
def open_door(
    valkey: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    """One process for the tests that change nothing of it."""
    started = Children()
    try:
        valkey.renew()
        with door_on(valkey, started, tmp_path_factory.mktemp("door")) as door:
            yield door
    finally:
        started.kill_all()


@pytest.fixture
def door(open_door: Door, valkey: ServerProcess) -> Door:
    valkey.renew()
    return open_door


# --- events ---------------------------------------------------------------------------


def test_a_change_is_in_the_log_when_it_is_answered(
    door: Door, valkey: ServerProcess
) -> None:
    """R-CARD-5: a producer's own message, as it sends it."""
    assert counts(door.post_signed("/v1/events/shop-db", CHANGE)) == {"accepted": 1}
    (event,) = logged(valkey)
    assert event["entities"] == ["product:7"]
    assert event["version"] == {"epoch": 0, "parts": ["500"]}
    assert event["occurred_at"] == 1_790_000_000_123


def test_an_array_under_an_unchanged_content_type_is_its_messages(
    door: Door, valkey: ServerProcess
) -> None:
    body = [CHANGE, CHANGE | {"op": "m"}, {"op": "x"}]
    json_type = {"content-type": "application/json"}
    answer = door.post_signed("/v1/events/shop-db", body, json_type)
    assert counts(answer) == {"accepted": 1, "ignored": 1, "dead": 1}
    (letter,) = letters(valkey)
    assert letter[b"source"] == b"shop-db"
    assert b"op: 'x'" in letter[b"reason"]
    assert json.loads(letter[b"payload"]) == {"op": "x"}


def test_a_delivery_that_comes_again_is_taken_once(
    door: Door, valkey: ServerProcess
) -> None:
    """R-INV-1: and answered as the first was."""
    body = json.dumps([CHANGE, CHANGE]).encode()
    headers = door.signed(body, id_="msg_again")
    for expected in ({"accepted": 2}, {"duplicate": 2}):
        answer = door.client.post("/v1/events/shop-db", content=body, headers=headers)
        assert counts(answer) == expected
    assert len(logged(valkey)) == 2


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "application/cloudevents+json"}, EVENT),
        ({"content-type": "application/cloudevents-batch+json"}, [EVENT]),
        ({"content-type": "application/json"}, [EVENT]),
        (
            {"content-type": "application/json"}
            | {f"ce-{name}": value for name, value in EVENT.items()},
            {"price": 5},
        ),
    ],
    ids=["structured", "batch", "array", "binary"],
)
def test_a_cloudevent_comes_in_any_of_its_modes(
    door: Door, valkey: ServerProcess, headers: dict[str, str], body: object
) -> None:
    assert counts(door.post("/v1/events", body, headers)) == {"accepted": 1}
    (event,) = logged(valkey)
    assert event["source"] == "catalog"
    assert event["entities"] == ["product:7"]
    assert counts(door.post("/v1/events", body, headers)) == {"duplicate": 1}


def test_an_events_attributes_are_read_whatever_proxies_add(door: Door) -> None:
    """R-CARD-5: tracing's baggage alone may have 8 KiB, and stands before them."""
    headers = {"baggage": "a" * 8_192, "tracestate": "b" * 512}
    headers |= {f"ce-{name}": EVENT[name] for name in EVENT}
    headers["content-type"] = "application/json"
    answer = door.post("/v1/events", b"{}", headers)
    assert counts(answer) == {"accepted": 1}


def test_an_empty_batch_is_taken(door: Door) -> None:
    batch = {"content-type": "application/cloudevents-batch+json"}
    assert counts(door.post("/v1/events", [], batch)) == {}


def test_a_sender_speaks_for_its_own_sources_only(
    door: Door, valkey: ServerProcess
) -> None:
    """The secret of one is not that of another; the event is kept, not refused."""
    foreign = EVENT | {"source": "/shop/orders", "id": "2"}
    answer = door.post("/v1/events", [EVENT, foreign, EVENT | {"source": 7}])
    assert counts(answer) == {"accepted": 1, "dead": 2}
    assert [event["source"] for event in logged(valkey)] == ["catalog"]
    own = door.post_signed("/v1/events", foreign)
    assert counts(own) == {"accepted": 1}


def test_a_sender_of_cloudevents_may_ask_first(door: Door) -> None:
    asked = {"webhook-request-origin": "eventemitter.example.com"}
    answer = door.client.options("/v1/events", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["webhook-allowed-origin"] == "eventemitter.example.com"
    assert answer.headers["webhook-allowed-rate"] == "*"


# --- purges ---------------------------------------------------------------------------

FASTLY = {"fastly-key": ENVIRONMENT["TOKEN"]}


def test_one_surrogate_key_is_purged_as_its_callers_do(
    door: Door, valkey: ServerProcess
) -> None:
    soft = FASTLY | {"fastly-soft-purge": "1"}
    answer = door.client.post("/service/cdn/purge/product:7", headers=soft)
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert answer.json()["id"]
    door.client.post("/service/cdn/purge/a%2Fb%20c", headers=FASTLY)
    first, second = logged(valkey)
    assert (first["entities"], first["mode"]) == (["product:7"], "soft")
    assert second["entities"] == ["a/b%20c"]
    assert "mode" not in second


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"surrogate-key": "a b  c"}, b""),
        ({}, b'{"surrogate_keys": ["a", "b", "c"]}'),
    ],
    ids=["header", "body"],
)
def test_several_surrogate_keys_are_purged_at_once(
    door: Door, valkey: ServerProcess, headers: dict[str, str], body: bytes
) -> None:
    answer = door.client.post(
        "/service/cdn/purge", content=body, headers=FASTLY | headers
    )
    assert answer.status_code == 200
    assert list(answer.json()) == ["a", "b", "c"]
    assert logged(valkey)[0]["entities"] == ["a", "b", "c"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"surrogate_keys": [7]}', b"[]"])
def test_a_purge_of_nothing_is_the_callers_mistake(door: Door, body: bytes) -> None:
    answer = door.client.post("/service/cdn/purge", content=body, headers=FASTLY)
    assert answer.status_code == 400
    many = FASTLY | {"surrogate-key": " ".join(map(str, range(257)))}
    assert door.client.post("/service/cdn/purge", headers=many).status_code == 400


def test_everything_of_a_source_can_be_purged(
    door: Door, valkey: ServerProcess
) -> None:
    answer = door.client.post("/service/cdn/purge_all", headers=FASTLY)
    assert answer.json() == {"status": "ok"}
    assert logged(valkey)[0]["prefixes"] == [""]


def test_a_purge_is_plain_json_too(door: Door, valkey: ServerProcess) -> None:
    body = {"surrogate_keys": ["a"], "source": "cdn", "soft": True}
    assert counts(door.post("/v1/purge", body)) == {"accepted": 1}
    assert counts(door.post("/v1/purge", {"tags": ["a"]})) == {"accepted": 1}
    unknown: object
    for unknown in ({"tags": ["a"], "source": "shop"}, [], {"files": ["x"]}):
        assert counts(door.post("/v1/purge", unknown)) == {"dead": 1}
    assert len(logged(valkey)) == 2


# --- hooks ----------------------------------------------------------------------------


def test_a_deploy_hook_is_kept_for_those_who_act_on_it(
    door: Door, valkey: ServerProcess
) -> None:
    """R-CARD-5."""
    body = b'{"deployment_status": {"state": "success"}}'
    form = urlencode({"payload": body.decode()}).encode()
    for number, (raw, type_) in enumerate(
        [(body, "application/json"), (form, "application/x-www-form-urlencoded")]
    ):
        mac = hmac.digest(ENVIRONMENT["GITHUB"].encode(), raw, "sha256").hex()
        headers = {
            "x-hub-signature-256": f"sha256={mac}",
            "x-github-delivery": f"guid-{number}",
            "x-github-event": "deployment_status",
            "content-type": type_,
        }
        for expected in ({"accepted": 1}, {"duplicate": 1}):
            answer = door.client.post("/v1/hooks/deploys", content=raw, headers=headers)
            assert counts(answer) == expected
    kept = [fields for _, fields in valkey.command("XRANGE", HOOKS, "-", "+")]
    assert [fields[b"body"] for fields in kept] == [body, body]
    assert json.loads(kept[0][b"headers"])["x-github-event"] == "deployment_status"
    assert b"x-hub-signature-256" not in kept[0][b"headers"]


# --- who is not let in, and what is not understood -------------------------------------


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/events/shop-db", {}),
        ("/v1/events/shop-db", {"webhook-id": "a", "webhook-timestamp": "1"}),
        ("/v1/events/shop", {"authorization": "Bearer wrong"}),
        ("/v1/events", {"authorization": "Bearer wrong"}),
        ("/v1/purge", {}),
        ("/service/cdn/purge/a", {"fastly-key": "wrong"}),
        ("/service/cdn/purge_all", {}),
        ("/v1/hooks/deploys", {"x-hub-signature-256": "sha256=" + "0" * 64}),
    ],
)
def test_whoever_is_not_proven_leaves_nothing(
    door: Door, valkey: ServerProcess, path: str, headers: dict[str, str]
) -> None:
    """WEBHOOK-4."""
    answer = door.client.post(path, content=b'{"entity":"a:1"}', headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 401
    assert valkey.command("DBSIZE") == 0


@pytest.mark.parametrize(
    "path",
    [
        "/v1/events/none",
        "/v1/events/shop/",
        "/v1/events/inside",
        "/service/shop/purge/a",
        "/v1/hooks/none",
        "/v1",
        "/",
    ],
)
def test_what_is_not_there_is_not_found(door: Door, path: str) -> None:
    """A source without a signature is reached by nobody."""
    answer = door.post(path, {"entity": "a:1"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "body",
    [b"", b"garbage", b'{"a":', b"\xff\xfe", b"\x00", b"[1,]", b'{"entity":"\\ud800"}'],
)
def test_a_proven_senders_garbage_is_kept_and_answered(
    door: Door, valkey: ServerProcess, body: bytes
) -> None:
    """A sender that is refused stops for ever, and what comes after it is lost."""
    assert counts(door.post("/v1/events/shop", body)) == {"dead": 1}
    (letter,) = letters(valkey)
    assert (letter[b"kind"], letter[b"payload"]) == (b"body", body)
    assert b"t0ken" not in b"".join(letter.values())


def test_messages_nested_too_deeply_are_kept_whole(
    door: Door, valkey: ServerProcess
) -> None:
    deep = b'{"entity":' * 400 + b"1" + b"}" * 400
    body = b'[{"entity":"a:1"},' + deep + b"]"
    assert counts(door.post("/v1/events/shop", body)) == {"dead": 1}
    assert letters(valkey)[0][b"payload"] == body
    assert counts(door.post("/v1/events/shop", b"[" * 5_000)) == {"dead": 1}


def test_a_compressed_body_is_signed_as_it_is_sent(
    door: Door, valkey: ServerProcess
) -> None:
    body = gzip.compress(json.dumps(CHANGE).encode())
    answer = door.post_signed("/v1/events/shop-db", body, {"content-encoding": "gzip"})
    assert counts(answer) == {"accepted": 1}
    for wrong, encoding in ((body[:-9], "gzip"), (b"x", "gzip"), (body, "br")):
        answer = door.post_signed(
            "/v1/events/shop-db", wrong, {"content-encoding": encoding}
        )
        assert counts(answer) == {"dead": 1}
    assert len(logged(valkey)) == 1


def test_a_bomb_is_not_inflated(door: Door) -> None:
    """HTTPBODY-1: memory stays where it is."""
    bomb = gzip.compress(b"\0" * 2**28)
    door.post("/v1/events/shop", b"{}")
    before = _resident_kb(door.process.pid)
    for _ in range(3):
        answer = door.post("/v1/events/shop", bomb, {"content-encoding": "gzip"})
        assert counts(answer) == {"dead": 1}
    assert _resident_kb(door.process.pid) - before < 32_768


def test_a_body_past_its_bound_is_told_so(door: Door, valkey: ServerProcess) -> None:
    large = b'{"entity":"' + b"a" * 2**20 + b'"}'
    assert door.post("/v1/events/shop", large).status_code == 413
    chunks = (b"x" * 65_536 for _ in range(20))
    bearer = {"authorization": "Bearer t0ken"}
    answer = door.client.post("/v1/events/shop", content=chunks, headers=bearer)
    assert answer.status_code == 413
    assert valkey.command("DBSIZE") == 0
    assert counts(door.post("/v1/events/shop", {"entity": "a:1"})) == {"accepted": 1}


def test_bodies_that_nobody_has_proven_take_only_so_much_memory(door: Door) -> None:
    """A few hundred of them would end the process; small ones come in meanwhile."""
    door.post("/v1/events/shop", {"entity": "a:1"})
    before = _resident_kb(door.process.pid)
    head = b"POST /v1/events/shop HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    with contextlib.ExitStack() as stalled:
        connections = [stalled.enter_context(_connected(door)) for _ in range(200)]
        for connection in connections:
            connection.sendall(head % 2**20 + b"a" * (2**20 - 1))
        assert connections[-1].recv(4_096).startswith(b"HTTP/1.1 503 ")
        assert counts(door.post("/v1/events/shop", {"entity": "a:2"})) == {
            "accepted": 1
        }
        assert _resident_kb(door.process.pid) - before < 192 * 2**10
    wait_until(
        lambda: door.post("/v1/events/shop", b" " * 2**20).status_code == 202,
        what="large bodies are taken again",
    )


def test_another_method_is_not_allowed(door: Door) -> None:
    answer = door.client.get("/v1/purge")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"


# --- health ---------------------------------------------------------------------------


def test_it_lives_and_is_ready(door: Door) -> None:
    assert door.client.get("/livez").json() == {"alive": True}
    assert door.client.get("/readyz").json() == {"ready": True, "reasons": []}


# --- what happens to the process ---------------------------------------------------------


def test_while_the_control_server_is_away_senders_come_again(
    start_server: Servers, children: Children, tmp_path: Path
) -> None:
    """LOST-INVAL-1: never 2xx for what is not kept, and no restart is needed."""
    server = start_server("valkey9", appendonly=True)
    with door_on(server, children, tmp_path, serve='retry_after = "7s"') as door:
        assert counts(door.post("/v1/events/shop", {"entity": "a:1"})) == {
            "accepted": 1
        }
        server.kill()
        for body in (b'{"entity":"a:2"}', b"garbage"):
            answer = door.post("/v1/events/shop", body)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "7"
        assert door.client.get("/livez").status_code == 200
        ready = door.client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ["control_server_away"]
        server.restart()
        wait_until(
            lambda: door.post("/v1/events/shop", {"entity": "a:3"}).status_code == 202,
            within_s=20,
            what="events are taken again",
        )
        assert door.client.get("/readyz").status_code == 200
        entities = [event["entities"] for event in logged(server)]
        assert entities == [["a:1"], ["a:3"]]


def test_a_control_server_that_hangs_holds_nobody_up(
    start_server: Servers, children: Children, tmp_path: Path
) -> None:
    server = start_server("valkey9")
    with door_on(server, children, tmp_path) as door:
        server.pause()
        try:
            assert door.post("/v1/events/shop", {"entity": "a:1"}).status_code == 503
            assert door.client.get("/livez").status_code == 200
        finally:
            server.resume()
        wait_until(
            lambda: door.post("/v1/events/shop", {"entity": "a:2"}).status_code == 202,
            within_s=20,
            what="events are taken again",
        )


def test_a_full_log_takes_nothing_until_it_is_read(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """Pressure is passed on to those who can wait."""
    valkey.renew()
    with door_on(valkey, children, tmp_path, serve="max_backlog = 3") as door:
        for number in range(3):
            door.post("/v1/events/shop", {"entity": f"a:{number}"})
        answer = door.post("/v1/events/shop", {"entity": "a:4"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert door.client.get("/readyz").json()["reasons"] == ["event_log_full"]
        valkey.command("XTRIM", "warmer:events", "MAXLEN", 0)
        assert counts(door.post("/v1/events/shop", {"entity": "a:5"})) == {
            "accepted": 1
        }


def test_a_server_without_memory_refuses_and_recovers(
    start_server: Servers, children: Children, tmp_path: Path
) -> None:
    """MEMORY-1."""
    server = start_server("valkey9")
    with door_on(server, children, tmp_path) as door:
        assert counts(door.post("/v1/events/shop", {"entity": "a:1"})) == {
            "accepted": 1
        }
        server.command("CONFIG", "SET", "maxmemory", 1)
        for body in (b'{"entity":"a:2"}', b"garbage"):
            assert door.post("/v1/events/shop", body).status_code == 503
        server.command("CONFIG", "SET", "maxmemory", 0)
        assert counts(door.post("/v1/events/shop", {"entity": "a:3"})) == {
            "accepted": 1
        }


@pytest.mark.parametrize("slow", ["head", "body", "nothing"])
def test_a_slow_sender_is_cut_off(
    valkey: ServerProcess, children: Children, tmp_path: Path, slow: str
) -> None:
    """A connection that is held open costs nobody else."""
    valkey.renew()
    bounds = 'head_timeout = "500ms"\nbody_timeout = "500ms"'
    with (
        door_on(valkey, children, tmp_path, serve=bounds) as door,
        socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection,
    ):
        match slow:
            case "head":
                connection.sendall(b"POST /v1/events/shop HTTP/1.1\r\nHost: a\r\nX: ")
            case "body":
                connection.sendall(
                    b"POST /v1/events/shop HTTP/1.1\r\nHost: a\r\n"
                    b"Content-Length: 9\r\n\r\n{"
                )
            case _:
                pass
        received = b"".join(iter(lambda: connection.recv(4096), b""))
        assert received.startswith(b"HTTP/1.1 408 ")
        assert counts(door.post("/v1/events/shop", {"entity": "a:1"})) == {
            "accepted": 1
        }


@pytest.mark.parametrize("ended", [True, False])
def test_a_large_head_is_cut_off(door: Door, *, ended: bool) -> None:
    """It would be read without end, otherwise."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection:
        head = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
        head += b"".join(b"X-%d: %s\r\n" % (at, b"a" * 1_000) for at in range(30))
        connection.sendall(head + (b"\r\n" if ended else b"X: "))
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/events/shop HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/events/shop HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PURGEKEYS / HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_is_no_request_ends_its_connection_only(door: Door, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    assert received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 40"))
    assert door.client.get("/livez").status_code == 200


def test_a_drain_answers_what_runs(
    start_server: Servers, children: Children, tmp_path: Path
) -> None:
    """SYSTEMD-5: and ends with 0."""
    server = start_server("valkey9")
    with door_on(server, children, tmp_path) as door:
        answers: list[int] = []

        def send() -> None:
            answers.append(door.post("/v1/events/shop", {"entity": "a:1"}).status_code)

        server.pause()
        sender = threading.Thread(target=send)
        sender.start()
        wait_until(
            lambda: _connections(door.port) > 0, within_s=10, what="it is connected"
        )
        time.sleep(0.1)  # noqa: TID251 - the request is on its way to the script
        door.process.terminate()
        door.process.wait_for_line("server_draining")
        server.resume()
        sender.join(timeout=10)
        assert door.process.wait(within_s=15) == 0
        assert answers[0] in {202, 503}
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", door.port), timeout=1)


def test_a_drain_tells_whoever_is_too_slow_to_come_again(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """SYSTEMD-5: nothing of it is an error of ours."""
    valkey.renew()
    with (
        door_on(valkey, children, tmp_path, serve='drain_timeout = "1s"') as door,
        _connected(door) as connection,
    ):
        connection.sendall(
            b"POST /v1/events/shop HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert connection.recv(4_096).startswith(b"HTTP/1.1 100 ")
        door.process.terminate()
        assert _received(connection).startswith(b"HTTP/1.1 503 ")
        assert door.process.wait(within_s=15) == 0
    assert "Traceback" not in door.process.output


def test_it_listens_where_it_is_told(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """A socket that a killed process left is taken over."""
    file = tmp_path / "warmer.toml"
    file.write_text(f'[cache]\nurl = "{valkey.url}"\n')
    path = tmp_path / "door.sock"
    for _ in range(2):
        child = children.warmer(
            "serve", "--config", str(file), "--listen", f"unix:{path}"
        )
        child.wait_for_line(f"server_ready listen=unix:{path}", within_s=20)
        child.kill()
    nowhere = children.warmer("serve", "-c", str(file), "--listen", "nowhere")
    assert nowhere.wait() == 78
    assert "host:port" in nowhere.output


@pytest.mark.parametrize(
    ("listen", "says"),
    [("127.0.0.1:{port}", "in use"), ("unix:/nowhere/door.sock", "No such file")],
)
def test_an_address_that_cannot_be_had_is_told(
    door: Door, children: Children, tmp_path: Path, listen: str, says: str
) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text('[cache]\nurl = "redis://127.0.0.1:1"\n')
    address = listen.format(port=door.port)
    child = children.warmer("serve", "-c", str(file), "--listen", address)
    assert child.wait(within_s=20) == 1
    (line,) = child.lines
    assert line.startswith(f"warmer: cannot listen on {address}: ")
    assert says in line


def test_a_socket_that_somebody_listens_on_is_left_to_them(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    file, path = tmp_path / "warmer.toml", tmp_path / "door.sock"
    file.write_text(f'[cache]\nurl = "{valkey.url}"\n')
    serve = ("serve", "-c", str(file), "--listen", f"unix:{path}")
    children.warmer(*serve).wait_for_line("server_ready", within_s=20)
    second = children.warmer(*serve)
    assert second.wait(within_s=20) == 1
    assert "in use" in second.output
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))


def test_a_socket_that_systemd_holds_is_taken_over(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """While the process restarts, what arrives waits in that socket."""
    valkey.renew()
    file = tmp_path / "warmer.toml"
    file.write_text(f'[cache]\nurl = "{valkey.url}"\n')
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=20) as early:
            early.sendall(
                b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            )
            # As systemd does it: the socket is descriptor 3 of the process it starts.
            script = (
                f"exec 3<&{held.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1"
                f" exec {WARMER} serve -c {file} --listen 127.0.0.1:1"
            )
            child = children.run(["bash", "-c", script], pass_fds=(held.fileno(),))
            child.wait_for_line(f"server_ready listen=127.0.0.1:{port}", within_s=20)
            received = b"".join(iter(lambda: early.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 200 ")


def test_more_requests_than_allowed_are_told_to_come_again(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """Connections that wait are no requests, and a busy process lives."""
    valkey.renew()
    with (
        door_on(valkey, children, tmp_path, serve="max_requests = 2") as door,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            stack.enter_context(_connected(door))
        body = b'{"entity":"a:1"}'
        running = [stack.enter_context(_connected(door)) for _ in range(2)]
        for connection in running:
            connection.sendall(
                b"POST /v1/events/shop HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                b"Authorization: Bearer t0ken\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)
            )
        wait_until(
            lambda: door.post("/v1/events/shop", body).status_code == 503,
            within_s=10,
            what="both are read",
        )
        answer = door.post("/v1/events/shop", body)
        assert answer.headers["retry-after"] == "5"
        assert answer.headers["content-type"] == "application/problem+json"
        assert door.client.get("/livez").status_code == 200
        for connection in running:
            connection.sendall(body)
            assert _received(connection).startswith(b"HTTP/1.1 202 ")
        assert door.post("/v1/events/shop", body).status_code == 202


CHUNKED = (
    b"POST /v1/events/shop HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("line", [b"x-a: " + b"b" * 1_000 + b"\r\n", b"b" * 1_000])
def test_trailers_without_end_are_cut_off(door: Door, line: bytes) -> None:
    """HTTPBODY-1: whoever reaches the port could fill the memory with them."""
    before = _resident_kb(door.process.pid)
    with _connected(door) as connection, contextlib.suppress(OSError):
        connection.sendall(CHUNKED + b"1\r\na\r\n0\r\nx-a: ")
        for _ in range(60):
            connection.sendall(line * 1_000)
        pytest.fail("it takes all of them")
    assert _resident_kb(door.process.pid) - before < 16_384


def test_a_trailer_is_no_header(door: Door, valkey: ServerProcess) -> None:
    """A proxy in front looks at heads only."""
    sent = CHUNKED + b'10\r\n{"entity":"a:1"}\r\n0\r\n'
    with _connected(door) as connection:
        connection.sendall(sent + b"Authorization: Bearer t0ken\r\n\r\n")
        assert _received(connection).startswith(b"HTTP/1.1 401 ")
    assert valkey.command("DBSIZE") == 0


def test_blank_lines_hold_no_connection(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    """After an answer a connection waits for a head, and not for ever."""
    bounds = 'head_timeout = "500ms"'
    with (
        door_on(valkey, children, tmp_path, serve=bounds) as door,
        _connected(door) as connection,
    ):
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(4096)
        connection.sendall(b"\r\n")
        assert _received(connection) == b""


def _connected(door: Door) -> socket.socket:
    return socket.create_connection(("127.0.0.1", door.port), timeout=10)


def _received(connection: socket.socket) -> bytes:
    """All that comes until the door closes."""
    return b"".join(iter(lambda: connection.recv(4096), b""))


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def _connections(port: int) -> int:
    """How many connections to this port are established on this machine."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1] == wanted and line.split()[3] == "01" for line in lines)
