"""What can be set, and what is said about every mistake."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import CHECKOUT
from warmer.errors import ConfigError
from warmer.model.dataset import ColdStart, Jitter, VersionMeans
from warmer.model.dataset_config import (
    Configuration,
    configuration_of,
    datasets_of,
)
from warmer.settings import Cache, Spread, load_settings, parse_duration, read_settings
from warmer.settings.units import parse_size, write_duration, write_size
from warmer.store.keyspace import Keyspace

CACHE = '[cache]\nurl = "redis://127.0.0.1:6379/0"\n'
SHOP = '[origins.shop]\nbase_url = "http://127.0.0.1:8080"\n'
PRODUCT = """
[datasets.product]
key = "product:v{schema}:{locale}:{id}"
vary = { locale = ["de", "en"] }
entities = ["shop-db/product:{id}"]
fresh_for = "60s"
"""


def configure(
    folder: Path, text: str, environment: dict[str, str] | None = None
) -> Configuration:
    file = folder / "warmer.toml"
    file.write_text(text)
    return configuration_of(read_settings(file, environment=environment or {}))


def refusal(
    folder: Path, text: str, environment: dict[str, str] | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        configure(folder, text, environment)
    return refused.value


@dataclass(frozen=True)
class Mistake:
    """A line that is wrong, and what has to be said about it."""

    line: str
    setting: str
    says: str


DATASET_MISTAKES = [
    Mistake('fresh_for = "0s"', "fresh_for", "1ms … 366d"),
    Mistake('fresh_for = "-5s"', "fresh_for", "1ms … 366d"),
    Mistake("fresh_for = -1", "fresh_for", "1ms … 366d"),
    Mistake('fresh_for = "5256000m"', "fresh_for", "1ms … 366d"),
    Mistake('fresh_for = "99999999999999999d"', "fresh_for", "1ms … 366d"),
    Mistake("fresh_for = inf", "fresh_for", "1ms … 366d"),
    Mistake("fresh_for = true", "fresh_for", "1ms … 366d"),
    Mistake('fresh_for = "a minute"', "fresh_for", "500ms, 60s, 10m, 2h or 7d"),
    Mistake('stale_for = "-1s"', "stale_for", "0 … 366d"),
    Mistake('lease_for = "999ms"', "lease_for", "1s … 10m"),
    Mistake('lease_for = "5s"', "lease_for", "load_timeout + 1s"),
    Mistake('load_timeout = "0s"', "load_timeout", "1ms … 9m"),
    Mistake('jitter = "60%"', "jitter", "0% … 50%"),
    Mistake('jitter = "25h"', "jitter", "0 … 1d"),
    Mistake("early_refresh_beta = nan", "early_refresh_beta", "finite"),
    Mistake("early_refresh_beta = 11", "early_refresh_beta", "equal to 10"),
    Mistake('cold_start = "explode"', "cold_start", "'wait', 'empty' or 'load'"),
    Mistake('cold_start = "empty"', "empty", "is required"),
    Mistake('purge = "gone"', "purge", "'soft' or 'hard'"),
    Mistake('refresh_on = "hot"', "refresh_on", "'cached', 'all' or 'none'"),
    Mistake('compress_above = "1 KiBi"', "compress_above", "1KiB, 16KB or 8MiB"),
    Mistake('max_body = "65MiB"', "max_body", "1 … 64MiB"),
    Mistake("max_waiters = 0", "max_waiters", "1 … 100000"),
    Mistake("schema_version = -1", "schema_version", "0 … 4294967295"),
    Mistake("live_schemas = [2]", "live_schemas", "must hold schema_version"),
    Mistake(
        'stale_for = "9s"\nstale_if_error_for = "8s"', "stale_if_error_for", "0, or"
    ),
    Mistake('key = "product:{id}"', "key", "{schema} is missing"),
    Mistake('key = "p:v{schema}:{deadline}:{id}"', "key", "'deadline'"),
    Mistake('key = "p:v{schema}:{dataset}:{id}"', "key", "'dataset'"),
    Mistake('key = "p:v{schema}:{load}:{id}"', "key", "'load'"),
    Mistake('key = "p:v{schema}:{decode}:{id}"', "key", "'decode'"),
    Mistake('key = "p:v{schema}:{Id}"', "key", "lower_case"),
    Mistake('entities = ["product:{id}"]', "entities", "source/entity"),
    Mistake('entities = ["Shop DB/product:{id}"]', "entities", "source:"),
    Mistake('entities = ["shop-db/product:{pid}"]', "entities", "part 'id'"),
    Mistake('vary = { locale = ["de"], plan = ["a"] }', "vary.plan", "not a part"),
    Mistake("vary = { locale = [] }", "vary.locale", "needs values"),
    Mistake('vary = { locale = ["de", "de"] }', "vary.locale", "each of them once"),
    Mistake("vary = {}", "entities", "bind part 'locale'"),
    Mistake('origin = "shpo"\npath = "/"', "origin", "there are: shop"),
    Mistake('origin = "shop"', "path", "is required"),
    Mistake('path = "/x"', "path", "has no origin"),
    Mistake('origin = "shop"\npath = "x"', "path", "begin with /"),
    Mistake('origin = "shop"\npath = "/{sku}"', "path", "{sku} is not a part"),
    Mistake('tenant = "shop"', "tenant", "is not a part of the key"),
    Mistake("limit = 5", "limit", "an origin that has a limit"),
    Mistake(
        'tenant = "id"\ntenant_limit = 5', "tenant_limit", "an origin that has a limit"
    ),
    Mistake('fresh_fro = "60s"', "fresh_fro", "did you mean fresh_for?"),
    Mistake('version.source = "shop-db"', "version.means", "is required"),
    Mistake('version = { means = "row" }', "version.means", "'none', 'entity'"),
    Mistake('version = { means = "entity" }', "version.source", "source:"),
    Mistake(
        'version = { means = "position", source = "shopdb" }',
        "version.source",
        "no entity of this dataset",
    ),
    Mistake(
        'version = { means = "entity", source = "shop-db" }',
        "version.entity",
        "is required",
    ),
    Mistake(
        'version = { means = "entity", source = "shop-db", entity = "prod:{id}" }',
        "version.entity",
        "none of this dataset's entities",
    ),
    Mistake(
        'version = { means = "position", source = "shop-db" }\n'
        'origin = "shop"\npath = "/"',
        "version",
        "header or pointer",
    ),
    Mistake(
        'version = { means = "position", source = "shop-db", pointer = "v" }\n'
        'origin = "shop"\npath = "/"',
        "version.pointer",
        "JSON pointer",
    ),
]


@pytest.mark.parametrize(
    "mistake", DATASET_MISTAKES, ids=[mistake.line for mistake in DATASET_MISTAKES]
)
def test_a_wrong_dataset_is_refused_by_file_field_and_range(
    tmp_path: Path, mistake: Mistake
) -> None:
    """TTL-1, TTL-3, TTL-5: no zero, no negative, no overflow; the range is said."""
    name = mistake.line.partition(" ")[0].partition(".")[0]
    kept = [line for line in PRODUCT.splitlines() if not line.startswith(f"{name} ")]

    error = refusal(tmp_path, CACHE + SHOP + "\n".join([*kept, mistake.line, ""]))

    [problem, *_] = [
        problem
        for problem in error.problems
        if problem.setting == f"datasets.product.{mistake.setting}"
    ]
    assert mistake.says in problem.message
    assert problem.where.startswith(str(tmp_path / "warmer.toml:"))


OTHER_MISTAKES = [
    ("[control]\n", "cache", "is required"),
    ("[cache]\n", "cache", "needs url, or sentinels"),
    ('[cache]\nurl = "http://x"\n', "cache.url", "redis://"),
    ('[cache]\nsentinels = ["a:1"]\n', "cache", "sentinel_service"),
    (CACHE + 'sentinels = ["a:1"]\n', "cache", "not both"),
    ('[cache]\nsentinels = ["a"]\n', "cache.sentinels.0", "host:port"),
    (CACHE + 'timeout = "11s"\n', "cache.timeout", "1ms … 10s"),
    (CACHE + 'lease_name = "lock"\n', "cache.lease_name", "{key} or {plain_key} once"),
    (CACHE + 'lease_name = "{key}"\n', "cache.lease_name", "something besides"),
    (CACHE + 'lease_name = "{key}:{x}"\n', "cache.lease_name", "no other braces"),
    (CACHE + "max_connections = 1\n", "cache.max_connections", "2 … 1024"),
    (CACHE + "[cahce]\n", "cahce", "did you mean cache?"),
    (CACHE + "[origins.shop]\n", "origins.shop.base_url", "is required"),
    (
        CACHE + '[origins.shop]\nbase_url = "http://me:pw@shop/?q=1"\n',
        "origins.shop.base_url",
        "no query",
    ),
    (CACHE + SHOP + "local_limit = 0\n", "origins.shop.local_limit", "1 … 1024"),
    (CACHE + SHOP + "limit = 0\n", "origins.shop.limit", "1 … 65536"),
    (CACHE + SHOP + 'limit = 9\nreserve = "5s"\n', "origins.shop.reserve", "0% … 50%"),
    (CACHE + SHOP + "limit_floor = 2\n", "origins.shop", "need a limit"),
    (CACHE + SHOP + "rate = 10\n", "origins.shop", "need a limit"),
    (CACHE + SHOP + "limit = 2\nlimit_floor = 3\n", "origins.shop", "1 … limit"),
    (
        CACHE + SHOP + 'headers = { "a b" = "c" }\n',
        'origins.shop.headers."a b"',
        "name",
    ),
    (
        CACHE + SHOP + 'headers = { x = "a\\nb" }\n',
        "origins.shop.headers.x",
        "one line",
    ),
    (CACHE + '[origins.Shop]\nbase_url = "http://x"\n', "origins.Shop", "a-z"),
    (CACHE + "[worker]\nconcurrency = 0\n", "worker.concurrency", "1 … 1024"),
    (CACHE + '[worker]\nconcurrency = "many"\n', "worker.concurrency", "1 … 1024"),
    (CACHE + '[sentry]\ndsn = "sentry.io"\n', "sentry.dsn", "https://KEY@HOST/PROJECT"),
]


@pytest.mark.parametrize(("text", "setting", "says"), OTHER_MISTAKES)
def test_a_wrong_setting_is_refused_by_field_and_range(
    tmp_path: Path, text: str, setting: str, says: str
) -> None:
    error = refusal(tmp_path, text)

    assert [says in p.message for p in error.problems if p.setting == setting] == [True]


@given(
    st.lists(st.sampled_from(["{key}", "{plain_key}", "{", "}", "lock", ":"])).map(
        "".join
    )
)
def test_a_lease_name_is_refused_where_the_keyspace_would_refuse_it(name: str) -> None:
    def accepts(make: Callable[[], object]) -> bool:
        try:
            make()
        except (ValueError, ConfigError):
            return False
        return True

    settings = {"url": "redis://x", "lease_name": name}
    assert accepts(lambda: Cache.model_validate(settings)) is accepts(
        lambda: Keyspace(name)
    )


def test_every_mistake_is_named_at_once_with_its_line(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        '[cache]\nurl = "redis://x"\ntimeout = "1h"\n'
        '[datasets.a]\nkey = "a:v{schema}:{id}"\nfresh_for = "0s"\n'
        '[datasets.b]\nkey = "b:v{schema}:{id}"\nfresh_for = "1s"\norigin = "none"\n',
        {"WARMER_CACHE__ULR": "redis://y"},
    )

    file = tmp_path / "warmer.toml"
    assert [(problem.where, problem.setting) for problem in error.problems] == [
        ("WARMER_CACHE__ULR", ""),
        (f"{file}:3", "cache.timeout"),
        (f"{file}:6", "datasets.a.fresh_for"),
        (f"{file}:10", "datasets.b.origin"),
        (f"{file}:7", "datasets.b.path"),
    ]


def test_one_entity_that_reaches_too_many_keys_is_refused(tmp_path: Path) -> None:
    values = ", ".join(f'"{value}"' for value in range(101))

    error = refusal(
        tmp_path,
        f'{CACHE}[datasets.a]\nkey = "a:v{{schema}}:{{x}}:{{y}}"\nfresh_for = "1s"\n'
        f'entities = ["s/t:{{id}}"]\nvary = {{ x = [{values}], y = [{values}] }}\n',
    )

    assert "reaches 10201 keys, allowed are 10000" in str(error)


def test_a_missing_file_is_an_error_and_not_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "nowhere.toml"

    with pytest.raises(ConfigError) as refused:
        load_settings(file)

    assert str(refused.value) == f"{file}: cannot be read: No such file or directory"


def test_without_any_file_it_is_said_where_one_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as refused:
        configuration_of(read_settings(environment={}))

    assert str(refused.value) == (
        "no file: cache: is required; settings are read from --config, else "
        "$WARMER_CONFIG, else warmer.toml, config/warmer.toml, /etc/warmer/warmer.toml"
    )


def test_the_file_is_the_one_that_is_named_or_the_first_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    for name in ("config/warmer.toml", "other.toml"):
        (tmp_path / name).write_text(CACHE)

    found = read_settings(environment={}).places[()]
    (tmp_path / "warmer.toml").write_text(CACHE)
    nearer = read_settings(environment={}).places[()]
    named = read_settings(environment={"WARMER_CONFIG": "other.toml"}).places[()]
    given = read_settings("config/warmer.toml", environment={}).places[()]

    assert (found, nearer) == ("config/warmer.toml", "warmer.toml")
    assert (named, given) == ("other.toml", "config/warmer.toml")


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    error = refusal(tmp_path, CACHE + "timeout = = 1\n")

    assert f"{tmp_path / 'warmer.toml'}:3: is not TOML" in str(error)


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("WARMER_REDIS_ULR", "WARMER_CACHE__URL"),
        ("WARMER_CACHE__TIMEUOT", "WARMER_CACHE__TIMEOUT"),
        ("WARMER_DATASETS__PRODUCT__FRESH_FRO", "WARMER_DATASETS__PRODUCT__FRESH_FOR"),
        ("WARMER_WORKER", "WARMER_WORKER"),
        ("WARMER_DATASETS__PRODCT__FRESH_FOR", "WARMER_DATASETS__PRODUCT__FRESH_FOR"),
    ],
)
def test_a_mistyped_variable_is_not_ignored(
    tmp_path: Path, name: str, guess: str
) -> None:
    error = refusal(tmp_path, CACHE + PRODUCT, {name: "x"})

    assert f"{name}: nobody reads this name; did you mean {guess}" in str(error)


def test_what_kubernetes_sets_for_a_service_called_warmer_is_no_mistake(
    tmp_path: Path,
) -> None:
    configure(
        tmp_path,
        CACHE,
        {
            "WARMER_PORT": "tcp://10.0.0.1:80",
            "WARMER_PORT_80_TCP_ADDR": "10.0.0.1",
            "WARMER_SERVICE_HOST": "10.0.0.1",
            "WARMER_SERVE_SERVICE_PORT_HTTP": "80",
        },
    )


def test_environment_goes_before_credentials_and_those_before_the_file(
    tmp_path: Path,
) -> None:
    """SYSTEMD-12: the newline at the end of a credential is not part of it."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "warmer_cache__password").write_text("from a credential\n")
    (credentials / "warmer_cache__username").write_text("credential\n")
    (credentials / "another_services_secret").write_text("not ours")
    environment = {
        "CREDENTIALS_DIRECTORY": str(credentials),
        "WARMER_CACHE__USERNAME": "environment",
    }

    settings = configure(
        tmp_path,
        CACHE + 'username = "file"\npassword = "file"\ntimeout = "7ms"\n',
        environment,
    ).settings

    assert settings.cache.password is not None
    assert settings.cache.password.get_secret_value() == "from a credential"
    assert settings.cache.username == "environment"
    assert settings.cache.timeout == timedelta(milliseconds=7)
    places = settings.places
    assert places["cache", "password"] == "credential warmer_cache__password"
    assert places["cache", "username"] == "WARMER_CACHE__USERNAME"
    assert places["cache", "timeout"].endswith("warmer.toml:5")


def test_a_flag_goes_before_everything(tmp_path: Path) -> None:
    file = tmp_path / "warmer.toml"
    file.write_text(CACHE + "[worker]\nconcurrency = 1\n")

    reading = read_settings(
        file,
        flags={"worker.concurrency": 3},
        environment={"WARMER_WORKER__CONCURRENCY": "2"},
    )

    assert reading.settings is not None
    assert reading.settings.worker.concurrency == 3
    assert reading.places["worker", "concurrency"] == "flag worker.concurrency"


def test_a_variable_reaches_names_that_are_spelled_with_dashes(tmp_path: Path) -> None:
    environment = {
        "WARMER_ORIGINS__MY_SHOP__BASE_URL": "http://other",
        "WARMER_WORKER__LANES": '["warm"]',
    }

    settings = configure(
        tmp_path, CACHE + '[origins.my-shop]\nbase_url = "http://x"\n', environment
    ).settings

    assert settings.origins["my-shop"].base_url == "http://other"
    assert settings.worker.lanes == ("warm",)


def test_a_header_takes_its_secret_from_a_credential_or_the_environment(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop_token").write_text("hunter2\n")

    settings = configure(
        tmp_path,
        CACHE + SHOP + "headers = { Authorization = "
        '"Bearer credential:shop_token", X-Key = "env:SHOP_KEY", Accept = "*/*" }\n',
        {"CREDENTIALS_DIRECTORY": str(tmp_path), "SHOP_KEY": "swordfish"},
    ).settings

    headers = settings.origins["shop"].headers
    assert {name: value.get_secret_value() for name, value in headers.items()} == {
        "Authorization": "Bearer hunter2",
        "X-Key": "swordfish",
        "Accept": "*/*",
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("Bearer hunter2", "write env:NAME or credential:NAME"),
        ("credential:shop_token", "credential:shop_token is not there"),
        ("env:SHOP_TOKEN", "env:SHOP_TOKEN is not there"),
    ],
)
def test_a_secret_in_the_file_or_a_missing_one_is_refused(
    tmp_path: Path, value: str, says: str
) -> None:
    error = refusal(
        tmp_path, f'{CACHE}{SHOP}headers = {{ Authorization = "{value}" }}\n'
    )

    assert says in str(error)
    assert "hunter2" not in str(error)


def test_no_secret_and_no_wrong_value_is_repeated(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        '[cache]\nurl = "hunter2"\npassword = ["hunter2"]\ntimeout = "hunter2"\n'
        '[sentry]\ndsn = "hunter2"\n[worker]\nlanes = "hunter2"\n',
        {"WARMER_CONTROL__URL": "hunter2", "WARMER_CACHE__PASWORD": "hunter2"},
    )

    assert len(error.problems) == 7
    assert "hunter2" not in f"{error} {error!r} {error.problems}"


def test_secrets_are_not_in_the_representation_of_settings(tmp_path: Path) -> None:
    settings = configure(
        tmp_path,
        '[cache]\nurl = "redis://me:hunter2@x"\npassword = "hunter2"\n'
        '[sentry]\ndsn = "https://hunter2@sentry.example/1"\n',
    ).settings

    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    settings = configure(tmp_path, CACHE).settings

    with pytest.raises(ValueError, match="frozen"):
        settings.cache.timeout = timedelta(1)  # type: ignore[misc]


def test_a_dataset_becomes_what_the_file_says(tmp_path: Path) -> None:
    """R-POL-1, R-JIT-1: freshness, availability and lease are three settings."""
    text = (
        CACHE
        + SHOP
        + PRODUCT
        + 'stale_for = "30s"\nstale_if_error_for = "10m"\njitter = "5s"\n'
        'lease_for = "5s"\nload_timeout = "3s"\ncold_start = "empty"\nempty = []\n'
        'origin = "shop"\npath = "/products/{id}?locale={locale}"\n'
        'compress_above = "16KB"\n'
        "[datasets.product.version]\n"
        'means = "entity"\nsource = "shop-db"\nentity = "product:{id}"\nheader = "V"\n'
    )
    configuration = configure(tmp_path, text)

    product = configuration.datasets["product"]
    assert (product.fresh_ms, product.stale_ms, product.error_ms) == (
        60_000,
        30_000,
        600_000,
    )
    assert (product.lease_ms, product.load_timeout_ms) == (5_000, 3_000)
    assert product.jitter == Jitter(absolute_ms=5_000)
    assert (product.cold_start, product.empty) == (ColdStart.EMPTY, [])
    assert product.compress_above == 16_000
    assert product.live_schemas == (1,)
    assert product.version.means is VersionMeans.ENTITY
    keys = [key.text for key in product.keys_of("shop-db", "product:42")]
    assert keys == ["product:v1:de:42", "product:v1:en:42"]
    assert datasets_of(configuration.settings).keys() == {"product"}


def test_by_default_nothing_old_is_served(tmp_path: Path) -> None:
    """R-POL-4: stale serving is declared by the data's owner, never a default."""
    product = configure(tmp_path, CACHE + PRODUCT).datasets["product"]

    assert (product.stale_ms, product.error_ms, product.negative_ms) == (0, 0, 0)


@pytest.mark.parametrize("name", ["warmer.toml", "demo.toml"])
def test_the_shipped_files_are_valid(name: str) -> None:
    reading = read_settings(CHECKOUT / "config" / name, environment={})

    assert configuration_of(reading).datasets


@given(st.integers(min_value=0, max_value=366 * 86_400_000))
def test_a_duration_reads_back_as_it_is_written(ms: int) -> None:
    assert parse_duration(write_duration(timedelta(milliseconds=ms))) == ms


@given(st.integers(min_value=0, max_value=2**40))
def test_a_size_reads_back_as_it_is_written(size: int) -> None:
    assert parse_size(write_size(size)) == size


@pytest.mark.parametrize("text", ["10%", "12.5%", "5s", "0s", "1d"])
def test_a_spread_reads_back_as_it_is_written(text: str) -> None:
    assert str(Spread.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("60s", 60_000),
        ("10m", 600_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1.5s", 1_500),
        (" 5 s ", 5_000),
        (0.25, 250),
        (7, 7_000),
        ("60", 60_000),
        ("1e9s", None),
        ("", None),
        (None, None),
        ("\u0663s", None),
    ],
)
def test_durations_as_people_write_them(text: object, ms: int | None) -> None:
    assert parse_duration(text) == ms
