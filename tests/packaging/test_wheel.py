"""What `pip install warmer` puts on a machine, and what it must not."""

import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import Installed
from tests.processes import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
SHARED = {"jobs", "config", "systemd"}

# What only a worker or `warmer serve` needs: a service that reads pays for none of it.
HEAVY = ["arq", "httpx", "aiohttp", "sentry_sdk", "starlette", "uvicorn", "rich"]


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def _files(folder: str) -> set[str]:
    return {
        path.relative_to(CHECKOUT).as_posix()
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_warmer_is_the_only_top_level_name(names: list[str]) -> None:
    top = {name.partition("/")[0] for name in names}

    assert top == {"warmer", f"warmer-{VERSION}.dist-info", f"warmer-{VERSION}.data"}


def test_the_package_is_whole(names: list[str]) -> None:
    inside = {name for name in names if name.startswith("warmer/")}

    assert inside == _files("warmer")


def test_the_package_brings_its_types_scripts_and_protocol(names: list[str]) -> None:
    assert "warmer/py.typed" in names
    assert "warmer/store/PROTOCOL.md" in names
    assert any(name.startswith("warmer/store/lua/") for name in names)


def test_shared_data_is_jobs_config_and_systemd(names: list[str]) -> None:
    below = f"warmer-{VERSION}.data/data/share/warmer/"
    data = {name for name in names if name.startswith(f"warmer-{VERSION}.data/")}

    shared = {name.removeprefix(below) for name in data}
    assert shared == set().union(*(_files(folder) for folder in SHARED))
    assert {name.partition("/")[0] for name in shared} == SHARED


def test_config_and_systemd_hold_no_code(names: list[str]) -> None:
    assert not [
        name
        for name in names
        if name.endswith(".py") and ("/config/" in name or "/systemd/" in name)
    ]


def test_installing_puts_the_shared_data_where_the_worker_looks(
    installed: Installed,
) -> None:
    share = installed.prefix / "share" / "warmer"

    assert {path.name for path in share.iterdir()} == SHARED
    assert (share / "jobs" / "worker.py").is_file()


def test_the_command_says_its_version(installed: Installed) -> None:
    assert VERSION in installed.run("warmer", "--version")


def test_warmer_is_imported_from_the_wheel(installed: Installed) -> None:
    where = installed.run("python", "-c", "import warmer; print(warmer.__file__)")

    assert Path(where.strip()).is_relative_to(installed.prefix)


def test_neither_jobs_nor_config_becomes_importable(installed: Installed) -> None:
    found = installed.run(
        "python",
        "-c",
        "from importlib.util import find_spec as find\n"
        "print([find(name) for name in ('jobs', 'config', 'systemd', 'tests')])",
    )

    assert found.strip() == "[None, None, None, None]"


def test_importing_warmer_loads_nothing_that_only_workers_need(
    installed: Installed,
) -> None:
    loaded = installed.run(
        "python",
        "-c",
        "import sys, warmer\n"
        "assert warmer.CacheClient\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))",
    )

    assert loaded.strip() == "[]"


def test_every_module_of_the_wheel_imports(installed: Installed) -> None:
    installed.run(
        "python",
        *("-W", "error"),
        "-c",
        "import importlib, pkgutil, warmer\n"
        "for module in pkgutil.walk_packages(warmer.__path__, 'warmer.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)",
    )
