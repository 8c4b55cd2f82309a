"""What `warmer why` says about every state a key can be in."""

from dataclasses import replace

import pytest

from warmer.model.dataset import Dataset
from warmer.model.dataset_config import configuration_of
from warmer.model.due import Lane
from warmer.model.entry import Entry, Flag
from warmer.model.event import Event
from warmer.model.key import Key
from warmer.model.version import SourceVersion, encode_vector
from warmer.ops.explain import (
    Explanation,
    SeenEvent,
    Standing,
    depends,
    guard_of,
    span,
)
from warmer.settings import read_settings
from warmer.store.due_set import Place
from warmer.store.port import Family

NOW = 1_790_000_000_000
SCOPE = "shop-db/product:42"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    file = tmp_path_factory.mktemp("explain") / "warmer.toml"
    file.write_text(
        '[cache]\nurl = "redis://x"\n[datasets.product]\nfresh_for = "60s"\n'
        'key = "product:v{schema}:{locale}:{id}"\nvary = { locale = ["de"] }\n'
        'entities = ["shop-db/product:{id}", "shop-db/tax:{id}"]\n'
    )
    return configuration_of(read_settings(file, environment={})).datasets["product"]


@pytest.fixture
def key(dataset: Dataset) -> Key:
    return dataset.key({"locale": "de", "id": 42})


def version(number: int) -> SourceVersion:
    return SourceVersion.of("shop-db", number)


def an_entry(
    *,
    fresh_in: int = -1_000,
    stale_in: int = 20_000,
    error_in: int = 60_000,
    flags: int = 0,
) -> Entry:
    return Entry(
        flags=flags,
        schema_version=1,
        created_at=NOW - 30_000,
        fresh_until=NOW + fresh_in,
        stale_until=NOW + stale_in,
        error_until=NOW + error_in,
        fence=7,
        load_ms=12,
        vector=encode_vector({SCOPE: version(17)}).encode(),
        body=b"{}",
    )


def family(entry: Entry | None, **fields: str) -> Family:
    return Family(
        entry=entry,
        entry_refused=None,
        lease_token=None,
        lease_ms=None,
        guard=fields,
        guard_ms=60_000 if fields else None,
    )


def explained(dataset: Dataset, key: Key, of: Family) -> Explanation:
    return Explanation(dataset, key, of, guard_of(of.guard), NOW, events=())


@pytest.mark.parametrize(
    ("entry", "verdict", "begins"),
    [
        (an_entry(fresh_in=9_000), "fresh", "Fresh for 9.0 s more: loaded 30 s ago."),
        (
            an_entry(),
            "stale",
            "Stale, served for 20 s more, because its fresh time ended 1.0 s ago; the",
        ),
        (
            an_entry(stale_in=-500),
            "error_only",
            "Stale, served for 60 s more only if the origin fails, because",
        ),
        (
            an_entry(stale_in=-500, error_in=-200),
            "expired",
            "Expired 200 ms ago, served to nobody, because",
        ),
        (
            an_entry(flags=Flag.KEPT_STALE),
            "stale",
            "Stale, served for 20 s more, because an invalidation came in while it was",
        ),
        (None, "absent", "Absent: never loaded, or forgotten by the server; the next"),
    ],
    ids=["fresh", "stale", "error only", "expired", "kept stale", "absent"],
)
def test_each_state_has_its_sentence(
    dataset: Dataset, key: Key, entry: Entry | None, verdict: str, begins: str
) -> None:
    explanation = explained(dataset, key, family(entry))

    assert explanation.verdict == verdict
    assert explanation.sentence().startswith(begins)


def test_a_floor_that_the_entry_reached_is_not_the_reason(
    dataset: Dataset, key: Key
) -> None:
    guard = {f"floor.{SCOPE}": version(17).encode(), "purged_at": str(NOW - 60_000)}

    explanation = explained(dataset, key, family(an_entry(), **guard))

    assert "its fresh time ended" in explanation.sentence()


@pytest.mark.parametrize(
    ("purged_ago", "says"), [(None, True), (20_000, True), (9_900, False)]
)
def test_an_event_without_a_version_that_nobody_applied_is_told(
    dataset: Dataset, key: Key, purged_ago: int | None, *, says: bool
) -> None:
    """Of an entry loaded 30 s ago; the event is 10 s old."""
    guard = {} if purged_ago is None else {"purged_at": str(NOW - purged_ago)}
    event = Event("shop-1", "shop-db", ("product:42",), None, None)

    sentence = replace(
        explained(dataset, key, family(an_entry(fresh_in=9_000), **guard)),
        events=[SeenEvent(event, f"{NOW - 10_000}-0")],
    ).sentence()

    assert ("is in the log, and nothing was invalidated since" in sentence) is says


@pytest.mark.parametrize(("ended_after", "says"), [(2_000, True), (2_001, False)])
def test_what_was_fresh_for_settle_for_only_says_so(
    dataset: Dataset, key: Key, ended_after: int, *, says: bool
) -> None:
    entry = replace(an_entry(), created_at=NOW - 2_500)
    guard = {"purged_at": str(entry.fresh_until - ended_after)}

    sentence = explained(dataset, key, family(entry, **guard)).sentence()

    assert ("loaded within settle_for (2.0 s) of a change" in sentence) is says


def test_the_event_that_raised_the_floor_is_named(dataset: Dataset, key: Key) -> None:
    guard = {f"floor.{SCOPE}": version(18).encode(), "purged_at": str(NOW - 1_000)}
    event = Event("shop-18", "shop-db", ("product:42",), version(18))
    other = Event("shop-19", "shop-db", ("product:43",), version(18))

    explanation = replace(
        explained(dataset, key, family(an_entry(), **guard)),
        events=[
            SeenEvent(other, f"{NOW - 500}-0"),
            SeenEvent(event, f"{NOW - 1_000}-0"),
        ],
    )

    assert (
        "because event shop-18 at 2026-09-21T14:13:19Z raised the floor of "
        "shop-db/product:42 to 18, and the entry has 17"
    ) in explanation.sentence()


def test_an_older_event_in_the_log_is_not_said_to_be_missing(
    dataset: Dataset, key: Key
) -> None:
    """R-INV-2: an event older than the entry changes nothing, and is no news."""
    old = Event("shop-16", "shop-db", ("product:42",), version(16))

    explanation = replace(
        explained(dataset, key, family(an_entry(fresh_in=9_000))),
        events=[SeenEvent(old, f"{NOW}-0")],
    )

    assert explanation.sentence() == "Fresh for 9.0 s more: loaded 30 s ago."


@pytest.mark.parametrize(
    ("number", "floor", "standing"),
    [
        (None, None, Standing.UNVERSIONED),
        (16, None, Standing.IN_ENTRY),
        (17, None, Standing.IN_ENTRY),
        (17, 17, Standing.IN_ENTRY),
        (18, None, Standing.NOT_APPLIED),
        (18, 17, Standing.NOT_APPLIED),
        (18, 18, Standing.RAISED_FLOOR),
        (18, 19, Standing.SUPERSEDED),
    ],
)
def test_what_an_event_means_for_a_key_whose_entry_has_version_17(
    dataset: Dataset,
    key: Key,
    number: int | None,
    floor: int | None,
    standing: Standing,
) -> None:
    """R-INV-2: what is not newer than the entry or the floor changes nothing."""
    fields = {f"floor.{SCOPE}": version(floor).encode()} if floor else {}
    event = Event(
        "e",
        "shop-db",
        ("product:41", "product:42"),
        None if number is None else version(number),
    )

    explanation = explained(dataset, key, family(an_entry(), **fields))

    assert explanation.standing(event) is standing


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (
            Place(Lane.NOW, working=False, due_in_ms=-4_000, attempts=0),
            "it has been due for 4.0 s, and no worker has taken it (lane now)",
        ),
        (
            Place(Lane.WARM, working=False, due_in_ms=4_000, attempts=2),
            "a worker is to load it in 4.0 s (lane warm), after 2 times in vain",
        ),
        (
            Place(Lane.WARM, working=False, due_in_ms=4_000, attempts=0),
            "a worker is to load it in 4.0 s (lane warm)",
        ),
        (
            Place(Lane.NOW, working=True, due_in_ms=4_000, attempts=0),
            "the next caller loads it",
        ),
    ],
    ids=["waiting", "later again", "later", "taken"],
)
def test_a_key_that_is_due_says_so(
    dataset: Dataset, key: Key, place: Place, says: str
) -> None:
    explanation = replace(explained(dataset, key, family(an_entry())), place=place)

    assert explanation.sentence().endswith(f"; {says}.")


def test_a_guard_of_another_release_is_read_as_far_as_it_goes() -> None:
    guard = guard_of({"fence": "7", "unheard_of": "x", "retry_at": "soon"})

    assert guard is not None
    assert (guard.fence, guard.retry_at, guard.floors) == (7, None, {})


def test_a_key_depends_on_the_entities_its_parts_name(
    dataset: Dataset, key: Key
) -> None:
    """R-INV-4: one entity touches its own keys, and no others."""
    scopes = [
        "shop-db/product:42",
        "shop-db/tax:42",
        "shop-db/product:43",
        "shop-db/note:42",
        "other/product:42",
    ]

    reaching = [scope for scope in scopes if depends(dataset, key, scope)]
    assert reaching == ["shop-db/product:42", "shop-db/tax:42"]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_900, "60 s"),
        (119_999, "120 s"),
        (180_000, "3.0 min"),
        (7_200_000, "2.0 h"),
        (172_800_000, "2 d"),
    ],
)
def test_spans_as_people_say_them(ms: int, text: str) -> None:
    assert span(ms) == text


def test_a_version_is_written_as_the_command_line_takes_it() -> None:
    assert str(SourceVersion.of("s", 7, 9)) == "7:9"
    assert str(SourceVersion.of("s", 7, epoch=2)) == "7 (epoch 2)"
