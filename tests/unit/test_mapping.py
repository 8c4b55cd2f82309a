"""From what a format read to the events of the log: entities, versions, scopes."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.formats.test_fuzz import SEEDS, mutated
from warmer.errors import BadEvent
from warmer.ingest.event_log import MAX_ENTITIES, MAX_PREFIXES, decode, record_of
from warmer.ingest.formats import (
    FORMATS,
    Changes,
    Kind,
    Message,
    Named,
    RowChange,
    reader,
)
from warmer.ingest.mapping import MAX_ID_CHARS, UNAVAILABLE, arrivals
from warmer.model.arrival import Arrival
from warmer.model.event import PurgeMode
from warmer.model.source import (
    Before,
    EntityTemplate,
    Order,
    Snapshot,
    Source,
    Table,
)

SHOP = Source("shop-db", "debezium")
WRITTEN = RowChange(
    Kind.WRITTEN,
    "line",
    db="shop",
    schema="public",
    key={"id": 7},
    after={"id": 7, "order_id": 1, "text": "hi"},
    row_version=(5,),
    commit_version=(4, 5),
    lineage="postgresql/shop",
    occurred_at=1_790_000_000_123,
)
DELETED = replace(WRITTEN, kind=Kind.DELETED, after=None)


def by(*templates: str, key: tuple[str, ...] = ()) -> Table:
    return Table(tuple(map(EntityTemplate, templates)), key=key)


def events(change: RowChange | Named, source: Source = SHOP) -> list[Arrival]:
    found, ignored = arrivals(Changes((change,)), source)
    assert len(found) + ignored == 1
    return found


def named(change: RowChange, *templates: str, **rules: Any) -> tuple[str, ...]:
    """The entities of a change, by these templates."""
    source = replace(SHOP, unlisted=by(*templates, key=rules.pop("key", ())), **rules)
    (arrival,) = events(change, source)
    return arrival.event.entities


# --- which entities -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "entity"),
    [
        ("{table}:{key}", "line:7"),
        ("line:{id}", "line:7"),
        ("{db}.{schema}.{table}:{id}", "shop.public.line:7"),
        ("order:{order_id}", "order:1"),
        ("order:{order_id}:{key}", "order:1:7"),
        ("text:{text}", "text:hi"),
    ],
)
def test_a_row_is_named_by_templates_over_place_key_and_columns(
    template: str, entity: str
) -> None:
    """R-INV-4."""
    assert named(WRITTEN, template) == (entity,)


def test_one_row_may_be_of_several_entities_and_each_is_named_once() -> None:
    assert named(WRITTEN, "line:{id}", "order:{order_id}", "line:{key}") == (
        "line:7",
        "order:1",
    )


@pytest.mark.parametrize(
    ("schema", "entity"),
    [
        ("public", "line:7"),
        ("dbo", "line:7"),
        ("", "line:7"),
        ("audit", "audit.line:7"),
    ],
)
def test_a_table_outside_the_home_schema_is_another_table(
    schema: str, entity: str
) -> None:
    assert named(replace(WRITTEN, schema=schema), "{table}:{key}") == (entity,)


def test_a_key_of_several_columns_stands_in_its_order() -> None:
    compound = replace(
        WRITTEN, key={"region": "eu", "id": 7}, after={"id": 7, "region": "eu"}
    )
    assert named(compound, "{table}:{key}") == ("line:eu:7",)
    assert named(compound, "{table}:{key}", key=("id", "region")) == ("line:7:eu",)


def test_without_the_records_key_the_tables_declared_key_names_the_row() -> None:
    """CDC-SHAPE-6: sinks over HTTP send no record key."""
    keyless = replace(WRITTEN, key=None)
    assert named(keyless, "{table}:{key}", key=("id",)) == ("line:7",)
    with pytest.raises(BadEvent, match=r"public\.line: key: missing"):
        named(keyless, "{table}:{key}")


def test_a_column_called_key_is_reached_as_a_column() -> None:
    setting = replace(WRITTEN, after={"id": 7, "key": "theme"})
    assert named(setting, "setting:{row.key}") == ("setting:theme",)
    assert named(setting, "setting:{key}") == ("setting:7",)


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("a:b", "a%3Ab"),
        ("a/b", "a/b"),
        ("a%b", "a%25b"),
        ("ü", "%C3%BC"),
        (True, "true"),
        ("", ""),
    ],
)
def test_values_cannot_be_taken_for_the_separators_of_an_entity(
    value: object, part: str
) -> None:
    assert named(replace(WRITTEN, after={"id": value}), "line:{id}") == (
        f"line:{part}",
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "column id: is null"),
        (1.5, "column id: is float"),
        ([7], "column id: is list"),
        ({"secret": "hunter2"}, "column id: is dict"),
        (UNAVAILABLE, "column id: missing"),
        ("a" * 300, "entity: 305 bytes"),
    ],
)
def test_what_names_no_entity_is_refused_by_column_and_shape(
    value: object, says: str
) -> None:
    with pytest.raises(BadEvent, match=says) as refused:
        named(replace(WRITTEN, key=None, after={"id": value}), "line:{id}")
    assert "hunter2" not in str(refused.value)


def test_a_change_that_tells_no_row_is_refused() -> None:
    nothing = replace(WRITTEN, key=None, after=None)
    with pytest.raises(BadEvent, match="after, before and key are missing"):
        named(nothing, "line:{id}")


# --- the row as it was --------------------------------------------------------------


def test_a_row_that_moved_names_where_it_is_and_where_it_was() -> None:
    """R-INV-4: the order that lost its line is stale too."""
    moved = replace(WRITTEN, before={"id": 7, "order_id": 2, "text": "hi"})
    assert named(moved, "order:{order_id}") == ("order:1", "order:2")


def test_a_changed_primary_key_names_both_rows() -> None:
    renumbered = replace(WRITTEN, before={"id": 6, "order_id": 1})
    assert named(renumbered, "{table}:{key}") == ("line:7", "line:6")


def test_made_up_columns_of_a_former_row_name_nothing() -> None:
    """PostgreSQL fills what it was not told with 0 and "" (REPLICA IDENTITY)."""
    gone = replace(DELETED, before={"id": 7, "order_id": 0}, before_is=Before.KEY)
    assert named(gone, "line:{id}") == ("line:7",)
    with pytest.raises(BadEvent, match=r"public\.line: column order_id: missing"):
        named(gone, "order:{order_id}")


def test_a_source_that_tells_all_of_a_former_row_is_believed() -> None:
    gone = replace(DELETED, before={"id": 7, "order_id": 2}, before_is=Before.KEY)
    assert named(gone, "order:{order_id}", before=Before.FULL) == ("order:2",)
    full = replace(gone, before_is=Before.FULL)
    with pytest.raises(BadEvent, match="column order_id: missing"):
        named(full, "order:{order_id}", before=Before.KEY)


def test_of_a_former_row_the_declared_key_is_true_where_no_key_comes() -> None:
    gone = replace(
        DELETED, key=None, before={"id": 7, "order_id": 0}, before_is=Before.KEY
    )
    assert named(gone, "line:{id}", key=("id",)) == ("line:7",)
    with pytest.raises(BadEvent, match="of before only the key is true"):
        named(gone, "line:{id}")


def test_a_deleted_row_of_which_only_the_key_came_is_named_by_it() -> None:
    assert named(DELETED, "line:{id}") == ("line:7",)


def test_an_unchanged_large_value_is_what_it_was_and_never_its_placeholder() -> None:
    """CDC-SHAPE-4."""
    toasted = replace(WRITTEN, after={"id": 7, "order_id": UNAVAILABLE})
    before = {"id": 7, "order_id": 2}
    told = replace(toasted, before=before)
    assert named(told, "order:{order_id}") == ("order:2",)
    with pytest.raises(BadEvent, match="column order_id: missing"):
        named(toasted, "order:{order_id}")
    hidden = replace(WRITTEN, before=before | {"order_id": UNAVAILABLE})
    assert named(hidden, "order:{order_id}") == ("order:1",)


# --- which rows count ---------------------------------------------------------------


def test_a_table_without_entities_is_ignored_and_others_follow_the_rule() -> None:
    nothing = replace(SHOP, unlisted=by())
    assert events(WRITTEN, nothing) == []
    listed = replace(nothing, tables={"public.line": by("line:{id}")})
    assert [each.event.entities for each in events(WRITTEN, listed)] == [("line:7",)]
    assert events(replace(WRITTEN, table="other"), listed) == []


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Snapshot.IGNORE, []),
        (Snapshot.WARM, [(True, None)]),
        (Snapshot.INVALIDATE, [(False, None)]),
    ],
)
def test_a_row_that_was_only_read_moves_no_floor(
    policy: Snapshot, told: list[Any]
) -> None:
    """CDC-ORDER-1: what was open at the snapshot commits later, with a lower version."""
    read = replace(WRITTEN, kind=Kind.SNAPSHOT)
    found = events(read, replace(SHOP, snapshot=policy))
    assert [(each.event.warm, each.event.version) for each in found] == told
    assert all((each.position, each.lineage) == ("", "") for each in found)


@pytest.mark.parametrize(
    ("templates", "prefixes"),
    [
        (("{table}:{key}",), ("line:",)),
        (("line:{id}", "order:{order_id}"), ("line:", "order:")),
        (("order:{order_id}:{id}",), ("order:",)),
        (("{db}.{table}:{id}",), ("shop.line:",)),
        (("{id}",), ("",)),
    ],
)
def test_a_truncated_table_is_all_that_its_templates_begin_with(
    templates: tuple[str, ...], prefixes: tuple[str, ...]
) -> None:
    """R-INV-4: which rows there were nobody says."""
    truncated = RowChange(
        Kind.TRUNCATED, "line", db="shop", schema="public", row_version=(9,)
    )
    (arrival,) = events(truncated, replace(SHOP, unlisted=by(*templates)))
    assert (arrival.event.entities, arrival.event.prefixes) == ((), prefixes)
    assert arrival.event.version is not None
    assert arrival.ordered_by == ""
    assert events(truncated, replace(SHOP, unlisted=by())) == []


# --- what orders them ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "version"),
    [(Order.ROW, (5,)), (Order.COMMIT, (4, 5)), (Order.NONE, None)],
)
def test_the_version_is_the_one_that_the_source_declares(
    order: Order, version: tuple[int, ...] | None
) -> None:
    """R-INV-1."""
    (arrival,) = events(WRITTEN, replace(SHOP, order=order))
    told = arrival.event.version
    assert (None if told is None else told.parts()) == version
    assert arrival.lineage == ("" if version is None else "postgresql/shop")


def test_where_the_commit_order_is_not_told_the_event_applies() -> None:
    """The row's own order in its place would be another number with another meaning."""
    (arrival,) = events(
        replace(WRITTEN, commit_version=None), replace(SHOP, order=Order.COMMIT)
    )
    assert arrival.event.version is None


def test_a_place_in_the_log_is_of_the_source_and_a_version_alone_of_its_entity() -> (
    None
):
    (of_source,) = events(WRITTEN)
    assert of_source.position == "00000000000000040000000000000005"
    assert of_source.ordered_by == ""
    (of_entity,) = events(replace(WRITTEN, commit_version=None))
    assert (of_entity.position, of_entity.ordered_by) == ("", "line:7")


@pytest.mark.parametrize(
    ("after", "before", "version"),
    [
        ({"id": 7, "version": 3}, None, (3,)),
        ({"id": 7, "version": "3"}, {"id": 7, "version": 2}, (3,)),
        ({"id": 7, "version": UNAVAILABLE}, {"id": 7, "version": 2}, (2,)),
        (None, {"id": 7, "version": 2}, (2,)),
        ({"id": 7, "version": None}, None, None),
        ({"id": 7}, None, None),
    ],
)
def test_a_version_column_takes_the_place_of_the_logs_position(
    after: Any, before: Any, version: tuple[int, ...] | None
) -> None:
    source = replace(SHOP, version_fields=("version",))
    (arrival,) = events(replace(WRITTEN, after=after, before=before), source)
    told = arrival.event.version
    assert (None if told is None else told.parts()) == version
    lineage = "" if version is None else "by version"
    assert (arrival.position, arrival.lineage) == ("", lineage)


LINE = replace(WRITTEN, after={"id": 7, "order_id": 1, "version": 3})


@pytest.mark.parametrize(
    ("table", "key", "version"),
    [
        (by("{table}:{key}"), {"id": 7}, (3,)),
        (by("line:{id}"), {"id": 7}, (3,)),
        (by("order:{order_id}"), {"id": 7}, None),
        (by("line:{id}", "order:{order_id}"), {"id": 7}, None),
        (by("line:{order_id}:{id}", key=("order_id", "id")), None, (3,)),
        (by("order:{order_id}", key=("order_id", "id")), None, None),
        (by("line:{id}"), None, None),
        (replace(by("order:{order_id}"), version_fields=("version",)), {"id": 7}, (3,)),
        (replace(by("line:{id}"), version_fields=()), {"id": 7}, None),
    ],
)
def test_a_rows_own_version_does_not_order_what_several_rows_make(
    table: Table, key: Any, version: tuple[int, ...] | None
) -> None:
    """CDC-ORDER-1: the second line's version 3 would lose to the first one's 9."""
    source = replace(SHOP, version_fields=("version",), unlisted=table)
    (arrival,) = events(replace(LINE, key=key), source)
    told = arrival.event.version
    assert (None if told is None else told.parts()) == version


def test_versions_of_other_columns_are_of_another_lineage() -> None:
    """CDC-GAP-4: where a declaration changes, 3 is not older than the log's 24,000,000."""
    row = replace(WRITTEN, after={"id": 7, "version": 3, "revision": 9})
    named_alike = Named(("line:7",), version=(3,))
    declared = [(), ("version",), ("revision",), ("revision", "version")]
    sources = [replace(SHOP, version_fields=fields) for fields in declared]
    lineages = [events(row, source)[0].lineage for source in sources]
    assert len(set(lineages)) == len(declared)
    assert [events(named_alike, source)[0].lineage for source in sources][1:] == (
        lineages[1:]
    )


def test_a_made_up_version_column_is_no_version() -> None:
    """A delete's former row has 0 there."""
    source = replace(SHOP, version_fields=("version",))
    gone = replace(DELETED, before={"id": 7, "version": 0}, before_is=Before.KEY)
    (arrival,) = events(gone, source)
    assert arrival.event.version is None


@pytest.mark.parametrize("value", [True, -1, 2**64, 1.5, "v3", "9" * 21, [3]])
def test_a_version_column_that_is_no_whole_number_is_refused(value: object) -> None:
    source = replace(SHOP, version_fields=("version",))
    with pytest.raises(BadEvent, match="column version: is no whole number"):
        events(replace(WRITTEN, after={"id": 7, "version": value}), source)


# --- what tells an event from others ------------------------------------------------


def test_only_an_id_of_its_own_tells_a_repetition() -> None:
    """The rows of one statement share theirs."""
    (shared,) = events(replace(WRITTEN, id="binlog.1;4524"))
    assert (shared.event.id, shared.identity) == ("binlog.1;4524", "")
    (own,) = events(replace(WRITTEN, id="e-1", unique=True))
    assert (own.event.id, own.identity) == ("e-1", "e-1")


def test_an_event_without_an_id_gets_one_that_people_can_read() -> None:
    (arrival,) = events(WRITTEN)
    assert arrival.event.id == "5@line:7"
    (bare,) = events(Named(prefixes=("",)))
    assert bare.event.id == "unversioned@all"
    (long,) = events(replace(WRITTEN, id="i" * 999))
    assert long.event.id == "i" * MAX_ID_CHARS


def test_entities_that_a_producer_names_are_taken_in_their_one_form() -> None:
    change = Named(("a b", "a%20b", "c/d:1"), ("x y:", ""), (3,), PurgeMode.HARD)
    (arrival,) = events(change)
    assert arrival.event.entities == ("a%20b", "c/d:1")
    assert arrival.event.prefixes == ("x%20y:", "")
    assert arrival.event.mode is PurgeMode.HARD
    # Encoded more than need be, or in the other case: the key's own text is "c/d", "ü@".
    spelled = Named(("c%2Fd:1", "c%2fd:1", "%c3%bc%40"), ("c%2f",), None)
    (arrival,) = events(spelled)
    assert arrival.event.entities == ("c/d:1", "%C3%BC@")
    assert arrival.event.prefixes == ("c/",)
    (unordered,) = events(change, replace(SHOP, order=Order.NONE))
    assert unordered.event.version is None


def test_a_message_of_several_rows_is_as_many_events() -> None:
    source = replace(SHOP, unlisted=by(), tables={"line": by("line:{id}")})
    other = replace(WRITTEN, table="audit")
    found, ignored = arrivals(Changes((WRITTEN, other, DELETED)), source)
    assert [each.event.entities for each in found] == [("line:7",), ("line:7",)]
    assert ignored == 1


# --- limits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Named(("a" * 257,)), "257 bytes"),
        (Named(prefixes=("a" * 257,)), "257 bytes"),
        (Named(("",)), "0 bytes"),
        (Named(("a",), version=(1, 2, 3, 4, 5)), "5 parts"),
        (Named(("a",), version=(2**64,)), "outside"),
    ],
)
def test_what_the_log_could_not_hold_is_refused(change: Named, says: str) -> None:
    with pytest.raises(BadEvent, match=says):
        events(change)


def test_the_largest_event_that_is_taken_is_read_back() -> None:
    change = Named(
        tuple(f"{index:03x}".ljust(200, "e") for index in range(MAX_ENTITIES)),
        tuple(f"{index:x}".ljust(256, "p") for index in range(MAX_PREFIXES)),
        version=(2**64 - 1,) * 4,
        occurred_at=2**64 - 1,
        id="i" * MAX_ID_CHARS,
    )
    (arrival,) = events(change)
    assert decode(record_of(arrival).event) == arrival.event


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_taken_reads_back_as_it_was(name: str, seed: int) -> None:
    """R-CARD-5: whatever a producer sends, a worker gets the event that was accepted."""
    rng = random.Random(seed)
    source = Source(
        "shop-db",
        name,
        unlisted=by("{table}:{key}", key=rng.choice(((), ("id",)))),
        version_fields=rng.choice(((), ("version",))),
    )
    values = [mutated(rng.choice(SEEDS[name]), rng) for _ in range(3)]
    for found in reader(name)([Message(value) for value in values], source):
        if not isinstance(found, Changes):
            continue
        try:
            made, ignored = arrivals(found, source)
            records = [record_of(each) for each in made]
        except BadEvent:
            continue
        assert len(made) + ignored == len(found.changes)
        assert [decode(each.event) for each in records] == [each.event for each in made]
