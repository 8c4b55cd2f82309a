"""Names on the cache server, read back into the keys that a scan reaches."""

from random import Random

import pytest

from tests.datasets import product
from warmer.invalidate import Touch
from warmer.model.dataset import Dataset, EntityPattern
from warmer.model.key import MAX_KEY_BYTES, KeyTemplate
from warmer.model.prefix_scan import PrefixAsk
from warmer.model.version import SourceVersion
from warmer.prefix_purge import PrefixPurge
from warmer.store.keyspace import Keyspace

VERSION = SourceVersion.of("shop-db", 7)


def ask(prefix: str = "product:", source: str = "shop-db") -> PrefixAsk:
    return PrefixAsk(source, prefix, None, VERSION, "e1")


def touched(asks: list[PrefixAsk], *datasets: Dataset, names: list[str]) -> list[Touch]:
    purge = PrefixPurge(asks, {dataset.name: dataset for dataset in datasets})
    return list(purge.touches(names))


def texts(touches: list[Touch]) -> list[str]:
    return [touch.key.text for touch in touches]


def listed() -> Dataset:
    """A list that any product changes."""
    return product(
        name="list",
        template=KeyTemplate("list:v{schema}:{locale}"),
        vary={"locale": ("de", "en")},
        entities=(EntityPattern("shop-db/product:{any_id}"),),
    )


def test_keys_whose_entity_begins_so_are_reached_by_the_scope_of_their_entity() -> None:
    """R-INV-4: what is said of one row, and of all, is compared."""
    names = ["product:v3:1", "product:v3:2", "stock:v3:1", "lock:{product:v3:1}"]

    touches = touched([ask("product:1")], product(), names=names)

    assert texts(touches) == ["product:v3:1"]
    assert touches[0].scope == "shop-db/product:1"
    assert touches[0].event.version == VERSION
    assert touches[0].key == product().key({"id": 1})


def test_a_key_that_does_not_bind_the_entity_is_reached_by_the_scope_of_its_source() -> (
    None
):
    """R-INV-4: a list of all products contains those of the truncated table."""
    touches = touched([ask()], listed(), names=["list:v3:de", "list:v3:en"])

    assert [touch.scope for touch in touches] == ["shop-db", "shop-db"]


@pytest.mark.parametrize(
    ("prefix", "reached"),
    [("", 2), ("product:", 2), ("product:7", 1), ("prod", 2), ("price:", 0)],
)
def test_a_prefix_reaches_what_it_may_mean_and_nothing_else(
    prefix: str, reached: int
) -> None:
    """R-INV-4: too much costs loads, too little serves old data."""
    names = ["product:v3:1", "list:v3:de"]

    assert len(touched([ask(prefix)], product(), listed(), names=names)) == reached


def test_two_patterns_of_one_dataset_are_two_changes_of_its_key() -> None:
    """R-INV-4: each scope has a floor of its own."""
    patterns = ("shop-db/product:{id}", "shop-db/price:{id}", "stock/product:{id}")
    dataset = product(entities=tuple(map(EntityPattern, patterns)))

    touches = touched([ask("")], dataset, names=["product:v3:1"])

    assert [touch.scope for touch in touches] == [
        "shop-db/product:1",
        "shop-db/price:1",
    ]


def test_all_live_schema_versions_are_reached_and_no_other() -> None:
    """R-REC-4."""
    names = [f"product:v{schema}:1" for schema in (1, 2, 3, 4)]

    touches = touched([ask()], product(live_schemas=(2, 3)), names=names)

    assert [touch.key.schema_version for touch in touches] == [2, 3]


def test_what_looks_like_a_pattern_in_a_template_is_text() -> None:
    """KEYS-1: a neighbour whose name a wildcard would match survives."""
    dataset = product(template=KeyTemplate("app[1]*:v{schema}:{id}"))
    names = ["app[1]*:v3:1", "app1x:v3:1", "app[1]x:v3:1"]

    assert texts(touched([ask()], dataset, names=names)) == ["app[1]*:v3:1"]


def test_what_looks_like_a_pattern_in_a_prefix_is_text() -> None:
    """KEYS-1."""
    assert touched([ask("product:*")], product(), names=["product:v3:1"]) == []


def test_a_key_that_its_name_does_not_tell_is_reached_and_not_refreshed() -> None:
    """R-INV-4: over 512 bytes it ends in a digest."""
    long_key = product().key({"id": "x" * MAX_KEY_BYTES})

    (touch,) = touched([ask()], product(), names=[long_key.text])

    assert (touch.key.text, touch.scope, touch.told) == (
        long_key.text,
        "shop-db",
        False,
    )
    assert touch.key.digest() == long_key.digest()


def test_every_key_of_a_template_is_read_back_from_its_name() -> None:
    """KEYS-1: whatever its parts hold."""
    random = Random(7)
    template = KeyTemplate("a*[b:v{schema}:{one}-:{two}:{three}?")
    alphabet = "ab:;{}%*?[]\\-\x00\n é~ "
    for _ in range(2_000):
        parts = {
            name: "".join(random.choices(alphabet, k=random.randrange(6)))
            for name in template.names
        }
        schema = random.randrange(2**32)
        key = template.key("d", schema, parts)

        assert template.parse(key.text) == (schema, dict(key.parts))


@pytest.mark.parametrize(
    "text", ["product:v03:1", "product:v3:%2f", "product:v3:a:b", "product:v3", "é"]
)
def test_a_name_that_the_template_does_not_make_is_no_key(text: str) -> None:
    """KEYS-1: there is one spelling of each key."""
    assert product().template.parse(text) is None


@pytest.mark.parametrize("text", ["product:v3:1", "product:{shop}:1"])
def test_a_guards_name_tells_its_key(text: str) -> None:
    """R-INV-3: a load that runs without an entry is found by its guard."""
    keyspace = Keyspace()

    assert keyspace.key_of(keyspace.guard(text)) == text
    assert keyspace.key_of(text) == text
