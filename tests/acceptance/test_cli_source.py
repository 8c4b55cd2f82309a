"""`warmer source` as people and scripts meet it: a child process, a real server."""

import asyncio
import os
import pty
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.test_cli import ENVIRONMENT, Ended, warmer
from tests.control import control_of
from tests.processes import WARMER
from tests.servers import ServerProcess
from warmer.ingest.event_log import decode, record_of
from warmer.model.arrival import Arrival
from warmer.model.event import Event
from warmer.model.source import Source
from warmer.model.version import SourceVersion
from warmer.store.control import ControlServer

LARGE = 2**60 + 1


@dataclass(frozen=True)
class Setup:
    """A file that declares one source and depends on another, and their server."""

    file: Path
    control: ControlServer

    async def source(self, *arguments: str) -> Ended:
        return await warmer("source", *arguments, WARMER_CONFIG=str(self.file))

    async def accept(self, *numbers: int) -> None:
        records = []
        for number in numbers:
            version = SourceVersion.of("shop-db", number)
            event = Event(f"e{number}", "shop-db", ("product:1",), version)
            records.append(record_of(Arrival(event, position=version.digits)))
        await self.control.events.accept(records, Source("shop-db", "debezium"))

    async def ids(self) -> list[str]:
        entries = await self.control.events.newest(count=100)
        return [decode(entry.event or b"").id for entry in reversed(entries)]


@pytest.fixture
async def setup(valkey: ServerProcess, tmp_path: Path) -> AsyncIterator[Setup]:
    valkey.renew()
    file = tmp_path / "warmer.toml"
    file.write_text(
        f'[cache]\nurl = "{valkey.url}"\n'
        '[sources.shop-db]\nformat = "debezium"\n'
        '[datasets.product]\nkey = "product:v{schema}:{id}"\nfresh_for = "60s"\n'
        'entities = ["shop-db/product:{id}", "cms/page:{id}"]\n'
    )
    async with control_of(valkey) as control:
        yield Setup(file, control)


async def test_show_tells_of_every_source_declared_or_depended_on(
    setup: Setup,
) -> None:
    """R-INV-1: large numbers are text for scripts."""
    await setup.accept(LARGE)

    ended = await setup.source("show", "--json")
    told = await setup.source("show")

    assert (ended.status, ended.data["waiting"]) == (0, 1)
    cms, shop = ended.data["sources"]
    assert (cms["name"], cms["heard_at"], cms["epoch"]) == ("cms", None, 0)
    assert (shop["name"], shop["accepted"]) == ("shop-db", 1)
    assert shop["newest"] == [str(LARGE)]
    assert f"newest     {LARGE}" in told.out


async def test_a_name_that_nobody_knows_is_wrong_usage(setup: Setup) -> None:
    for command in (
        ("show", "shop"),
        ("epoch", "shop"),
        ("pause", "shop", "--for", "1h", "--reason", "x"),
        ("resume", "shop"),
        ("replay", "shop", "--since", "1m"),
    ):
        ended = await setup.source(*command)

        assert ended.status == 2, command
        assert "did you mean 'shop-db'" in ended.err


async def test_a_source_that_only_a_dataset_names_can_be_managed(setup: Setup) -> None:
    ended = await setup.source(
        "epoch", "cms", "--open", "--reason", "imported", "--yes", "--json"
    )

    assert ended.data == {"name": "cms", "epoch": 1, "opened": True}


async def test_an_epoch_is_opened_only_with_a_reason_and_if_somebody_wants_it(
    setup: Setup,
) -> None:
    """CDC-GAP-4: every key of the source is loaded again."""
    without_reason = await setup.source("epoch", "shop-db", "--open", "--yes")
    unasked = await setup.source("epoch", "shop-db", "--open", "--reason", "restored")
    before = await setup.source("epoch", "shop-db")
    opened = await setup.source(
        "epoch", "shop-db", "--open", "--reason", "restored", "--yes"
    )
    shown = await setup.source("show", "shop-db", "--json")

    assert (without_reason.status, unasked.status) == (2, 2)
    assert "--yes" in unasked.err
    assert (before.out, opened.out) == ("0\n", "1\n")
    assert shown.data["sources"][0]["opened_why"] == "restored"
    assert await setup.ids() == ["epoch-1"]


@pytest.mark.parametrize(("answer", "epoch"), [(b"y\n", 1), (b"n\n", 0)])
async def test_on_a_terminal_an_opening_is_asked_for(
    setup: Setup, answer: bytes, epoch: int
) -> None:
    """OPS: a slip of the hand must not load everything again."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(  # noqa: ASYNC220 - waited for in a thread
        [str(WARMER), "source", "epoch", "shop-db", "--open", "--reason", "restored"],
        env={**ENVIRONMENT, "WARMER_CONFIG": str(setup.file)},
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.write(ours, answer)
    _, told = await asyncio.to_thread(child.communicate, timeout=20)
    os.close(ours)
    os.close(theirs)

    assert b"stale once and is loaded again" in told
    assert child.returncode == (0 if epoch else 130)
    assert (await setup.control.sources.show("shop-db")).epoch == epoch


async def test_a_paused_source_is_resumed_by_hand(setup: Setup) -> None:
    paused = await setup.source(
        *("pause", "shop-db", "--for", "1h", "--reason", "deploy", "--json")
    )
    await setup.accept(1, 2)
    shown = await setup.source("show", "shop-db")
    before = await setup.ids()
    resumed = await setup.source("resume", "shop-db", "--json")

    state = await setup.control.sources.show("shop-db")
    assert paused.data["paused_until"] > 1_700_000_000_000
    assert "deploy" in shown.out
    assert "kept back  2" in shown.out
    assert before == []
    assert resumed.data == {"name": "shop-db", "moved": 2}
    assert await setup.ids() == ["e1", "e2"]
    assert (state.held, state.paused_until) == (0, None)


@pytest.mark.parametrize("length", ["forever", "0s", "8d", "-1s"])
async def test_a_pause_has_an_end(setup: Setup, length: str) -> None:
    """R-INV-3: what nobody ends would be stale for ever."""
    ended = await setup.source(
        "pause", "shop-db", f"--for={length}", "--reason", "deploy"
    )

    assert ended.status == 2
    assert "7d" in ended.err


async def test_an_event_by_hand_waits_while_its_source_is_paused(setup: Setup) -> None:
    await setup.control.sources.pause("shop-db", for_ms=3_600_000, why="deploy")

    ended = await warmer(
        *("invalidate", "product:1", "--source", "shop-db", "--json"),
        WARMER_CONFIG=str(setup.file),
    )

    assert ended.data["log_id"] is None
    assert "paused" in ended.err


async def test_an_event_by_hand_stands_in_its_sources_epoch(setup: Setup) -> None:
    """R-CARD-2: otherwise every key would refuse it after an opening."""
    await setup.source("epoch", "shop-db", "--open", "--reason", "restored", "--yes")
    await warmer(
        *("invalidate", "product:1", "--source", "shop-db", "--version", "3"),
        WARMER_CONFIG=str(setup.file),
    )

    [entry] = await setup.control.events.newest(count=1)
    assert entry.epoch == 1


async def test_replay_counts_first_and_appends_then(setup: Setup) -> None:
    await setup.accept(1, 2)

    counted = await setup.source(
        "replay", "shop-db", "--since", "10m", "--dry-run", "--json"
    )
    before = await setup.ids()
    replayed = await setup.source("replay", "shop-db", "--since", "10m", "--json")

    assert counted.data == {"name": "shop-db", "events": 2, "dry_run": True}
    assert before == ["e1", "e2"]
    assert replayed.data == {"name": "shop-db", "events": 2, "dry_run": False}
    assert await setup.ids() == ["e1", "e2", "e1", "e2"]


async def test_a_server_that_is_away_has_a_status_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text('[cache]\nurl = "redis://127.0.0.1:1/0"\n')

    ended = await warmer("source", "show", WARMER_CONFIG=str(file))

    assert ended.status == 69
