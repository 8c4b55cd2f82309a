"""The demo's stage is set up so that the limit holds by arithmetic, not by luck."""

from pathlib import Path

import pytest

from tests.processes import CHECKOUT
from warmer.model.dataset_config import configuration_of
from warmer.ops.demo.household import DemoError
from warmer.ops.demo.stage import (
    LOCAL_LIMIT,
    ORIGIN_LIMIT,
    READERS,
    VISITORS,
    WORKERS,
    demo_config,
)
from warmer.settings import read_settings

TEMPLATE = (CHECKOUT / "config" / "demo.toml").read_text()
CACHE, ORIGIN = "redis://127.0.0.1:7001/0", "http://127.0.0.1:7002"


def test_the_shares_of_all_processes_fit_the_origins_limit() -> None:
    """R-ADM-1: each process keeps its own share, and together they are no more."""
    assert 1 <= LOCAL_LIMIT * (WORKERS + READERS + VISITORS) <= ORIGIN_LIMIT


def test_a_run_has_its_own_addresses_and_its_share(
    tmp_path: Path,
) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(demo_config(TEMPLATE, cache_url=CACHE, origin_url=ORIGIN))
    settings = configuration_of(read_settings(file, environment={})).settings

    assert settings.cache.url is not None
    assert settings.cache.url.get_secret_value() == CACHE
    assert settings.origins["shop"].base_url == ORIGIN
    assert settings.origins["shop"].local_limit == LOCAL_LIMIT


def test_a_template_that_names_no_address_is_refused() -> None:
    with pytest.raises(DemoError, match="base_url stands there 0 times"):
        demo_config(
            TEMPLATE.replace("base_url", "address"), cache_url=CACHE, origin_url=ORIGIN
        )
