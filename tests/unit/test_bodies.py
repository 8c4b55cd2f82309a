"""A compressed body is all of its members, or a dead letter, and within its bound."""

import gzip

import pytest

from warmer.errors import BadEvent
from warmer.ingest.bodies import MAX_GZIP_MEMBERS, inflated, messages_of

ONE, OTHER = b'{"entity":"a:1"}\n', b'{"entity":"a:2"}\n'


def test_events_that_were_compressed_one_by_one_are_all_read() -> None:
    """R-CARD-5: the first member is not the body: what follows was answered, and lost."""
    body = gzip.compress(ONE) + gzip.compress(OTHER)
    found = messages_of(body, {"content-encoding": "gzip"}, format_name="plain")
    assert [message.value for message in found] == [
        {"entity": "a:1"},
        {"entity": "a:2"},
    ]


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(ONE) + b"more",
        gzip.compress(ONE) + OTHER,
        gzip.compress(ONE) + gzip.compress(OTHER)[:-1],
        gzip.compress(b"") * (MAX_GZIP_MEMBERS + 1),
        b"",
    ],
)
def test_what_is_not_gzip_to_its_end_is_set_aside_whole(body: bytes) -> None:
    with pytest.raises(BadEvent, match=r"^body: "):
        inflated(body, "gzip", max_bytes=1_000)


def test_the_bound_is_of_all_members_together() -> None:
    """HTTPBODY-1: to the byte."""
    body = gzip.compress(b"a" * 60) + gzip.compress(b"b" * 40) + gzip.compress(b"")
    assert inflated(body, "gzip", max_bytes=100) == b"a" * 60 + b"b" * 40
    with pytest.raises(BadEvent, match=r"^body: more than 99 bytes"):
        inflated(body, "gzip", max_bytes=99)
