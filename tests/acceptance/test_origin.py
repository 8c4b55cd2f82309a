"""Loads from a real HTTP origin: what leaves, what is taken, and what is refused."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.datasets import product
from tests.origin_client import PLAIN, OriginClient, origin_client
from tests.origin_server import OriginServer, Reply, redirect
from warmer.clock import SystemClock
from warmer.errors import (
    BadKey,
    ConfigError,
    OriginError,
    OriginInvalid,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
)
from warmer.model.dataset import LoaderVersion
from warmer.model.key import Part
from warmer.origin.loader import Origin
from warmer.origin.target import OriginTarget
from warmer.signals import Counters

NO_VERSION = LoaderVersion()
CLOCK = SystemClock()


@pytest.fixture
async def client() -> AsyncIterator[OriginClient]:
    async with origin_client() as running:
        yield running


# --- what leaves ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "parts", "target"),
    [
        ("/products/{id}", {"id": 42}, "/products/42"),
        ("/p?t=a%26b&p=x|y&id={id}", {"id": 1}, "/p?t=a%26b&p=x|y&id=1"),
        ("/p?type=application/pdf&id={id}", {"id": 1}, "/p?type=application/pdf&id=1"),
        ("/%7Ea/%2f/{id}?q=%20+%c3%a4", {"id": 1}, "/%7Ea/%2f/1?q=%20+%c3%a4"),
        ("/p/../{id}/./x", {"id": 1}, "/p/../1/./x"),
        ("/p/{id}", {"id": "a/b?c#d&e=f+g h"}, "/p/a%2Fb%3Fc%23d%26e%3Df%2Bg%20h"),
        ("/p?q={id}", {"id": "a&b=c+d e%26"}, "/p?q=a%26b%3Dc%2Bd%20e%2526"),
        ("/p/{id}", {"id": "käse:{1}"}, "/p/k%C3%A4se%3A%7B1%7D"),
        ("/p/{id}", {"id": b"\xff\x00"}, "/p/%FF%00"),
        ("/p/{id}", {"id": "..%2f"}, "/p/..%252f"),
        ("/p?q={id}", {"id": ""}, "/p?q="),
        ("/v{schema}/{id}", {"id": 7}, "/v3/7"),
    ],
)
async def test_the_request_line_is_what_was_configured(
    client: OriginClient, template: str, parts: dict[str, Part], target: str
) -> None:
    """HTTPBODY-9: literal text untouched, each part's value encoded once."""
    client.server.on(target, Reply(body=b"x"))
    dataset = product(path=template, version=NO_VERSION)
    await client.origin().load_of(dataset)(dataset.key(parts), {})

    assert [seen.target for seen in client.server.requests] == [target]


async def test_the_path_follows_the_base_urls_own(client: OriginClient) -> None:
    """HTTPBODY-9: with one slash between."""
    client.server.on("/api/v2/products/42", Reply(body=b"x"))
    await client.load(base="/api/v2/")

    assert client.server.loads("/api/v2/products/42") == 1


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_part_never_names_another_path(client: OriginClient, name: str) -> None:
    """POISON-1: `/products/..` is not a product."""
    load = client.origin().load_of(PLAIN)
    with pytest.raises(BadKey):
        await load(PLAIN.key({"id": name}), {})

    assert client.server.requests == []


async def test_only_configured_headers_leave(client: OriginClient) -> None:
    """POISON-1: nothing of a reader's request can shape what others are given."""
    client.server.on("/products/42", Reply(body=b"x"))
    await client.load(headers={"Authorization": "Bearer s3cret", "User-Agent": "shop"})

    assert client.server.requests[0].headers == {
        "host": client.server.url.removeprefix("http://"),
        "user-agent": "shop",
        "accept": "*/*",
        "accept-encoding": "gzip",
        "authorization": "Bearer s3cret",
    }


async def test_a_target_does_not_show_its_headers() -> None:
    """OBS-3: they hold the secrets."""
    target = OriginTarget("shop", "http://h", {"Authorization": "Bearer s3cret"})

    assert "s3cret" not in repr(target)


async def test_cookies_are_neither_kept_nor_sent(client: OriginClient) -> None:
    """VARIANT-6: not even where the origin's answers are stored all the same."""
    client.server.on("/products/42", Reply(headers={"Set-Cookie": "csrf=1; Path=/"}))
    origin = client.origin(allow_private=True)
    await client.load(origin=origin)
    await client.load(origin=origin)

    assert len(client.server.requests) == 2
    assert all("cookie" not in seen.headers for seen in client.server.requests)


@pytest.mark.parametrize(
    "path", ["products/{id}", "/a b/{id}", "/a#b/{id}", "/{x}", "/{id", "/ä/{id}"]
)
async def test_a_path_that_could_not_be_asked_for_is_a_configuration_error(
    client: OriginClient, path: str
) -> None:
    """HTTPBODY-9: said when the dataset is set up, not at its first load."""
    with pytest.raises(ConfigError):
        client.origin().load_of(product(path=path))


@pytest.mark.parametrize(
    "url", ["shop.internal", "ftp://shop", "http://", "http://u:p@h/", "http://h/?q"]
)
async def test_a_base_url_that_is_none_is_a_configuration_error(url: str) -> None:
    """HTTPBODY-9: as are credentials in it, which belong in a header."""
    target = OriginTarget("shop", url)
    with pytest.raises(ConfigError):
        Origin(target, clock=CLOCK, signals=Counters())


# --- redirects ------------------------------------------------------------------------


async def test_redirects_are_refused(client: OriginClient) -> None:
    """HTTPBODY-7: a login page is not the value."""
    client.server.on("/products/42", redirect("/login"))
    with pytest.raises(OriginInvalid, match="redirected"):
        await client.load()

    assert client.server.loads("/login") == 0


@pytest.mark.parametrize(
    "location", ["/items/42?a=%26|", "../items/42?a=%26|", "//{host}/items/42?a=%26|"]
)
async def test_redirects_within_the_host_may_be_followed(
    client: OriginClient, location: str
) -> None:
    """HTTPBODY-7: with the same headers, and the target as the origin wrote it."""
    host = client.server.url.removeprefix("http://")
    client.server.on("/products/42", redirect(location.format(host=host), status=308))
    client.server.on("/items/42?a=%26|", Reply(body=b"x"))
    loaded = await client.load(allow_redirects=True, headers={"X-Key": "k"})

    assert loaded.content.value() == b"x"
    assert [seen.headers["x-key"] for seen in client.server.requests] == ["k", "k"]


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:{other}/",
        "https://127.0.0.1:{port}/",
        "//localhost:{port}/",
        "http://127.0.0.1:{port}@evil.example/",
        "http://user@127.0.0.1:{port}/",
        "http:\\\\evil.example",
        "file:///etc/passwd",
        "http://[::1",
        "/a b\x7f",
        "",
    ],
)
async def test_no_redirect_leaves_the_host(client: OriginClient, location: str) -> None:
    """HTTPBODY-7: every hop is checked, and the API key goes nowhere else."""
    async with OriginServer() as elsewhere:
        told = location.format(port=client.server.port, other=elsewhere.port)
        client.server.on("/products/42", redirect("/next"))
        client.server.on("/next", redirect(told))
        with pytest.raises(OriginInvalid):
            await client.load(allow_redirects=True)

        assert elsewhere.connections == 0


async def test_redirects_come_to_an_end(client: OriginClient) -> None:
    """HTTPBODY-7: a loop is an error, after a few hops."""
    client.server.on("/products/42", redirect("/products/42"))
    with pytest.raises(OriginInvalid, match="redirects"):
        await client.load(allow_redirects=True)

    assert client.server.loads("/products/42") == 6


# --- an origin that fails -------------------------------------------------------------


async def test_an_origin_that_is_not_there_is_unavailable(client: OriginClient) -> None:
    """SWR-1: refused, like any failure a stale value may be served for."""
    await client.server.stop()
    with pytest.raises(OriginUnavailable):
        await client.load()


async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    """SWR-1: DNS as well."""
    target = OriginTarget("shop", "http://warmer.invalid")
    origin = Origin(target, clock=CLOCK, signals=Counters())
    with pytest.raises(OriginError):
        await origin.load_of(PLAIN)(PLAIN.key({"id": 42}), {})
    await origin.aclose()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply(drop_at=-1), OriginUnavailable),
        (Reply(body=b"x" * 1000, drop_at=600), OriginInvalid),
        (Reply(body=b"x" * 600, declared=1000, close=True), OriginInvalid),
        (Reply(raw=b"SSH-2.0-OpenSSH_9\r\n\r\n", close=True), OriginInvalid),
        (Reply(raw=b"HTTP/1.1 200 OK\r\nX: " + b"x" * 99_999), OriginInvalid),
    ],
    ids=["reset", "reset in the body", "short body", "no HTTP", "endless head"],
)
async def test_a_broken_answer_is_an_error(
    client: OriginClient, reply: Reply, error: type[OriginError]
) -> None:
    """HTTPBODY-4, SWR-1: never a shorter value."""
    client.server.on("/products/42", reply)
    with pytest.raises(error):
        await client.load()


async def test_silence_is_a_timeout_that_names_its_phase(client: OriginClient) -> None:
    """R-ADM-2: before the answer, and in the middle of it."""
    client.server.on("/products/42", Reply(hang=True))
    with pytest.raises(OriginTimeout) as silent:
        await client.load(read_ms=50)
    client.server.on("/products/42", Reply(body=b"abc", trickle_s=0.2))
    with pytest.raises(OriginTimeout) as stalled:
        await client.load(read_ms=50)

    assert (silent.value.phase, stalled.value.phase) == ("read", "read")


async def test_a_connection_that_is_not_made_in_time_is_a_timeout(
    client: OriginClient,
) -> None:
    """R-ADM-2: the phase is connect."""
    origin = client.origin(connect_ms=50, local_limit=1)
    client.server.on("/products/42", Reply(hang=True))
    # The one connection that this origin may open is taken by another request.
    stuck = asyncio.create_task(origin._send("/products/42"))
    await client.server.sees(running=1)
    with pytest.raises(OriginTimeout) as late:
        await client.load(origin=origin)
    stuck.cancel()
    await asyncio.wait((stuck,))

    assert late.value.phase == "connect"


async def test_a_connection_closed_while_idle_costs_no_load(
    client: OriginClient,
) -> None:
    """HTTPPOOL-4: the GET goes out once more, on a new connection."""
    client.server.on("/products/42", Reply(body=b"x"))
    origin = client.origin()
    await client.load(origin=origin)
    client.server.drop_reused = 1
    loaded = await client.load(origin=origin)

    assert loaded.content.value() == b"x"
    assert [seen.connection for seen in client.server.requests] == [1, 2]


async def test_connections_are_used_again(client: OriginClient) -> None:
    """HTTPPOOL-4: after a value, and after a not-found with an explanation."""
    client.server.on("/products/42", Reply(body=b"x"), Reply(404, body=b"none"))
    origin = client.origin()
    for _ in range(3):
        await client.load(origin=origin)

    assert client.server.connections == 1


# --- many at once ---------------------------------------------------------------------


async def test_no_more_loads_run_at_once_than_allowed_and_the_rest_wait_in_line(
    client: OriginClient,
) -> None:
    """R-ADM-1: as the origin sees it."""
    dataset = product(version=NO_VERSION)
    load = client.origin(local_limit=3).load_of(dataset)
    client.server.hold()
    loads = [
        asyncio.ensure_future(load(dataset.key({"id": number}), {}))
        for number in range(12)
    ]
    await client.server.sees(running=3)
    client.server.let_go()
    await asyncio.gather(*loads)

    assert client.server.max_running == 3
    assert len(client.server.requests) == 12
    started = [seen.target for seen in client.server.requests]
    assert set(started[:3]) == {f"/products/{number}" for number in range(3)}


async def test_a_line_that_is_full_refuses_at_once(client: OriginClient) -> None:
    """R-ADM-3: stale can be served at once, where a timeout would come too late."""
    origin = client.origin(local_limit=1, local_queue=2)
    client.server.on("/products/42", Reply(body=b"x"))
    client.server.hold()
    loads = [asyncio.create_task(client.load(origin=origin)) for _ in range(3)]
    await client.server.sees(running=1)
    await client.server.until(lambda: origin.limit.waiting == 2)
    with pytest.raises(OriginRefused):
        await client.load(origin=origin)
    client.server.let_go()
    await asyncio.gather(*loads)

    assert client.server.loads("/products/42") == 3
    assert client.signals.total("loads_refused", "shop", "line_full") == 1


async def test_cancelled_loads_leave_no_slot_taken(client: OriginClient) -> None:
    """HTTPPOOL-1: ten connections, twenty loads, most of them cancelled, many times."""
    origin = client.origin(local_limit=10)
    client.server.on("/products/42", Reply(body=b"x" * 50_000))
    for turns in range(60):
        loads = [asyncio.create_task(client.load(origin=origin)) for _ in range(20)]
        for _ in range(turns):
            await CLOCK.sleep(0)
        for load in loads[::2] + loads[1:10]:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
    loaded = await client.load(origin=origin)
    await client.server.sees(running=0)

    assert loaded.content.value() == b"x" * 50_000
    assert (origin.limit.running, origin.limit.waiting) == (0, 0)
    assert client.server.max_running <= 20
    assert client.server.open_connections <= 10
