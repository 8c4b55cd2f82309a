"""The demo would say so if a promise did not hold: what readers saw is judged strictly."""

from dataclasses import replace

import pytest

from warmer.ops.demo.findings import (
    Findings,
    InvalidatedDuringLoad,
    OriginLoad,
    OutOfOrder,
    Stampede,
    Update,
)
from warmer.ops.demo.reads import Read, failed, fresh_at, older_after_fresh, states

KEPT = Findings(
    stampede=Stampede(480, 3, 8, 8, 0, 0.2, {"waited": 472, "loaded": 8}),
    update=Update(0.1, 0, 3, 3, 0, {"fresh": 200, "stale": 40}),
    out_of_order=OutOfOrder(3, True, 0, 0, {"fresh": 200}),  # noqa: FBT003 - as measured
    invalidated_during_load=InvalidatedDuringLoad(True, 0, 0.1, 2, 0, {}),  # noqa: FBT003
    origin=OriginLoad(12, 12, 23),
)


def seen(ask: int, began: float, ended: float, version: int) -> Read:
    return Read(ask, began, ended, "fresh" if version else "failed: cold", version)


def test_an_old_value_after_anyone_had_the_new_one_is_counted() -> None:
    new = seen(0, 1.0, 2.0, 7)
    began_before = seen(0, 1.9, 9.0, 6)
    began_after = seen(0, 2.1, 2.2, 6)
    another_key = seen(1, 2.1, 2.2, 6)

    newest = {0: 7, 1: 7}
    assert older_after_fresh([new, began_before, another_key], newest) == 0
    assert older_after_fresh([began_after, new, began_before], newest) == 1


def test_fresh_is_when_the_last_key_is_first_seen_new() -> None:
    reads = [seen(0, 1.0, 2.0, 7), seen(0, 3.0, 4.0, 7), seen(1, 1.0, 5.0, 8)]

    assert fresh_at(reads, {0: 7, 1: 7}) == 5.0
    assert fresh_at(reads, {0: 7, 1: 9}) is None
    assert fresh_at([], {0: 7}) is None


def test_a_read_without_an_answer_counts_as_one() -> None:
    reads = [seen(0, 1.0, 2.0, 0), seen(0, 1.0, 2.0, 7), seen(0, 1.0, 2.0, 7)]

    assert failed(reads) == 1
    assert states(reads) == {"fresh": 2, "failed: cold": 1}


def test_a_run_that_keeps_everything_breaks_nothing() -> None:
    assert KEPT.broken() == []
    assert KEPT.as_json()["broken_promises"] == []


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (
            replace(KEPT, stampede=replace(KEPT.stampede, origin_loads=9)),
            "each key was loaded once: 9 origin queries for 8 keys",
        ),
        (
            replace(KEPT, stampede=replace(KEPT.stampede, failed=1)),
            "every read was answered: 1 were not",
        ),
        (
            replace(KEPT, update=replace(KEPT.update, stale_reads_after_fresh=2)),
            "no reader got the old price once any had the new one: 2 did",
        ),
        (
            replace(KEPT, out_of_order=replace(KEPT.out_of_order, rejected=0)),
            "the older event was refused: refused for 0 keys",
        ),
        (
            replace(KEPT, origin=replace(KEPT.origin, max_concurrency=13)),
            "the origin was kept within its limit: 13 of 12 at once",
        ),
    ],
)
def test_a_broken_promise_is_a_clear_sentence(run: Findings, sentence: str) -> None:
    assert run.as_json()["broken_promises"] == [sentence]


def test_a_change_that_never_arrived_breaks_every_promise_about_it() -> None:
    never = replace(KEPT, update=replace(KEPT.update, seconds_to_fresh=None))

    assert [promise.found for promise in never.broken()] == [
        "not in time",
        "none ever had it",
    ]
