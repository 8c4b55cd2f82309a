"""Mutated messages of every format: whatever comes, it is understood or told why not."""

import asyncio
import contextlib
import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats import KEYED_BY_ID
from tests.unit.formats import test_canal as canal
from tests.unit.formats import test_cloudevents as cloudevents
from tests.unit.formats import test_cockroachdb as cockroachdb
from tests.unit.formats import test_debezium as debezium
from tests.unit.formats import test_debezium_cloudevents as debezium_cloudevents
from tests.unit.formats import test_debezium_flattened as debezium_flattened
from tests.unit.formats import test_dms as dms
from tests.unit.formats import test_maxwell as maxwell
from tests.unit.formats import test_sequin as sequin
from tests.unit.formats import test_wal2json as wal2json
from warmer.clock import SystemClock
from warmer.errors import BadEvent
from warmer.ingest.event_log import decode
from warmer.ingest.formats import FORMATS, Changes, Message, reader
from warmer.ingest.intake import Intake, Taken, messages_in
from warmer.ingest.mapping import arrivals
from warmer.model.arrival import Accepted, Record
from warmer.model.source import Order, Snapshot, Source
from warmer.signals import Counters

SEEDS: dict[str, list[Any]] = {
    "canal": [canal.message(), canal.message("TRUNCATE")],
    "cloudevents": [cloudevents.event(), cloudevents.event(data_base64="e30=")],
    "cockroachdb": [cockroachdb.feed(cockroachdb.row()), {"resolved": "1.2"}],
    "debezium": [
        debezium.postgresql(),
        debezium.mysql("d"),
        debezium.sqlserver("r"),
        debezium.mongodb("c") | {"after": '{"_id":{"$oid":"65f0"}}'},
        {"schema": None, "payload": debezium.postgresql("t")},
    ],
    "debezium-cloudevents": [
        debezium_cloudevents.event(),
        debezium_cloudevents.mysql(),
    ],
    "debezium-flattened": [debezium_flattened.row()],
    "debezium-outbox": [{"payload": {"a": 1}, "version": 3, "aggregateid": 4}],
    "dms": [dms.message(), dms.message("load")],
    "maxwell": [maxwell.event(), maxwell.event("table-drop")],
    "plain": [
        {
            "entity": "a:1",
            "version": [1, 2],
            "mode": "soft",
            "occurred_at": 5,
            "id": "e",
        },
        {"prefixes": ["a:"]},
    ],
    "purge": [{"surrogate_keys": ["a"], "soft": True}, {"purge_everything": True}],
    "sequin": [sequin.message(), {"data": [sequin.message("read")]}],
    "wal2json": [wal2json.BEGIN, wal2json.line(), wal2json.line("D", columns=None)],
}

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 1.5, 1e308, -0.0,
    "", " ", "\x00", "\ud7ff", "ÿ", "a" * 300, "0", "-1", "9" * 40, "1e9", "{", "[]", "null",
    '"', '{"$oid":"x"}', "0/FFFFFFFF", "binlog.000001", "__debezium_unavailable_value", "default",
    [], [[]], [None], [1, 2, 3, 4, 5, 6], {}, {"": ""}, {"id": None}, {"id": 7}, {"payload": None},
    {"schema": None, "payload": {}}, "t", "r", "d", "m",
]  # fmt: skip


class Log:
    """An event log that reads back what it is given."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def accept(self, records: Sequence[Record], source: Source) -> Accepted:
        for record in records:
            event = decode(record.event)
            assert event.source == source.name
            assert event.entities or event.prefixes
            assert record.entity in {"", *event.entities}
            assert len(record.digits) % 8 == 0
            assert len(record.event) < 2**20
        self.records += records
        return Accepted((True,) * len(records))


class Letters:
    """Dead letters that must hold what a server can store."""

    def __init__(self) -> None:
        self.letters: list[Any] = []

    async def park(self, letters: Sequence[Any]) -> int:
        for letter in letters:
            assert all(isinstance(value, str | bytes) for value in letter.values())
            assert letter["reason"]
        self.letters += letters
        return 0


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container in the value, with each of its keys or indexes."""
    places: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        at = stack.pop()
        keys: list[Any] = []
        if isinstance(at, dict):
            keys = list(at)
        elif isinstance(at, list):
            keys = list(range(len(at)))
        for key in keys:
            places.append((at, key))
            stack.append(at[key])
    return places


def mutated(value: Any, rng: random.Random) -> Any:
    """The value with one to three of its parts replaced, dropped, doubled or nested."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        places = places_in(value)
        if not places or rng.random() < 0.05:
            value = copy.deepcopy(rng.choice(ODD))
            continue
        at, key = rng.choice(places)
        match rng.randrange(5):
            case 0 | 1:
                at[key] = copy.deepcopy(rng.choice(ODD))
            case 2:
                del at[key]
            case 3:
                at[key] = [at[key], at[key]]
            case _:
                deep: Any = at[key]
                for _ in range(rng.choice((1, 5, 200, 900))):
                    deep = {"a": deep} if rng.random() < 0.5 else [deep]
                at[key] = deep
    return value


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_mutated_message_is_taken_ignored_or_set_aside(name: str, seed: int) -> None:
    """R-CARD-5, CDC-SHAPE-6: never an error, never lost, and what is taken reads back."""
    rng = random.Random(seed)
    source = Source(
        "shop-db",
        name,
        unlisted=rng.choice((KEYED_BY_ID, Source("x", name).unlisted)),
        order=rng.choice(list(Order)),
        snapshot=rng.choice(list(Snapshot)),
        version_fields=rng.choice(((), ("version",), ("id", "sku"))),
        key_header=rng.choice(("", "x-key")),
    )
    values = [mutated(rng.choice(SEEDS[name]), rng) for _ in range(rng.randint(1, 4))]
    headers = {
        key: rng.choice(("", "a", "eyJpZCI6N30=", "ÿ", "7", "{}"))
        for key in (
            "x-key",
            "id",
            "x-debezium-id",
            "aggregatetype",
            "x-debezium-version",
        )
        if rng.random() < 0.5
    }
    keys = [
        rng.choice((None, {"id": 7}, mutated({"id": 7}, rng), "42")) for _ in values
    ]
    messages = [
        Message(value, key, headers) for value, key in zip(values, keys, strict=True)
    ]
    log, letters = Log(), Letters()
    intake = Intake(
        log=log,
        letters=letters,
        clock=SystemClock(),
        signals=Counters(),
        report=lambda *_: None,
    )
    try:
        taken = asyncio.run(intake.take(source, messages, delivery_id="d"))
    except BadEvent:
        # Nested too deeply to be written again: the body is kept whole, by the door.
        assert not log.records
        return
    assert taken.accepted == len(log.records)
    assert taken.dead == len(letters.letters)
    if taken == Taken():
        raise AssertionError(f"a message left no trace: {values}")
    assert taken.dead + taken.ignored + taken.accepted >= len(messages)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "deep", ["[" * 1_000 + "]" * 1_000, '{"a":' * 900 + "1" + "}" * 900]
)
def test_what_is_nested_deeply_ends_nobody(name: str, deep: str) -> None:
    """CDC-SHAPE-6: wherever it stands. A producer would send it again, and again."""
    source = Source("shop-db", name, unlisted=KEYED_BY_ID, key_header="x-key")
    read_all = reader(name)
    for seed in SEEDS[name]:
        for index in range(len(places_in(seed))):
            value = copy.deepcopy(seed)
            at, key = places_in(value)[index]
            at[key] = orjson.loads(deep)
            (found,) = read_all([Message(value)], source)
            if isinstance(found, Changes):
                with contextlib.suppress(BadEvent):
                    arrivals(found, source)


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from([
            b"", b" ", b"\x00", b"\xff\xfe", b"[" * 2_000, b'{"a":' * 2_000, b"NaN", b"1e999",
            b'{"entity":"a","entity":"b"}', b"[]", b"[1,]", b'{"a":1}\n{"b":2}\n\n', b"{}\n{",
            b'"\\ud800"', b"9" * 400, b"\xef\xbb\xbf{}",
        ]),
    )
)  # fmt: skip
def test_a_body_is_messages_or_says_why_not(body: bytes) -> None:
    try:
        messages = messages_in(body)
    except BadEvent:
        return
    assert len(messages) == 1 or not any(message.raw for message in messages)


def test_two_of_one_name_are_read_as_their_last() -> None:
    """As JSON's readers do: which one counts must not depend on who reads."""
    (message,) = messages_in(b'{"entity":"a:1","entity":"b:2"}')
    assert message.value == {"entity": "b:2"}


def test_every_format_has_seeds() -> None:
    assert tuple(SEEDS) == FORMATS
    assert replace(Source("x", "plain")).format in SEEDS
