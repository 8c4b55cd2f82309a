"""Events as JSON: everything right comes back, everything else is refused by name."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmer.errors import BadEvent
from warmer.ingest.event_log import MAX_EVENT_BYTES, decode, encode, event_of
from warmer.model.event import Event, PurgeMode
from warmer.model.version import SourceVersion

PLAIN: dict[str, Any] = {"source": "shop-db", "entities": ["product:42"]}

versions = st.builds(
    lambda epoch, parts: SourceVersion.of("shop-db", *parts, epoch=epoch),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4),
)
events = st.builds(
    Event,
    id=st.text(min_size=1, max_size=256).filter(lambda text: text.isprintable()),
    source=st.just("shop-db"),
    entities=st.lists(
        st.from_regex(r"[a-z]+:[0-9]+", fullmatch=True),
        min_size=1,
        max_size=5,
        unique=True,
    ).map(tuple),
    version=st.none() | versions,
    mode=st.none() | st.sampled_from(PurgeMode),
    occurred_at=st.none() | st.integers(0, 2**53),
)


@given(event=events)
def test_what_is_written_is_read_back_equal(event: Event) -> None:
    """R-INV-1."""
    assert decode(encode(event)) == event


@pytest.mark.parametrize(
    ("written", "parts", "epoch"),
    [
        (17, (17,), 0),
        ("17", (17,), 0),
        ([1, "2"], (1, 2), 0),
        ({"parts": ["18446744073709551615"]}, (2**64 - 1,), 0),
        ({"epoch": "3", "parts": [201_605_131_024_011_015]}, (201605131024011015,), 3),
    ],
)
def test_a_version_may_be_written_in_the_ways_producers_have(
    written: object, parts: tuple[int, ...], epoch: int
) -> None:
    """SCRIPT-4, CDC-ORDER-4: numbers, compared as numbers."""
    event = event_of({**PLAIN, "version": written})

    assert event.version == SourceVersion.of("shop-db", *parts, epoch=epoch)


def _now_and_then(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, odd)


odd = st.sampled_from(
    [
        *(None, "", "x" * 257, "٣", "7", "a b", "é" * 200, "-1", " 7"),
        *(7, -1, 2**32, 2**64 - 1, 1.5, True, "18446744073709551616"),
        *([], {}, ["7"], {"parts": [7]}),
    ]
)
texts = _now_and_then(st.sampled_from(["product:42", "product:%C3", "é", "shop-db"]))
written = st.fixed_dictionaries(
    {
        "id": texts,
        "source": _now_and_then(st.just("shop-db")),
        "entities": _now_and_then(st.lists(texts, max_size=3)),
    },
    optional={
        "version": _now_and_then(
            st.fixed_dictionaries(
                {
                    "epoch": _now_and_then(st.integers(0, 2**32 - 1)),
                    "parts": st.lists(_now_and_then(st.just("17")), max_size=5),
                },
                optional={"when": odd},
            )
        ),
        "mode": _now_and_then(st.sampled_from(["soft", "hard"])),
        "occurred_at": odd,
        "prefixes": _now_and_then(st.lists(texts, max_size=2)),
        "warm": odd,
        "surprise": odd,
    },
)


@given(wire=written)
def test_the_quick_way_and_the_model_take_and_refuse_the_same(
    wire: dict[str, Any],
) -> None:
    """R-INV-1, CDC-ORDER-4: the model words every refusal."""

    def outcome(read: Callable[[], Event]) -> Event | str:
        try:
            return read()
        except BadEvent as exc:
            return str(exc)

    stored = orjson.dumps(wire)

    assert outcome(lambda: decode(stored)) == outcome(lambda: event_of(wire))


def test_ten_is_newer_than_nine_however_they_are_written() -> None:
    """CDC-ORDER-4."""
    nine, ten = (event_of({**PLAIN, "version": text}).version for text in ("9", "10"))

    assert nine is not None
    assert ten is not None
    assert ten.compare(nine).value == "newer"


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"version": "build10"}, "version.parts.0"),
        ({"version": 1.5}, "version.parts.0"),
        ({"version": True}, "version.parts.0"),
        ({"version": -1}, "version.parts.0"),
        ({"version": "٣"}, "version.parts.0"),
        ({"version": 2**64}, "version.parts.0"),
        ({"version": []}, "version.parts"),
        ({"version": [1, 2, 3, 4, 5]}, "version.parts"),
        ({"version": {"parts": [1], "when": 2}}, "version.when"),
        ({"entities": []}, "entities"),
        ({"entities": "product:42"}, "entities"),
        ({"entities": [42]}, "entities.0"),
        ({"entities": [""]}, "entities.0"),
        ({"entities": ["é" * 200]}, "entity"),
        ({"source": "Shop DB"}, "source"),
        ({"mode": "delete"}, "mode"),
        ({"id": ""}, "id"),
        ({"id": "x" * 257}, "id"),
        ({"occurred_at": "yesterday"}, "occurred_at"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_is_refused_by_the_name_of_its_field(
    wrong: dict[str, Any], names: str
) -> None:
    """CDC-ORDER-4, R-INV-1: at the door, before it can decide anything."""
    with pytest.raises(BadEvent, match=rf"^{names}: "):
        event_of({**PLAIN, **wrong})


def test_a_refusal_shows_the_shape_of_a_value_and_never_the_value() -> None:
    """OBS-3."""
    secret = {"mail": "x@example.org"}

    with pytest.raises(BadEvent) as refused:
        event_of({**PLAIN, "mode": secret, "id": ["x@example.org"]})

    assert "x@example.org" not in str(refused.value)
    assert "a list of 1" in str(refused.value)


@pytest.mark.parametrize("stored", [b"{", b"[]", b"null", b'"x"', b"\xff", b""])
def test_what_is_no_json_object_is_refused(stored: bytes) -> None:
    """CDC-SHAPE-1."""
    with pytest.raises(BadEvent, match="event"):
        decode(stored)


def test_an_event_over_its_bound_is_refused_both_ways() -> None:
    """R-FLT-3: everything that grows has a bound."""
    entities = tuple(f"{'x' * 256}{number}" for number in range(1_100))

    with pytest.raises(BadEvent, match="bytes"):
        encode(Event("e1", "shop-db", entities))
    with pytest.raises(BadEvent, match="bytes"):
        decode(b" " * (MAX_EVENT_BYTES + 1))


def test_an_event_without_an_id_is_given_one() -> None:
    """WEBHOOK-6: what is applied twice changes nothing, so an id is for people only."""
    first, second = event_of(PLAIN), event_of(PLAIN)

    assert first.id
    assert first.id != second.id


def test_an_entity_is_kept_in_the_one_form_that_scopes_use() -> None:
    """KEYS-8: and named twice it is one."""
    event = event_of({**PLAIN, "entities": ["a b", "a%20b", "é"]})

    assert event.entities == ("a%20b", "%C3%A9")
    assert orjson.loads(encode(event))["entities"] == ["a%20b", "%C3%A9"]
