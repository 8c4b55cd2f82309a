"""What an answer's status and headers mean."""

import pytest

from warmer.errors import (
    OriginError,
    OriginInvalid,
    OriginRefused,
    OriginUnavailable,
)
from warmer.origin.verdict import Verdict, retry_in_ms, verdict

NOW_MS = 1_800_000_000_000
"""Fri, 15 Jan 2027 08:00:00 GMT."""
IN_TWO_MINUTES = "Fri, 15 Jan 2027 08:02:00 GMT"


def judged(
    status: int, headers: dict[str, str] | None = None, *, allow_private: bool = False
) -> Verdict:
    return verdict(status, headers or {}, allow_private=allow_private, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Verdict.VALUE),
        (203, Verdict.VALUE),
        (204, Verdict.EMPTY),
        (205, Verdict.EMPTY),
        (404, Verdict.NOT_FOUND),
        (410, Verdict.NOT_FOUND),
        (301, Verdict.REDIRECT),
        (302, Verdict.REDIRECT),
        (303, Verdict.REDIRECT),
        (307, Verdict.REDIRECT),
        (308, Verdict.REDIRECT),
    ],
)
def test_a_status_says_what_the_body_is(status: int, expected: Verdict) -> None:
    """R-POL-7: nothing but 404 and 410 says that there is no such thing."""
    assert judged(status) is expected


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (101, OriginInvalid),
        (206, OriginInvalid),
        (300, OriginInvalid),
        (304, OriginInvalid),
        (400, OriginRefused),
        (401, OriginRefused),
        (403, OriginRefused),
        (407, OriginRefused),
        (408, OriginUnavailable),
        (422, OriginRefused),
        (425, OriginUnavailable),
        (429, OriginRefused),
        (451, OriginRefused),
        (500, OriginUnavailable),
        (502, OriginUnavailable),
        (503, OriginUnavailable),
        (504, OriginUnavailable),
        (599, OriginUnavailable),
    ],
)
def test_an_error_is_neither_a_value_nor_a_not_found(
    status: int, error: type[OriginError]
) -> None:
    """NEGATIVE-1, NEGATIVE-4: a failed login does not say that something is not there."""
    with pytest.raises(error) as raised:
        judged(status)

    assert type(raised.value) is error
    assert raised.value.retry_in_ms is None


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "expected_ms"),
    [("120", 120_000), ("0", 0), (" 7 ", 7_000), (IN_TWO_MINUTES, 120_000)],
)
def test_when_to_come_back_is_kept(
    status: int, retry_after: str, expected_ms: int
) -> None:
    """RETRY-2: as seconds and as a date, for 429 and for 503."""
    with pytest.raises(OriginRefused) as raised:
        judged(status, {"retry-after": retry_after})

    assert raised.value.retry_in_ms == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-1", "1.5", "1e3", "12345678901", "²", "Fri, 99 Foo 2027", "0x10"],
)
def test_a_retry_after_that_is_neither_is_as_if_absent(text: str) -> None:
    """RETRY-2: and never a crash."""
    assert retry_in_ms({"retry-after": text}, NOW_MS) is None


def test_a_date_is_read_by_the_origins_own_clock() -> None:
    """RETRY-2, CLOCK-1: a host whose clock is an hour off waits no hour."""
    headers = {"retry-after": IN_TWO_MINUTES, "date": "Fri, 15 Jan 2027 08:01:30 GMT"}

    assert retry_in_ms(headers, NOW_MS + 3_600_000) == 30_000


def test_a_date_in_the_past_means_now() -> None:
    """RETRY-2: not a negative wait."""
    past = {"retry-after": "Mon, 01 Jan 1990 00:00:00 GMT"}

    assert retry_in_ms(past, NOW_MS) == 0


OWN = [
    {"set-cookie": "csrf=1"},
    {"cache-control": "private"},
    {"cache-control": 'max-age=5, Private="x"'},
    {"cache-control": "no-store, no-cache"},
    {"vary": "*"},
]


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_what_is_one_callers_own_is_not_stored_for_all(headers: dict[str, str]) -> None:
    """VARIANT-6, VARIANT-4: unless the origin's setting says it marks everything so."""
    with pytest.raises(OriginInvalid):
        judged(200, headers)

    assert judged(200, headers, allow_private=True) is Verdict.VALUE


@pytest.mark.parametrize(
    "headers",
    [
        {"cache-control": "no-cache"},
        {"cache-control": "max-age=0, must-revalidate"},
        {"cache-control": "x-private"},
        {"vary": "Accept-Encoding"},
    ],
    ids=str,
)
def test_what_is_only_soon_old_is_stored(headers: dict[str, str]) -> None:
    """TTL-3: how long a value is fresh is the dataset's to say, not a header's."""
    assert judged(200, headers) is Verdict.VALUE
