"""`warmer permits` as people and scripts meet it: a child process, a real server."""

from pathlib import Path

import pytest

from tests.acceptance.test_cli import warmer
from tests.control import control_of
from tests.servers import ServerProcess
from warmer.model.permit import Counts, Demand, OriginLimits, Report, Seen

LIMITS = OriginLimits(limit=10)


@pytest.fixture
def file(valkey: ServerProcess, tmp_path: Path) -> Path:
    valkey.renew()
    file = tmp_path / "warmer.toml"
    file.write_text(
        f'[cache]\nurl = "{valkey.url}"\n'
        '[origins.shop]\nbase_url = "http://shop"\nlimit = 10\n'
        '[origins.cms]\nbase_url = "http://cms"\n'
    )
    return file


async def test_the_limit_and_who_holds_it_are_shown(
    valkey: ServerProcess, file: Path
) -> None:
    """R-ADM-1: as the fleet goes by it now; an origin that is down says so."""
    async with control_of(valkey) as control:
        permits = control.permits("shop", LIMITS, ttl_ms=60_000)
        demand = Demand(Counts(5), Counts(2), Counts(3))
        await permits.share(Report("a", 1, {"": demand}))
        people = await warmer("permits", WARMER_CONFIG=str(file))
        await permits.share(Report("a", 2, {"": demand}, Seen(failed=10)))
        programs = await warmer("permits", "shop", "--json", WARMER_CONFIG=str(file))

    (shop,) = programs.data["origins"]
    assert people.out == (
        "shop  limit 10 of 10, 3 held, 5 wanted by 1 processes; a load takes 0 ms\n"
    )
    assert (shop["name"], shop["phase"], shop["ceiling"]) == ("shop", "open", 10)


async def test_an_origin_without_a_limit_has_no_permits(file: Path) -> None:
    ended = await warmer("permits", "cms", WARMER_CONFIG=str(file))

    assert ended.status == 2
    assert "no origin 'cms' has a limit" in ended.err
