"""Fixtures that every kind of test may use. Servers are real, and started here."""

from collections.abc import Generator, Iterator

import pytest

from tests.processes import Children
from tests.servers import (
    KINDS,
    RedisProcess,
    SentinelTrio,
    ServerProcess,
    Servers,
    ValkeyProcess,
    running,
)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ServerProcess]:
    """Valkey 9, one process per test process. Not emptied: see `server`."""
    with running(ValkeyProcess()) as process:
        yield process


@pytest.fixture(scope="session")
def redis7() -> Iterator[ServerProcess]:
    """Redis 7, one process per test process. Not emptied: see `server`."""
    with running(RedisProcess()) as process:
        yield process


@pytest.fixture(params=["valkey9", "redis7"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    """Both servers in turn, running and empty whatever the last test did to them.

    A test that changes the server's configuration takes `start_server`.
    """
    process: ServerProcess = request.getfixturevalue(
        {"valkey9": "valkey", "redis7": "redis7"}[request.param]
    )
    process.renew()
    return process


@pytest.fixture(params=sorted(KINDS))
def aof_server(request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server of the test's own that keeps every write through SIGKILL."""
    with running(KINDS[request.param](appendonly=True)) as process:
        yield process


@pytest.fixture
def start_server() -> Iterator[Servers]:
    """`start_server("valkey9", maxmemory="8mb", ...)`: servers of the test's own."""
    servers = Servers()
    yield servers
    servers.discard_all()


@pytest.fixture
def sentinel_trio() -> Iterator[SentinelTrio]:
    """One primary, one replica, three sentinels."""
    trio = SentinelTrio()
    try:
        yield trio.start()
    finally:
        trio.discard()


@pytest.fixture
def children() -> Iterator[Children]:
    """`children.python("module", ...)`, `children.warmer("worker", ...)`."""
    started = Children()
    yield started
    started.kill_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test proves nothing, so it fails."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skips, and a skip fails: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that skips itself fails too."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skips itself, and a skip fails"
    return report
