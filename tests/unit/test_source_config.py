"""What a source can be declared as, and what is said about every mistake."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from warmer.errors import ConfigError
from warmer.ingest.formats import FORMATS, reader
from warmer.model.dataset_config import Configuration, configuration_of
from warmer.model.source import (
    Auth,
    Before,
    OnRegression,
    Order,
    RowId,
    Scheme,
    Snapshot,
    Source,
    StreamIn,
)
from warmer.settings import Source as SourceSettings
from warmer.settings import read_settings

CACHE = '[cache]\nurl = "redis://127.0.0.1:6379/0"\n'
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - a published example


def configure(
    folder: Path, text: str, environment: dict[str, str] | None = None
) -> Configuration:
    file = folder / "warmer.toml"
    file.write_text(CACHE + text)
    return configuration_of(read_settings(file, environment=environment or {}))


def declared(
    folder: Path, lines: str, environment: dict[str, str] | None = None
) -> Source:
    text = f"[sources.shop-db]\n{lines}\n"
    return configure(folder, text, environment).sources["shop-db"]


def test_a_source_needs_only_its_format(tmp_path: Path) -> None:
    """R-INV-1: what is not declared is what most databases are."""
    source = declared(tmp_path, 'format = "debezium"')
    assert source.name == "shop-db"
    assert source.order is Order.ROW
    assert source.snapshot is Snapshot.WARM
    assert source.before is None
    assert source.auth is None
    assert source.stream is None
    assert source.on_regression is OnRegression.REPORT
    row = RowId("shop", "public", "product", key=[42])
    (template,) = source.table(row).entities
    assert template.entity(row, {}) == "product:42"


def test_everything_can_be_declared(tmp_path: Path) -> None:
    source = declared(
        tmp_path,
        """
        format = "debezium"
        order = "commit"
        snapshot = "ignore"
        before = "full"
        entities = []
        signature = "standard-webhooks"
        secrets = ["env:NEW_SECRET", "env:OLD_SECRET"]
        tolerance = "1m"
        version_fields = ["version"]
        key_header = "X-DEBEZIUM-KEY"
        dedupe_for = "1h"
        regression_after = "2m"
        regression_entities = 9
        on_regression = "open_epoch"
        [sources.shop-db.tables."public.order_line"]
        key = ["order_id", "line"]
        entities = ["order:{order_id}"]
        [sources.shop-db.stream]
        url = "redis://127.0.0.1:6390/0"
        names = ["shop.public.product", "shop.public.price"]
        group = "cache"
        trim = false
        """,
        {"NEW_SECRET": SECRET, "OLD_SECRET": "older"},
    )
    assert source.auth == Auth(
        Scheme.STANDARD_WEBHOOKS, (SECRET.encode(), b"older"), 60_000
    )
    assert source.stream == StreamIn(
        ("shop.public.product", "shop.public.price"), "cache", trim=False
    )
    assert (source.order, source.snapshot) == (Order.COMMIT, Snapshot.IGNORE)
    assert source.before is Before.FULL
    assert source.key_header == "x-debezium-key"
    assert (source.dedupe_ms, source.regression_ms) == (3_600_000, 120_000)
    line = RowId("shop", "public", "order_line")
    table = source.table(line)
    assert table.key == ("order_id", "line")
    assert table.entities[0].entity(line, {"order_id": 7}) == "order:7"
    assert not source.table(RowId("shop", "public", "other")).entities


def test_a_secret_stands_in_no_repr(tmp_path: Path) -> None:
    lines = 'format = "plain"\nsignature = "bearer"\nsecrets = ["env:TOKEN"]'
    source = declared(tmp_path, lines, {"TOKEN": SECRET})
    assert SECRET not in repr(source)
    text = f"[sources.shop-db]\n{lines}\n"
    assert SECRET not in repr(configure(tmp_path, text, {"TOKEN": SECRET}))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("shop.public.product", RowId("shop", "public", "product")),
        ("public.product", RowId("shop", "public", "product")),
        ("shop.product", RowId("shop", "", "product")),
        ("shop.product", RowId("shop", "dbo", "product")),
        ("product", RowId("shop", "public", "product")),
    ],
)
def test_a_table_is_found_by_any_of_its_names(
    tmp_path: Path, name: str, row: RowId
) -> None:
    source = declared(
        tmp_path,
        f'format = "debezium"\n[sources.shop-db.tables."{name}"]\nentities = ["p:{{id}}"]',
    )
    assert source.table(row).entities[0].text == "p:{id}"


def test_the_fullest_name_of_a_table_counts(tmp_path: Path) -> None:
    source = declared(
        tmp_path,
        """format = "debezium"
        [sources.shop-db.tables.product]
        entities = ["any:{id}"]
        [sources.shop-db.tables."audit.product"]
        entities = []
        """,
    )
    assert source.table(RowId("shop", "public", "product")).entities
    assert not source.table(RowId("shop", "audit", "product")).entities


def test_tables_with_entities_of_their_own_are_ordered_by_commit(
    tmp_path: Path,
) -> None:
    """CDC-ORDER-1: a change's own position does not order what several rows make."""
    table = '[sources.shop-db.tables.line]\nentities = ["order:{order_id}"]'
    assert declared(tmp_path, f'format = "debezium"\n{table}').order is Order.COMMIT
    own = declared(tmp_path, f'format = "debezium"\norder = "row"\n{table}')
    assert own.order is Order.ROW
    ignored = "[sources.shop-db.tables.audit]\nentities = []"
    assert declared(tmp_path, f'format = "debezium"\n{ignored}').order is Order.ROW
    unlisted = 'format = "debezium"\nentities = ["order:{order_id}"]'
    assert declared(tmp_path, unlisted).order is Order.COMMIT


def test_tables_that_share_entities_do_not_compare_their_rows_versions(
    tmp_path: Path,
) -> None:
    """CDC-ORDER-1: two tables' version columns count apart, unless they are said to be one."""
    source = declared(
        tmp_path,
        """
        format = "debezium"
        version_fields = ["version"]
        [sources.shop-db.tables.product]
        entities = ["product:{id}"]
        [sources.shop-db.tables.product_text]
        entities = ["product:{product_id}"]
        [sources.shop-db.tables.price]
        entities = ["product:{product_id}"]
        version_fields = ["product_version"]
        [sources.shop-db.tables.note]
        entities = ["note:{id}"]
        """,
    )
    assert {name: table.version_fields for name, table in source.tables.items()} == {
        "product": (),
        "product_text": (),
        "price": ("product_version",),
        "note": None,
    }


@dataclass(frozen=True)
class Mistake:
    """Lines that are wrong, and what has to be said about them."""

    lines: str
    setting: str
    says: str


MISTAKES = [
    Mistake('format = "debezum"', "format", "did you mean debezium?"),
    Mistake('format = "x"', "format", "must be 'canal'"),
    Mistake("", "format", "is required"),
    Mistake(
        'format = "debezium"\n[sources.shop-db.tables.line]\nversion_fields = ["version"]',
        "tables.line.version_fields",
        "needs version_fields of the source",
    ),
    Mistake('format = "plain"\nsignature = "github"', "", "needs secrets"),
    Mistake('format = "plain"\nsecrets = ["env:TOKEN"]', "", "need a signature"),
    Mistake(
        'format = "plain"\nsignature = "bearer"\nsecrets = ["hunter2hunter2"]',
        "secrets",
        "does not stand in the file",
    ),
    Mistake(
        'format = "plain"\nsignature = "bearer"\nsecrets = ["env:GONE"]',
        "secrets",
        "env:GONE is not there",
    ),
    Mistake(
        'format = "plain"\nsignature = "bearer"\nsecrets = ["env:TOKEN", "env:EMPTY"]',
        "secrets",
        "a secret is empty",
    ),
    Mistake(
        'format = "plain"\nsignature = "standard-webhooks"\nsecrets = ["env:PREFIX"]',
        "secrets",
        "a secret is empty",
    ),
    Mistake('format = "plain"\ntolerance = "0s"', "tolerance", "1s … 1d"),
    Mistake('format = "plain"\nentities = ["product"]', "entities", "names no column"),
    Mistake('format = "plain"\nentities = ["p:{id"]', "entities", "lone brace"),
    Mistake('format = "plain"\nentities = ["p:{a b}"]', "entities", "column"),
    Mistake(
        'format = "plain"\n[sources.shop-db.tables."a.b"]\nentities = ["p:{"]',
        'tables."a.b".entities',
        "lone brace",
    ),
    Mistake(
        'format = "plain"\n[sources.shop-db.stream]\nnames = ["s"]', "stream", "url"
    ),
    Mistake(
        'format = "plain"\n[sources.shop-db.stream]\nurl = "redis://h"\nnames = []',
        "stream.names",
        "1",
    ),
    Mistake('format = "plain"\nordre = "row"', "ordre", "did you mean"),
    Mistake(
        'format = "plain"\ncloudevents_source = "/shop"',
        "cloudevents_source",
        "cloudevents",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.lines[-50:])
def test_a_mistake_is_named_by_field_and_by_what_is_allowed(
    tmp_path: Path, mistake: Mistake
) -> None:
    with pytest.raises(ConfigError) as refused:
        declared(
            tmp_path, mistake.lines, {"TOKEN": "t", "EMPTY": "", "PREFIX": "whsec_"}
        )
    path = ".".join(filter(None, ("sources.shop-db", mistake.setting)))
    told = [
        problem
        for problem in refused.value.problems
        if problem.setting.startswith(path) and mistake.says in problem.message
    ]
    assert told, refused.value
    assert "hunter2" not in str(refused.value)
    assert told[0].where.startswith(str(tmp_path / "warmer.toml:"))


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        ('listen = "9400"', "host:port"),
        ('listen = "127.0.0.1:99999"', "host:port"),
        ('max_body = "1GiB"', "64MiB"),
        ("max_backlog = 0", "1 …"),
    ],
)
def test_a_mistake_in_serve_is_named(tmp_path: Path, serve: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        configure(tmp_path, f"[serve]\n{serve}\n")


def test_every_format_can_be_declared_and_read() -> None:
    declarable = SourceSettings.model_json_schema()["properties"]["format"]["enum"]
    assert tuple(declarable) == FORMATS
    for name in FORMATS:
        assert reader(name)([], Source("shop-db", name)) == []


PRODUCT = """
[datasets.product]
key = "product:v{schema}:{id}"
entities = ["shop-db/product:{id}"]
fresh_for = "60s"
[datasets.product.version]
means = "entity"
source = "shop-db"
entity = "product:{id}"
header = "X-Version"
"""


def test_a_loads_version_is_not_compared_with_positions_of_a_log(
    tmp_path: Path,
) -> None:
    """STALE-SET-1: a row's version 5 and a log's position 22485032 are two meanings."""
    shop = '[sources.shop-db]\nformat = "debezium"\n'
    with pytest.raises(ConfigError, match=r"sources\.shop-db\.version_fields"):
        configure(tmp_path, shop + PRODUCT)
    configure(tmp_path, shop + 'version_fields = ["version"]\n' + PRODUCT)
    configure(tmp_path, shop + 'order = "none"\n' + PRODUCT)
    configure(tmp_path, shop.replace("debezium", "plain") + PRODUCT)


def test_a_streams_server_is_set_by_the_environment(tmp_path: Path) -> None:
    """As every other server's: no password stands in the file."""
    source = """
    [sources.shop-db]
    format = "debezium"
    [sources.shop-db.stream]
    names = ["shop.public.product"]
    """
    environment = {"WARMER_SOURCES__SHOP_DB__STREAM__URL": "redis://:pw@127.0.0.1/0"}
    stream = configure(tmp_path, source, environment).settings.sources["shop-db"].stream
    assert stream is not None
    assert stream.url is not None
    assert stream.url.get_secret_value() == "redis://:pw@127.0.0.1/0"
    with pytest.raises(ConfigError, match="nobody reads this name"):
        configure(tmp_path, source, {"WARMER_SOURCES__SHOP_DB__STREAM__ULR": "x"})


def test_a_secret_may_have_a_name_like_a_setting(tmp_path: Path) -> None:
    lines = 'format = "plain"\nsignature = "bearer"\nsecrets = ["env:WARMER_SHOP"]'
    assert declared(tmp_path, lines, {"WARMER_SHOP": "token"}).auth is not None
