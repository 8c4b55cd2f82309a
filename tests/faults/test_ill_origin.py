"""An origin that is ill: what three request paths ask of it, and what their readers get."""

from pathlib import Path

import pytest

from tests.moody_origin import FLOOR, LIMIT, MOODS, Course, course_of
from tests.processes import Children
from tests.servers import ServerProcess

PERMITTED = {
    "fresh",
    "stale",
    "stale_on_error",
    "loaded",
    "waited",
    "nothing_deadline",
    "nothing_load_failed",
    "nothing_cooling",
    "nothing_no_permit",
}


@pytest.fixture
async def course(
    request: pytest.FixtureRequest,
    valkey: ServerProcess,
    children: Children,
    tmp_path: Path,
) -> Course:
    valkey.renew()
    return await course_of(
        MOODS[request.param],
        server=valkey,
        children=children,
        directory=tmp_path,
        well_s=5.0,
        ill_s=4.0,
        again_s=8.0,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "course", ["hangs", "drops_mid_body", "429_retry_after"], indirect=True
)
async def test_an_origin_that_is_down_is_left_alone_and_comes_back_by_steps(
    course: Course,
) -> None:
    """R-FT-2 R-FT-3 R-ADM-3 R-ADM-4 R-POL-3 RETRY-5.

    A few probes reach it; readers have stale or a refusal; calls ramp, they do not jump.
    """
    first = next(at for at, calls in enumerate(course.again) if calls)
    second = course.at_once[first : first + 4]

    assert course.most <= LIMIT
    assert sum(course.ill[4:]) <= 3 * LIMIT
    assert sum(course.ill[4:]) < sum(course.well[-12:]) / 2
    assert max(second) <= LIMIT // 2
    assert course.at_once[first] <= FLOOR + 2
    assert set(course.given) <= PERMITTED
    assert course.given["stale"] > course.given.get("nothing_load_failed", 0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("course", ["500_to_a_fifth"], indirect=True)
async def test_an_origin_that_fails_a_fifth_goes_on_serving_the_rest(
    course: Course,
) -> None:
    """R-FT-3 R-ADM-4: the keys that failed back off, the origin is not closed for the others."""
    assert course.most <= LIMIT
    assert sum(course.ill) > sum(course.well[-len(course.ill) :]) / 3
    assert set(course.given) <= PERMITTED
