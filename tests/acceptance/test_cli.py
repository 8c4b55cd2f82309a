"""The `warmer` command as people and scripts meet it: a child process, real servers."""

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.origin_server import OriginServer, Reply, json_answer
from tests.processes import CHECKOUT, WARMER, Children
from tests.servers import ServerProcess, Servers
from warmer.ingest.event_log import decode, encode
from warmer.model.due import member_of
from warmer.model.event import Event, PurgeMode
from warmer.model.lease import new_token
from warmer.model.outcome import Published
from warmer.model.version import SourceVersion
from warmer.ops.cli import COMMANDS, main
from warmer.refresh import RefreshRequest
from warmer.settings.schema import schema_text
from warmer.store.port import Claim
from warmer.wiring import WorkerParts, open_worker_parts

DATASETS = """
[datasets.product]
key = "product:v{schema}:{locale}:{id}"
vary = { locale = ["de", "en"] }
entities = ["shop-db/product:{id}"]
origin = "shop"
path = "/products/{id}?locale={locale}"
fresh_for = "10m"
stale_for = "5m"
stale_if_error_for = "10m"
negative_for = "5s"
jitter = "0%"

[datasets.product.version]
means = "entity"
source = "shop-db"
entity = "product:{id}"
header = "X-Version"

[datasets.report]
key = "report:v{schema}:{id}"
fresh_for = "60s"
"""
TARGET = "/products/42?locale=de"
KEY = "product:v1:de:42"
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()  # noqa: TID251 - without our settings
    if not name.startswith(("WARMER_", "NO_COLOR"))
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its output: one JSON document."""
        return json.loads(self.out)


async def warmer(*arguments: str, **variables: str) -> Ended:
    """Run the command; a test's own server answers it meanwhile."""
    done = await asyncio.to_thread(
        subprocess.run,
        [str(WARMER), *arguments],
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Shop:
    """An origin, a server, and the file that names both."""

    origin: OriginServer
    server: ServerProcess
    file: Path

    async def warmer(self, *arguments: str) -> Ended:
        return await warmer(*arguments, WARMER_CONFIG=str(self.file))


@pytest.fixture
async def shop(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Shop]:
    valkey.renew()
    async with OriginServer() as origin:
        file = tmp_path / "warmer.toml"
        file.write_text(
            f'[cache]\nurl = "{valkey.url}"\ntimeout = "5s"\n'
            f'[origins.shop]\nbase_url = "{origin.url}"\n{DATASETS}'
        )
        yield Shop(origin, valkey, file)


@pytest.fixture
async def parts(shop: Shop) -> AsyncIterator[WorkerParts]:
    """What a worker would run on, in the test's own hands."""
    async with open_worker_parts(shop.file) as opened:
        yield opened


def change(
    version: int | None, *, mode: PurgeMode | None = None, event_id: str = "shop-1"
) -> Event:
    number = None if version is None else SourceVersion.of("shop-db", version)
    return Event(event_id, "shop-db", ("product:42",), number, mode)


async def load_version_17(shop: Shop, parts: WorkerParts) -> None:
    shop.origin.on(TARGET, json_answer({"price": 1990}, version=17))
    key = parts.datasets["product"].key({"locale": "de", "id": 42})
    outcome = await parts.refresher.run(RefreshRequest(key))
    assert isinstance(outcome, Published)


# --- the command itself ---------------------------------------------------------------


def test_help_imports_nothing_that_it_does_not_need() -> None:
    heavy = ["redis", "pydantic", "httpx", "arq", "sentry_sdk", "aiohttp", "rich"]
    script = (
        "import sys\nfrom warmer.ops.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit: pass\n"
        f"print(sorted(set({heavy!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])

    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert out.startswith(f"Usage: warmer {name} ")
    assert "\\b" not in out


async def test_the_version_is_told_to_people_and_to_programs() -> None:
    people, programs = await warmer("--version"), await warmer("--version", "--json")

    assert re.fullmatch(r"warmer \d+\.\d+\.\d+\n", people.out)
    assert people.out.split()[1] == programs.data["version"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["wokrer"], "Did you mean 'worker'?"),
        (["get", "prodct", "id=42"], "did you mean 'product'?"),
        (["get", "product", "id"], "'id' is not part=value"),
        (["get", "product", "id=42"], "part 'locale' is missing"),
        (
            ["get", "product", "id=42", "local=de"],
            "part 'locale' is missing, and there is no part 'local'",
        ),
        (["--json", "why", KEY], "--json goes after the command: warmer why --json"),
        (["get", "product", "id=1", "id=2"], "part 'id' is given twice"),
        (["get", "product", "id=42", "locale=de", "size=1"], "no part 'size'"),
        (["get", "product", "--deadline", "soon"], "'soon' is not 500ms"),
        (["why", "other:v1:42"], "is not a key of any dataset"),
        (["why", "product", "locale=de"], "part 'id' is missing"),
        (["invalidate", "product:42"], "Missing option '--source'"),
        (
            ["invalidate", "product:42", "--source", "shopdb"],
            "did you mean 'shop-db'?",
        ),
        (
            ["invalidate", "prodct:42", "--source", "shop-db"],
            "there are: product:{id}",
        ),
        (
            ["invalidate", "product:42", "--source", "shop-db", "--version", "x"],
            "whole numbers",
        ),
        (
            ["invalidate", "product:42", "--source", "shop-db", "--epoch", "1"],
            "needs --version",
        ),
        (
            [
                "invalidate",
                "product:42",
                "--source",
                "shop-db",
                "--version",
                str(2**64),
            ],
            "outside 0",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_command_says_what_was_meant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text(
        '[cache]\nurl = "redis://127.0.0.1:1"\n[origins.shop]\nbase_url = "http://x"\n'
        + DATASETS
    )
    monkeypatch.setenv("WARMER_CONFIG", str(file))

    with pytest.raises(SystemExit) as ended:
        main(words)

    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert says in err
    assert out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["get", "product", "id=42", "locale=de"],
        ["why", KEY],
        ["invalidate", "product:42", "--source", "shop-db"],
        ["config", "check"],
        ["config", "show"],
        ["worker"],
    ],
    ids=" ".join,
)
def test_every_command_names_every_mistake_of_the_configuration_and_ends_with_78(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text('[cache]\nurl = "http://hunter2@x"\ntimeout = "0s"\n')
    monkeypatch.setenv("WARMER_CONFIG", str(file))
    monkeypatch.setenv("WARMER_WORKR", "1")

    with pytest.raises(SystemExit) as ended:
        main(words)

    out, err = capsys.readouterr()
    assert ended.value.code == 78
    assert f"{file}:2: cache.url: allowed are redis://" in err
    assert f"{file}:3: cache.timeout: allowed are 1ms" in err
    assert "WARMER_WORKR: nobody reads this name" in err
    assert "3 problems" in err
    assert "hunter2" not in out + err


@pytest.mark.parametrize(
    "words",
    [["why", KEY], ["invalidate", "product:42", "--source", "shop-db"]],
    ids=" ".join,
)
async def test_a_server_that_is_away_ends_a_command_with_69(
    start_server: Servers, tmp_path: Path, words: list[str]
) -> None:
    server = start_server("valkey9")
    file = tmp_path / "warmer.toml"
    file.write_text(
        f'[cache]\nurl = "{server.url}"\n[origins.shop]\nbase_url = "http://x"\n'
        + DATASETS
    )
    server.stop()

    ended = await warmer(*words, "--config", str(file))

    assert ended.status == 69
    assert "a server did not answer as it should" in ended.err


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=["a terminal", "NO_COLOR", "a dumb terminal"],
)
def test_colour_is_for_terminals_whose_user_wants_it(
    shop: Shop, variables: dict[str, str], *, coloured: bool
) -> None:
    terminal, command = pty.openpty()
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "TERM"}
    subprocess.run(
        [str(WARMER), "why", KEY, "--config", str(shop.file)],
        env={**environment, **variables},
        stdout=command,
        timeout=20,
        check=True,
    )
    os.close(command)
    shown = os.read(terminal, 4096)
    os.close(terminal)

    assert (b"\x1b[1m" in shown) is coloured


# --- get ------------------------------------------------------------------------------


async def test_get_loads_once_and_then_reads(shop: Shop) -> None:
    shop.origin.on(TARGET, json_answer({"price": 1990}, version=17))

    loaded = await shop.warmer("get", "product", "id=42", "locale=de")
    read = await shop.warmer("get", "product", "id=42", "locale=de", "--json")

    assert loaded.data == {"price": 1990}
    assert f"{KEY}: loaded" in loaded.err
    assert read.data == {
        "key": KEY,
        "state": "fresh",
        "age_ms": read.data["age_ms"],
        "versions": {"shop-db/product:42": {"epoch": 0, "parts": ["17"]}},
        "value": {"price": 1990},
    }
    assert shop.origin.loads(TARGET) == 1


async def test_get_raw_prints_the_bytes_that_the_origin_sent(shop: Shop) -> None:
    shop.origin.on(
        TARGET,
        Reply(
            body=b'{ "price":  1990 }',
            headers={"Content-Type": "application/json", "X-Version": "1"},
        ),
    )

    raw = await shop.warmer("get", "product", "id=42", "locale=de", "--raw")

    assert json.loads(raw.out) == {"price": 1990}
    assert not raw.out.endswith("\n")


async def test_get_of_what_the_source_does_not_have_ends_with_1(shop: Shop) -> None:
    """R-POL-7: a not-found is an answer, and not an empty one."""
    ended = await shop.warmer("get", "product", "id=43", "locale=de")

    assert (ended.status, ended.out) == (1, "")
    assert "the source has no such thing" in ended.err


async def test_get_with_nothing_to_serve_ends_with_75_and_says_why(shop: Shop) -> None:
    shop.origin.on(TARGET, Reply(status=500))

    ended = await shop.warmer("get", "product", "id=42", "locale=de")

    assert (ended.status, ended.out) == (75, "")
    assert "500" in ended.err


async def test_get_of_what_only_a_program_can_load_says_so(
    valkey: ServerProcess, tmp_path: Path
) -> None:
    valkey.renew()
    file = tmp_path / "warmer.toml"
    file.write_text(
        f'[cache]\nurl = "{valkey.url}"\n[datasets.profile]\nfresh_for = "60s"\n'
        'key = "profile:v{schema}:{user}"\nentities = ["users-db/user:{user}"]\n'
    )

    ended = await warmer("get", "profile", "user=ada", "-c", str(file))

    assert (ended.status, ended.out) == (75, "")
    assert "its dataset has no origin; what loads it is in your program" in ended.err


async def test_get_without_a_cache_server_says_that_it_went_past_it(
    start_server: Servers, tmp_path: Path
) -> None:
    server = start_server("valkey9")
    server.stop()
    async with OriginServer() as origin:
        origin.on(TARGET, json_answer({"price": 1990}, version=17))
        file = tmp_path / "warmer.toml"
        file.write_text(
            f'[cache]\nurl = "{server.url}"\n'
            f'[origins.shop]\nbase_url = "{origin.url}"\n{DATASETS}'
        )

        ended = await warmer("get", "product", "id=42", "locale=de", "-c", str(file))

    assert ended.data == {"price": 1990}
    assert f"{KEY}: degraded" in ended.err


async def test_an_interrupted_command_ends_with_130_and_gives_its_lease_back(
    shop: Shop, children: Children
) -> None:
    """R-LSE-2: a release always runs, also when its owner is cancelled."""
    shop.origin.on(TARGET, json_answer({"price": 1990}, version=17))
    shop.origin.hold()
    command = children.warmer(
        *("get", "product", "id=42", "locale=de", "--deadline", "60s"),
        *("--config", str(shop.file)),
    )
    await shop.origin.sees(running=1)

    command.interrupt()
    status = await command.exited()

    assert status == 130
    assert command.output.strip() == "warmer: interrupted"
    assert shop.server.command("EXISTS", f"lock:{{{KEY}}}") == 0


# --- invalidate -----------------------------------------------------------------------


async def test_invalidate_appends_one_event_to_the_log(
    shop: Shop, parts: WorkerParts
) -> None:
    """R-INV-1: entity ids, and a monotone version where there is one."""
    ended = await shop.warmer(
        *("invalidate", "product:42", "product:43", "--source", "shop-db"),
        *("--version", "7:9", "--epoch", "2", "--hard", "--json"),
    )

    [logged] = await parts.control.events.newest(count=10)
    assert decode(logged.event or b"") == Event(
        ended.data["id"],
        "shop-db",
        ("product:42", "product:43"),
        SourceVersion.of("shop-db", 7, 9, epoch=2),
        PurgeMode.HARD,
    )
    assert ended.data["log_id"] == logged.id
    assert ended.data["keys"] == {"product": 4}


async def test_invalidate_prints_the_id_that_log_lines_carry(shop: Shop) -> None:
    ended = await shop.warmer("invalidate", "product:42", "--source", "shop-db")

    assert re.fullmatch(r"cli-[0-9a-f]{16}\n", ended.out)
    assert "2 of product" in ended.err


# --- why ------------------------------------------------------------------------------


async def test_why_names_a_key_either_way(shop: Shop) -> None:
    by_key = await shop.warmer("why", KEY, "--json")
    by_parts = await shop.warmer("why", "product", "id=42", "locale=de", "--json")

    assert by_key.data["key"] == by_parts.data["key"] == KEY
    assert by_key.data["parts"] == {"locale": "de", "id": "42"}
    assert by_key.data["verdict"] == "absent"
    assert by_key.data["because"] == (
        "Absent: never loaded, or forgotten by the server; the next caller loads it."
    )


async def test_why_fresh(shop: Shop, parts: WorkerParts) -> None:
    await load_version_17(shop, parts)

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    assert re.match(r"Fresh for [\d.]+ min more: loaded [\d.]+ m?s ago\.\n", told.out)
    assert "shop-db/product:42 = 17" in told.out
    assert "\x1b" not in told.out
    assert data["entry"]["versions"] == {
        "shop-db/product:42": {"epoch": 0, "parts": ["17"]}
    }
    assert data["entry"]["age_ms"] >= 0
    assert 0 < data["entry"]["fresh_for_ms"] <= 600_000
    assert (data["lease"], data["guard"]["failures"]) == (None, 0)
    assert (data["events"], data["dead_letters"]) == ([], [])


async def test_why_says_that_an_event_waits_in_the_log(
    shop: Shop, parts: WorkerParts
) -> None:
    await load_version_17(shop, parts)
    await shop.warmer(
        "invalidate", "product:42", "--source", "shop-db", "--version", "18"
    )
    [logged] = await parts.control.events.newest(count=1)
    event = decode(logged.event or b"")

    told = await shop.warmer("why", KEY)

    first = told.out.splitlines()[0]
    assert first.startswith("Fresh for")
    assert f"event {event.id} of " in first
    assert first.endswith("is in the log and not applied.")


async def test_why_stale_names_the_event_that_raised_the_floor(
    shop: Shop, parts: WorkerParts
) -> None:
    await load_version_17(shop, parts)
    await shop.warmer(
        "invalidate", "product:42", "--source", "shop-db", "--version", "18"
    )
    [logged] = await parts.control.events.newest(count=1)
    event = decode(logged.event or b"")
    await parts.invalidator.apply([event])

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    assert re.match(
        rf"Stale, served for [\d.]+ \w+ more, because event {event.id} at "
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ raised the floor of shop-db/product:42 to 18, "
        r"and the entry has 17; it has been due for ",
        told.out,
    )
    assert data["verdict"] == "stale"
    assert data["guard"]["floors"] == {
        "shop-db/product:42": {"epoch": 0, "parts": ["18"], "raised": 1}
    }
    assert [seen["id"] for seen in data["events"]] == [event.id]


async def test_every_name_in_the_json_of_why_is_in_its_help(
    shop: Shop, parts: WorkerParts
) -> None:
    await load_version_17(shop, parts)
    await parts.control.events.append([encode(change(18))])
    await parts.invalidator.apply([change(18)])

    data = (await shop.warmer("why", KEY, "--json")).data
    told = (await shop.warmer("why", "--help")).out

    names = {*_names(data)} - {"locale", "id", "shop-db/product:42"}
    assert {"age_ms", "raised", "standing", "lane"} <= names
    assert [name for name in sorted(names) if f'"{name}"' not in told] == []


def _names(data: object) -> Iterator[str]:
    if isinstance(data, dict):
        yield from data
        for value in data.values():
            yield from _names(value)
    if isinstance(data, list):
        for value in data:
            yield from _names(value)


async def test_why_stale_after_an_event_without_a_version(
    shop: Shop, parts: WorkerParts
) -> None:
    await load_version_17(shop, parts)
    await parts.invalidator.apply([change(None)])

    told = await shop.warmer("why", KEY)

    assert "an invalidation without a comparable version came at" in told.out


async def test_why_absent_after_a_hard_purge(shop: Shop, parts: WorkerParts) -> None:
    await load_version_17(shop, parts)
    await parts.invalidator.apply([change(18, mode=PurgeMode.HARD)])

    told = await shop.warmer("why", KEY)

    assert told.out.startswith("Absent: a hard purge removed it at ")


async def test_why_says_who_holds_the_lease(shop: Shop, parts: WorkerParts) -> None:
    dataset = parts.datasets["product"]
    key = dataset.key({"locale": "de", "id": 42})
    token = new_token()
    claim = Claim(key, token, lease_ms=60_000, guard_ms=dataset.guard_ms)
    await parts.store.claim(claim)

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    assert "a refresher holds the lease for" in told.out.splitlines()[0]
    assert data["lease"]["token"] == token
    assert 0 < data["lease"]["ends_in_ms"] <= 60_000


async def test_why_says_that_the_key_cools_after_failures(shop: Shop) -> None:
    """R-ADM-4: a failed load is not repeated at once, by anybody."""
    shop.origin.on(TARGET, Reply(status=503, headers={"Retry-After": "60"}))
    await shop.warmer("get", "product", "id=42", "locale=de")

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    assert re.match(
        r"Absent: no load has succeeded; loading failed once and is tried again in ",
        told.out,
    )
    assert data["guard"]["failures"] == 1
    assert 0 < data["guard"]["retry_in_ms"] <= 60_000


async def test_why_says_that_what_is_stored_is_not_an_entry(shop: Shop) -> None:
    shop.server.command("SET", KEY, "not ours")

    told = await shop.warmer("why", KEY)

    assert told.out.startswith("Unreadable (not_an_entry): no reader trusts")


async def test_why_says_that_no_worker_takes_a_due_key(
    shop: Shop, parts: WorkerParts
) -> None:
    await load_version_17(shop, parts)
    await parts.invalidator.apply([change(18)])

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    assert re.search(
        r"; it has been due for .*, and no worker has taken it \(lane now\)\.\n",
        told.out,
    )
    assert (data["due"]["lane"], data["due"]["working"]) == ("now", False)
    assert (data["due"]["due_in_ms"] <= 0, data["due"]["attempts"]) == (True, 0)


async def test_why_answers_without_a_control_server(
    shop: Shop, parts: WorkerParts, start_server: Servers
) -> None:
    await load_version_17(shop, parts)
    control = start_server("valkey9")
    shop.file.write_text(
        shop.file.read_text() + f'[control]\nurl = "{control.url}"\ntimeout = "1s"\n'
    )
    control.stop()

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    assert told.status == 0
    assert told.out.startswith("Fresh for ")
    assert data["verdict"] == "fresh"
    assert data["control_error"]


async def test_why_needs_a_user_who_may_only_read(
    shop: Shop, parts: WorkerParts
) -> None:
    await load_version_17(shop, parts)
    await parts.control.events.append([encode(change(18))])
    await parts.invalidator.apply([change(18)])
    shop.server.command(
        *("ACL SETUSER", "reader", "reset", "on", ">pw", "~*", "+@read"),
        *("+@connection", "+time"),
    )
    at_home = shop.server.url
    as_reader = at_home.replace("://", "://reader:pw@")
    shop.file.write_text(shop.file.read_text().replace(at_home, as_reader))

    told = await shop.warmer("why", KEY)

    assert (told.status, told.err) == (0, "")
    assert "event shop-1" in told.out
    assert "\ndue          lane now" in told.out


async def test_why_shows_dead_letters_about_the_key(
    shop: Shop, parts: WorkerParts
) -> None:
    payload = '{"source":"shop-db","entities":["product:42"],"id":"e","version":1}'
    await parts.control.park(
        [
            {"kind": "event", "reason": "poison", "payload": payload},
            {"kind": "event", "reason": "other", "payload": "{}"},
        ]
    )
    key = parts.datasets["product"].key({"locale": "de", "id": 42})
    await parts.control.park(
        [
            {
                "kind": "key",
                "reason": "outdated",
                "member": member_of(key),
                "event_id": "shop-18",
            }
        ]
    )

    told = await shop.warmer("why", KEY)
    data = (await shop.warmer("why", KEY, "--json")).data

    reasons = [letter["reason"] for letter in data["dead_letters"]]
    assert reasons == ["poison", "outdated"]
    assert re.search(
        r"dead letters \S+Z event set aside: poison\n"
        r" +\S+Z refresh given up: outdated, what was loaded was older than the change, "
        r"event shop-18\n",
        told.out,
    )


# --- config ---------------------------------------------------------------------------


async def test_config_check_as_json_lists_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text('[cache]\nurl = "redis://x"\ntimeout = "0s"\n')

    wrong = await warmer("config", "check", str(file), "--json")
    file.write_text('[cache]\nurl = "redis://x"\n')
    right = await warmer("config", "check", str(file), "--json")

    [problem] = wrong.data["problems"]
    assert (wrong.status, wrong.data["valid"]) == (78, False)
    assert problem["where"] == f"{file}:3"
    assert problem["setting"] == "cache.timeout"
    assert "1ms … 10s" in problem["message"]
    assert (right.status, right.data["valid"], right.data["problems"]) == (0, True, [])


async def test_config_show_says_where_each_value_is_from_and_hides_secrets(
    tmp_path: Path,
) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text(
        '[cache]\nurl = "redis://me:hunter2@x"\n[origins.shop]\nbase_url = "http://x"\n'
        'headers = { Authorization = "Bearer env:SHOP_TOKEN" }\n'
    )
    (tmp_path / "warmer_cache__password").write_text("hunter2\n")

    shown = await warmer(
        *("config", "show", "--origin", "--json", "--config", str(file)),
        CREDENTIALS_DIRECTORY=str(tmp_path),
        WARMER_CACHE__TIMEOUT="7ms",
        SHOP_TOKEN="hunter2",  # noqa: S106 - not one
    )

    assert shown.data["cache.timeout"] == {
        "value": "7ms",
        "origin": "WARMER_CACHE__TIMEOUT",
    }
    assert shown.data["cache.url"] == {
        "value": "redis://me:***@x",
        "origin": f"{file}:2",
    }
    assert shown.data["cache.password"]["origin"] == "credential warmer_cache__password"
    assert shown.data["cache.lease_name"] == {
        "value": "lock:{key}",
        "origin": "default",
    }
    assert "hunter2" not in shown.out + shown.err


async def test_the_committed_schema_is_the_one_that_config_schema_prints() -> None:
    printed = await warmer("config", "schema")

    committed = (CHECKOUT / "config" / "warmer.schema.json").read_text()
    assert printed.out == committed == schema_text()


@pytest.mark.parametrize("name", ["warmer.toml", "demo.toml"])
async def test_the_shipped_files_name_the_schema_and_pass_the_check(name: str) -> None:
    file = CHECKOUT / "config" / name

    assert file.read_text().startswith("#:schema ./warmer.schema.json\n")
    assert (await warmer("config", "check", str(file))).status == 0
