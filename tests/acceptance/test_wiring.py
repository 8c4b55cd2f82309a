"""What a process is built from, and that it is closed again."""

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import warmer
from tests.origin_server import OriginServer, json_answer
from tests.processes import Children
from tests.servers import ServerProcess, Servers
from warmer.clock import SystemClock
from warmer.errors import ConfigError
from warmer.model.permit import OriginLimits, Pool
from warmer.settings import Settings, load_settings, read_settings
from warmer.store.connections import Endpoint
from warmer.wiring import (
    Configured,
    configured,
    control_of,
    endpoint_of,
    limits_of,
    open_client,
    open_control,
    open_worker_parts,
)

CLOCK = SystemClock()

PRODUCT = """
[datasets.product]
key = "product:v{schema}:{id}"
entities = ["shop-db/product:{id}"]
origin = "shop"
path = "/products/{id}"
fresh_for = "60s"
stale_for = "60s"

[datasets.product.version]
means = "entity"
source = "shop-db"
entity = "product:{id}"
header = "X-Version"
"""
REPORT = '[datasets.report]\nkey = "report:v{schema}:{id}"\nfresh_for = "60s"\n'


def write(folder: Path, *tables: str) -> Path:
    file = folder / "warmer.toml"
    file.write_text("\n".join(tables))
    return file


def cache(server: ServerProcess) -> str:
    return f'[cache]\nurl = "{server.url}"\ntimeout = "5s"'


def shop(origin: OriginServer) -> str:
    return f'[origins.shop]\nbase_url = "{origin.url}"'


async def test_connect_gives_a_client_that_loads_and_reads(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with OriginServer() as origin:
        origin.on("/products/42", json_answer({"price": 1990}, version=17))
        file = write(tmp_path, cache(server), shop(origin), PRODUCT)

        async with warmer.connect(file) as client:
            first = await client.get("product", id=42, deadline=timedelta(seconds=9))
            second = await client.get("product", id=42)

    assert (first.value, first.state) == ({"price": 1990}, warmer.State.LOADED)
    assert (second.value, second.state) == ({"price": 1990}, warmer.State.FRESH)


async def test_an_origin_with_a_limit_is_loaded_by_permits_of_the_control_server(
    server: ServerProcess, tmp_path: Path
) -> None:
    """R-ADM-1: the whole's, the dataset's and the tenant's; and they are given back."""
    product = PRODUCT.replace(
        'fresh_for = "60s"',
        'fresh_for = "60s"\nlimit = 4\ntenant = "id"\ntenant_limit = 2',
    )
    async with OriginServer() as origin:
        origin.on("/products/42", json_answer({"price": 1990}, version=17))
        limited = shop(origin) + "\nlimit = 10\n"
        file = write(tmp_path, cache(server), limited, product)

        async with warmer.connect(file) as client:
            first = await client.get("product", id=42, deadline=timedelta(seconds=20))
        limits = limits_of(configured(file), "shop")

    assert first.state is warmer.State.LOADED
    assert server.command("HKEYS", "warmer:permits:shop") == [b"origin"]
    assert limits == OriginLimits(
        limit=10,
        pools={"dataset:product": Pool(4, 1), "tenant:product": Pool(2, 1)},
    )


async def test_a_dataset_without_an_origin_is_loaded_by_its_caller(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with warmer.connect(write(tmp_path, cache(server), REPORT)) as client:
        answer = await client.get("report", id=1, load=lambda: ["a report"])

    assert answer.value == ["a report"]


@pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled"])
async def test_nothing_is_left_open_however_the_block_ends(
    start_server: Servers, tmp_path: Path, ending: str
) -> None:
    server = start_server("valkey9")
    before = asyncio.all_tasks()

    async def block(file: Path) -> None:
        async with open_worker_parts(file) as parts, open_client(file) as client:
            await parts.store.start()
            await parts.control.ping()
            await client.get("product", id=42, deadline=timedelta(seconds=9))
            if ending == "raises":
                raise LookupError
            if ending == "is cancelled":
                raise asyncio.CancelledError

    async with OriginServer() as origin:
        origin.on("/products/42", json_answer({}, version=17))
        file = write(tmp_path, cache(server), shop(origin), PRODUCT)
        task = asyncio.create_task(block(file))
        await asyncio.wait({task})
        async with asyncio.timeout(10):
            while origin.open_connections:
                await CLOCK.sleep(0.01)

    assert asyncio.all_tasks() == before
    if ending == "raises":
        assert isinstance(task.exception(), LookupError)
    assert server.command("CLIENT", "LIST").count(b"\n") <= 1


async def test_without_a_control_server_the_cache_server_is_one(
    server: ServerProcess, tmp_path: Path
) -> None:
    configuration = configured(write(tmp_path, cache(server), REPORT))

    async with open_control(configuration, clock=CLOCK) as control:
        await control.events.append([b"{}"])

    assert control_of(configuration.settings) is configuration.settings.cache
    assert server.command("XLEN", "warmer:events") == 1


def test_an_endpoint_is_what_the_file_says_and_hides_its_secrets(
    tmp_path: Path,
) -> None:
    file = write(
        tmp_path,
        "[cache]",
        'sentinels = ["one:26379", "[::1]:26380"]\nsentinel_service = "main"',
        'username = "me"\npassword = "hunter2"\nsentinel_password = "swordfish"',
        'database = 3\ntls = true\ntls_ca_file = "/ca.pem"\ntimeout = "7ms"',
    )

    endpoint = endpoint_of(load_settings(file).cache)

    assert endpoint == Endpoint(
        sentinels=(("one", 26379), ("::1", 26380)),
        sentinel_service="main",
        username="me",
        password="hunter2",  # noqa: S106 - not one
        sentinel_password="swordfish",  # noqa: S106 - not one
        db=3,
        tls=True,
        tls_ca_file="/ca.pem",
        timeout_ms=7,
    )
    assert "hunter2" not in repr(endpoint)


def test_a_configuration_may_be_given_in_any_form(tmp_path: Path) -> None:
    file = write(tmp_path, '[cache]\nurl = "redis://x"', REPORT)
    settings = load_settings(file)

    forms: list[Configured] = [file, str(file), settings, configured(settings)]

    assert [list(configured(form).datasets) for form in forms] == [["report"]] * 4


def test_settings_whose_datasets_are_wrong_are_refused_when_they_are_wired(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, '[cache]\nurl = "redis://x"', PRODUCT)
    settings = read_settings(file, environment={}).settings
    assert isinstance(settings, Settings)

    with pytest.raises(ConfigError, match=r"warmer\.toml:\d+: datasets\.product\.ori"):
        configured(settings)


def test_a_reader_without_origins_imports_no_http_client_and_no_queue(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, '[cache]\nurl = "redis://127.0.0.1:1"', REPORT)
    script = (
        "import asyncio, sys, warmer\n"
        "async def main():\n"
        f"    async with warmer.connect({str(file)!r}): pass\n"
        "asyncio.run(main())\n"
        "heavy = {'httpx', 'httpx_aiohttp', 'aiohttp', 'arq', 'sentry_sdk', 'starlette'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )

    assert done.stdout.strip() == "[]"


async def test_a_change_told_on_the_command_line_is_refreshed_by_a_worker(
    server: ServerProcess, tmp_path: Path, children: Children
) -> None:
    """R-CARD-1, R-CARD-4: event -> stale -> refreshed, before anyone asks."""
    async with OriginServer() as origin:
        origin.on("/products/42", json_answer({"price": 1990}, version=17))
        file = write(tmp_path, cache(server), shop(origin), PRODUCT)
        config = ("--config", str(file))
        async with warmer.connect(file) as client:
            await client.get("product", id=42, deadline=timedelta(seconds=9))
            origin.on("/products/42", json_answer({"price": 2490}, version=18))
            children.warmer("worker", *config)

            told = children.warmer(
                *("invalidate", "product:42", "--source", "shop-db"),
                *("--version", "18", *config),
            )
            assert await told.exited() == 0
            async with asyncio.timeout(15):
                while origin.loads("/products/42") < 2:
                    await CLOCK.sleep(0.02)
                while (answer := await client.get("product", id=42)).value != {
                    "price": 2490
                }:
                    await CLOCK.sleep(0.02)

    assert answer.state is warmer.State.FRESH
