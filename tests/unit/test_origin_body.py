"""What an answer's body means: inflated, parsed, and its version found."""

import gzip
import zlib

import pytest

from tests.datasets import product
from warmer.errors import OriginInvalid
from warmer.model.dataset import LoaderVersion, VersionMeans
from warmer.model.version import SourceVersion
from warmer.origin.body import inflated, is_json, parsed
from warmer.origin.version import at_pointer, reported, reported_with_not_found

KEY = product().key({"id": 42})
SCOPE = "shop-db/product:42"
IN_HEADER = LoaderVersion(
    VersionMeans.ENTITY, "shop-db", "product:{id}", header="X-Version"
)
IN_BODY = LoaderVersion(VersionMeans.POSITION, "shop-db", pointer="/meta/position")


@pytest.mark.parametrize(
    ("encoding", "wire"),
    [
        ("", b"text"),
        ("identity", b"text"),
        ("gzip", gzip.compress(b"text")),
        (" GZip ", gzip.compress(b"text")),
        ("x-gzip", gzip.compress(b"te") + gzip.compress(b"xt")),
    ],
    ids=["no encoding", "identity", "gzip", "spelled otherwise", "two members"],
)
def test_a_body_is_inflated(encoding: str, wire: bytes) -> None:
    """HTTPBODY-1: what is small comes through, at the limit too."""
    assert inflated(wire, encoding, max_bytes=4) == b"text"


@pytest.mark.parametrize(
    ("encoding", "wire"),
    [
        ("gzip", gzip.compress(b"texts")),
        ("gzip", gzip.compress(b"te") + gzip.compress(b"xts")),
        ("gzip", gzip.compress(b"text")[:-1]),
        ("gzip", gzip.compress(b"text")[:-8] + b"\x00" * 8),
        ("gzip", gzip.compress(b"text") + b"more"),
        ("gzip", b"text"),
        ("gzip", zlib.compress(b"text")),
        ("br", b"text"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"text"))),
    ],
    ids=[
        "too large",
        "too large together",
        "cut short",
        "wrong checksum",
        "something after it",
        "not compressed",
        "deflate",
        "unasked",
        "twice",
    ],
)
def test_a_body_that_cannot_be_trusted_is_refused(encoding: str, wire: bytes) -> None:
    """HTTPBODY-1, HTTPBODY-4: never a part of it."""
    with pytest.raises(OriginInvalid):
        inflated(wire, encoding, max_bytes=4)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/problem+json", True),
        ("text/json", True),
        ("text/html", False),
        ("application/jsonp", False),
        ("application/x-ndjson", False),
        ("", False),
    ],
)
def test_json_is_what_is_called_json(content_type: str, *, expected: bool) -> None:
    """R-REC-2: all else is bytes."""
    assert is_json(content_type) is expected


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"<html>", b'{"a": NaN}', b"\xff", b"1 2"]
)
def test_json_that_is_none_is_refused(payload: bytes) -> None:
    """SERIAL-1: an error page with the wrong type is not the value."""
    with pytest.raises(OriginInvalid):
        parsed(payload)


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("", {"a": [{"b/c": 1, "~d": 2}], "": 3}),
        ("/a/0/b~1c", 1),
        ("/a/0/~0d", 2),
        ("/", 3),
    ],
)
def test_a_pointer_finds_its_value(pointer: str, expected: object) -> None:
    """R-INV-1: as RFC 6901 has it."""
    assert at_pointer({"a": [{"b/c": 1, "~d": 2}], "": 3}, pointer) == expected


@pytest.mark.parametrize(
    "text", ["42", "00042", "18446744073709551615", "0"], ids=lambda text: text
)
def test_a_version_in_a_header_is_a_decimal_number(text: str) -> None:
    """R-REC-1, SCRIPT-4: exact up to 2^64."""
    versions = reported(IN_HEADER, KEY, {"x-version": text}, None)

    assert versions == {SCOPE: SourceVersion.of("shop-db", int(text))}


@pytest.mark.parametrize("value", [42, "42", 2**64 - 1, 0], ids=repr)
def test_a_version_in_the_body_is_a_number_or_its_digits(value: object) -> None:
    """R-REC-1: a position is its source's."""
    versions = reported(IN_BODY, KEY, {}, {"meta": {"position": value}})

    assert versions == {"shop-db": SourceVersion.of("shop-db", int(str(value)))}


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", "1.0", "v41", "41, 42", "18446744073709551616", "9" * 21, "4²"],
)
def test_a_header_that_is_no_version_is_named(text: str) -> None:
    """CDC-ORDER-4, R-INV-2: a value whose version is unknown proves nothing."""
    with pytest.raises(OriginInvalid, match="X-Version"):
        reported(IN_HEADER, KEY, {"x-version": text}, None)


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        [],
        {"meta": {}},
        {"meta": []},
        {"meta": {"position": None}},
        {"meta": {"position": True}},
        {"meta": {"position": -1}},
        {"meta": {"position": 1.0}},
        {"meta": {"position": 2.0**64}},
        {"meta": {"position": "0x1"}},
        {"meta": {"position": [1]}},
    ],
    ids=str,
)
def test_a_body_without_its_version_is_named(document: object) -> None:
    """CDC-ORDER-4: absent, negative, too large and not an integer alike."""
    with pytest.raises(OriginInvalid, match="/meta/position"):
        reported(IN_BODY, KEY, {}, document)


def test_an_absent_header_is_named() -> None:
    """R-REC-1: the origin that stopped sending it is told from one that never did."""
    with pytest.raises(OriginInvalid, match="no version in header X-Version"):
        reported(IN_HEADER, KEY, {}, None)


def test_a_dataset_without_versions_reports_none() -> None:
    """R-INV-1: where possible."""
    assert reported(LoaderVersion(), KEY, {"x-version": "42"}, {"version": 42}) == {}


def test_a_not_found_has_a_version_only_if_it_says_so() -> None:
    """R-POL-7: a deletion is a version like any other; a plain 404 is none."""
    said = reported_with_not_found(IN_HEADER, KEY, {"x-version": "43"})

    assert said == {SCOPE: SourceVersion.of("shop-db", 43)}
    assert reported_with_not_found(IN_HEADER, KEY, {}) == {}
    assert reported_with_not_found(IN_BODY, KEY, {}) == {}
    assert reported_with_not_found(LoaderVersion(), KEY, {"x-version": "1"}) == {}
