"""Who sent a request: published vectors, and everything that is not quite one."""

import base64
import hmac
from dataclasses import replace

import pytest

from warmer.errors import BadSignature
from warmer.ingest.signatures import verify
from warmer.model.source import Auth, Scheme

WHSEC = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STANDARD = Auth(Scheme.STANDARD_WEBHOOKS, (WHSEC,), 300_000)
GITHUB = Auth(Scheme.GITHUB, (b"It's a Secret to Everybody",), 300_000)
GITLAB = Auth(Scheme.GITLAB, (b"token",), 300_000)
STRIPE = Auth(Scheme.STRIPE, (b"whsec_used_as_it_is",), 300_000)
HMAC = Auth(Scheme.HMAC, (b"s3cret",), 300_000)
BEARER = Auth(Scheme.BEARER, (b"t0ken",), 300_000)

BODY = b'{"test": 2432232314}'
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
NOW = 1_614_265_330.0


def refused(
    auth: Auth, headers: dict[str, str], body: bytes = BODY, *, now_s: float = NOW
) -> str:
    with pytest.raises(BadSignature) as error:
        verify(auth, headers, body, now_s=now_s)
    return str(error.value)


def stripe(
    body: bytes, *, at: int = 1_614_265_330, secret: bytes = STRIPE.secrets[0]
) -> str:
    signed = f"{at}.".encode() + body
    return f"t={at},v1={hmac.digest(secret, signed, 'sha256').hex()}"


def test_the_published_vectors_hold() -> None:
    """WEBHOOK-1."""
    assert verify(STANDARD, HEADERS, BODY, now_s=NOW) == HEADERS["webhook-id"]
    debezium = {
        "webhook-id": "msg_22bd292a-71ab-46fe-a460-8632d6754ac6",
        "webhook-timestamp": "1234",
        "webhook-signature": "v1,qCVBRIv6rKQVhSJBAmUSE9GkdCdPe2j6xzzkm89UcoA=",
    }
    assert verify(STANDARD, debezium, b'{"hello":"world"}', now_s=1234.0)
    digits = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    github = {"x-hub-signature-256": f"sha256={digits}", "x-github-delivery": "guid"}
    assert verify(GITHUB, github, b"Hello, World!", now_s=0) == "guid"


def test_the_bytes_are_signed_and_not_what_they_mean() -> None:
    """WEBHOOK-1: two blanks and 1.0 stay what they were."""
    body = b'{"a":  1.0}'
    signed = stripe(body)
    assert verify(STRIPE, {"stripe-signature": signed}, body, now_s=NOW) == ""
    assert refused(STRIPE, {"stripe-signature": signed}, b'{"a":1.0}') == "wrong"


@pytest.mark.parametrize(
    "auth",
    [STANDARD, GITHUB, GITLAB, STRIPE, HMAC, BEARER],
    ids=lambda auth: auth.scheme,
)
def test_a_request_without_a_signature_is_nobodys(auth: Auth) -> None:
    assert refused(auth, {}) == "missing"


@pytest.mark.parametrize(
    "changed", ["webhook-id", "webhook-timestamp", "body", "secret"]
)
def test_whatever_is_changed_makes_it_wrong(changed: str) -> None:
    headers, body, auth = dict(HEADERS), BODY, STANDARD
    match changed:
        case "body":
            body = BODY + b" "
        case "secret":
            auth = replace(STANDARD, secrets=(b"whsec_" + base64.b64encode(b"o" * 24),))
        case "webhook-timestamp":
            headers[changed] = "1614265331"
        case _:
            headers[changed] += "x"
    assert refused(auth, headers, body) == "wrong"


def test_old_and_new_secret_hold_while_they_are_exchanged() -> None:
    new = b"whsec_" + base64.b64encode(b"n" * 32)
    for secrets in ((new, WHSEC), (WHSEC, new)):
        verify(replace(STANDARD, secrets=secrets), HEADERS, BODY, now_s=NOW)
    both = "v1,AAAA " + HEADERS["webhook-signature"]
    verify(STANDARD, HEADERS | {"webhook-signature": both}, BODY, now_s=NOW)


def test_a_secret_may_lack_its_padding() -> None:
    key = b"k" * 25
    padded = base64.b64encode(key)
    signed = f"a.{int(NOW)}.".encode() + BODY
    headers = {
        "webhook-id": "a",
        "webhook-timestamp": str(int(NOW)),
        "webhook-signature": "v1,"
        + base64.b64encode(hmac.digest(key, signed, "sha256")).decode(),
    }
    for secret in (padded, padded.rstrip(b"="), b"whsec_" + padded.rstrip(b"=")):
        verify(replace(STANDARD, secrets=(secret,)), headers, BODY, now_s=NOW)


@pytest.mark.parametrize("known", ["", "nonsense ", "v1a,AAAA ", "v2,AAAA ", ",, "])
def test_signatures_of_other_versions_are_passed_over(known: str) -> None:
    headers = HEADERS | {"webhook-signature": known + HEADERS["webhook-signature"]}
    verify(STANDARD, headers, BODY, now_s=NOW)


@pytest.mark.parametrize("signature", ["v1", "v1a,AAAA", "v2,g0hM9SsE", " "])
def test_no_signature_of_a_known_version_is_malformed(signature: str) -> None:
    headers = HEADERS | {"webhook-signature": signature}
    assert refused(STANDARD, headers) in {"malformed", "missing"}


def test_a_flood_of_signatures_is_not_computed() -> None:
    headers = HEADERS | {"webhook-signature": "v1,AAAA " * 1_000}
    assert refused(STANDARD, headers) == "malformed"


def test_a_timestamp_may_be_off_by_the_tolerance_both_ways() -> None:
    for off in (-300, 300):
        verify(STANDARD, HEADERS, BODY, now_s=NOW + off)
    assert refused(STANDARD, HEADERS, now_s=NOW + 301) == "too_old"
    assert refused(STANDARD, HEADERS, now_s=NOW - 301) == "too_new"


@pytest.mark.parametrize("sent", ["soon", "-1", "1e9", "1614265330.5", "9" * 30, "١٢"])
def test_a_timestamp_is_whole_seconds(sent: str) -> None:
    assert refused(STANDARD, HEADERS | {"webhook-timestamp": sent}) == "malformed"


def test_stripes_secret_is_used_as_it_is_and_only_age_counts() -> None:
    headers = {"stripe-signature": stripe(BODY)}
    verify(STRIPE, headers, BODY, now_s=NOW - 10_000)
    assert refused(STRIPE, headers, now_s=NOW + 301) == "too_old"
    several = stripe(BODY) + ",v1=" + "0" * 64 + ",v0=old"
    verify(STRIPE, {"stripe-signature": several}, BODY, now_s=NOW)
    assert refused(STRIPE, {"stripe-signature": "v1=00"}) == "malformed"
    twice = "t=1," + stripe(BODY)
    assert refused(STRIPE, {"stripe-signature": twice}) == "malformed"
    other = stripe(BODY, secret=b"other")
    assert refused(STRIPE, {"stripe-signature": other}) == "wrong"


def test_gitlab_sends_its_token_or_signs() -> None:
    sent = {"x-gitlab-token": "token", "x-gitlab-event-uuid": "u"}
    assert verify(GITLAB, sent, BODY, now_s=NOW) == "u"
    assert refused(GITLAB, {"x-gitlab-token": "Token"}) == "wrong"
    signing = replace(GITLAB, secrets=(WHSEC,))
    assert verify(signing, HEADERS, BODY, now_s=NOW) == HEADERS["webhook-id"]
    forged = HEADERS | {"webhook-signature": "v1,AAAA", "x-gitlab-token": "x"}
    assert refused(signing, forged) == "wrong"


@pytest.mark.parametrize("header", ["x-signature", "x-hub-signature-256"])
@pytest.mark.parametrize(
    "value", ["sha256=", "sha1=" + "0" * 40, "sha256=" + "g" * 64, "0" * 64, "sha256=é"]
)
def test_a_signature_in_another_form_is_malformed(header: str, value: str) -> None:
    auth = HMAC if header == "x-signature" else GITHUB
    assert refused(auth, {header: value}) == "malformed"


def test_a_bearers_token_is_compared_whole() -> None:
    """WEBHOOK-4."""
    verify(BEARER, {"authorization": "Bearer t0ken"}, BODY, now_s=NOW)
    verify(BEARER, {"authorization": "bearer t0ken "}, BODY, now_s=NOW)
    for value in ("Bearer t0ke", "Bearer t0kenn", "Bearer ", "Bearer t0ken, t0ken"):
        assert refused(BEARER, {"authorization": value}) == "wrong"
    assert refused(BEARER, {"authorization": "Basic t0ken"}) == "malformed"
    assert refused(BEARER, {"authorization": "Bearer \u00e9"}) == "wrong"


def test_none_takes_what_comes() -> None:
    auth = Auth(Scheme.NONE, (), 300_000)
    assert verify(auth, {"webhook-id": "a"}, BODY, now_s=NOW) == "a"
