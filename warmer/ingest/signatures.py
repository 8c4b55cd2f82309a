"""Who sent a request: its signature, over the bytes as they came.

Holds: bytes are compared in constant time, and every secret is tried, whichever matches.
Nothing of the body is read before: not its JSON, not its compression.
A refusal says in one word why, for a counter; the sender is told nothing.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Iterable, Mapping

from warmer.errors import BadSignature
from warmer.model.source import Auth, Scheme

Headers = Mapping[str, str]
"""By lower-case name."""

MISSING, MALFORMED, WRONG = "missing", "malformed", "wrong"
TOO_OLD, TOO_NEW = "too_old", "too_new"

MAX_SIGNATURES = 16
"""Signatures of one request: while secrets are exchanged there are two."""
MAX_ID_CHARS = 256

_SECONDS = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


def verify(auth: Auth, headers: Headers, body: bytes, *, now_s: float) -> str:
    """Return the delivery's id, "" where its scheme has none; raises BadSignature."""
    return _CHECKS[auth.scheme](auth, headers, body, now_s)


def _standard_webhooks(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    id_ = _needed(headers, "webhook-id")
    sent_s = _needed(headers, "webhook-timestamp")
    signatures = _needed(headers, "webhook-signature").split(" ")
    _in_time(auth, sent_s, now_s, both_ways=True)
    signed = f"{id_}.{sent_s}.".encode() + body
    given = [
        encoded.encode()
        for version, comma, encoded in (item.partition(",") for item in signatures)
        # Other versions (v1a, v2) are for those who know them.
        if comma and version == "v1"
    ]
    expected = [
        base64.b64encode(_hmac(_key_of(secret), signed)) for secret in auth.secrets
    ]
    _any_equal(given, expected)
    return id_[:MAX_ID_CHARS]


def _github(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    _ = now_s  # its deliveries carry no time
    _hex_of_body(auth, _needed(headers, "x-hub-signature-256"), body)
    return headers.get("x-github-delivery", "")[:MAX_ID_CHARS]


def _gitlab(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    if "webhook-signature" in headers:
        return _standard_webhooks(auth, headers, body, now_s)
    _any_equal([_needed(headers, "x-gitlab-token").encode()], auth.secrets)
    return headers.get("x-gitlab-event-uuid", "")[:MAX_ID_CHARS]


def _stripe(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    items = [
        item.partition("=")[::2]
        for item in _needed(headers, "stripe-signature").split(",")
    ]
    times = [value.strip() for name, value in items if name.strip() == "t"]
    if len(times) != 1:
        raise BadSignature(MALFORMED)
    _in_time(auth, times[0], now_s, both_ways=False)
    given = [value.strip().encode() for name, value in items if name.strip() == "v1"]
    signed = f"{times[0]}.".encode() + body
    _any_equal(given, [_hmac(secret, signed).hex().encode() for secret in auth.secrets])
    return ""


def _hmac_sha256(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    _ = now_s
    _hex_of_body(auth, _needed(headers, "x-signature"), body)
    return ""


def _bearer(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    _ = body, now_s
    scheme, _, token = _needed(headers, "authorization").partition(" ")
    if scheme.lower() != "bearer":
        raise BadSignature(MALFORMED)
    _any_equal([token.strip().encode()], auth.secrets)
    return ""


def _none(auth: Auth, headers: Headers, body: bytes, now_s: float) -> str:
    _ = auth, body, now_s
    return headers.get("webhook-id", "")[:MAX_ID_CHARS]


_CHECKS: Mapping[Scheme, Callable[[Auth, Headers, bytes, float], str]] = {
    Scheme.STANDARD_WEBHOOKS: _standard_webhooks,
    Scheme.GITHUB: _github,
    Scheme.GITLAB: _gitlab,
    Scheme.STRIPE: _stripe,
    Scheme.HMAC: _hmac_sha256,
    Scheme.BEARER: _bearer,
    Scheme.NONE: _none,
}


def _needed(headers: Headers, name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise BadSignature(MISSING)
    return value


def _in_time(auth: Auth, sent_s: str, now_s: float, *, both_ways: bool) -> None:
    if not _SECONDS.fullmatch(sent_s):
        raise BadSignature(MALFORMED)
    age_ms = (now_s - int(sent_s)) * 1000
    if age_ms > auth.tolerance_ms:
        raise BadSignature(TOO_OLD)
    if both_ways and -age_ms > auth.tolerance_ms:
        raise BadSignature(TOO_NEW)


def _hex_of_body(auth: Auth, header: str, body: bytes) -> None:
    algorithm, _, digits = header.partition("=")
    if algorithm != "sha256" or not _HEX.fullmatch(digits):
        raise BadSignature(MALFORMED)
    expected = [_hmac(secret, body).hex().encode() for secret in auth.secrets]
    _any_equal([digits.lower().encode()], expected)


def _any_equal(given: list[bytes], expected: Iterable[bytes]) -> None:
    if not given or len(given) > MAX_SIGNATURES:
        raise BadSignature(MALFORMED)
    found = False
    for right in expected:
        for one in given:
            # No early end: how long it takes tells nothing of which one is near.
            found |= hmac.compare_digest(one, right)
    if not found:
        raise BadSignature(WRONG)


def _key_of(secret: bytes) -> bytes:
    """Return the key in `whsec_…`: base64, with or without its padding."""
    encoded = secret.removeprefix(b"whsec_")
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        # Some senders use the text itself.
        return secret


def _hmac(key: bytes, signed: bytes) -> bytes:
    return hmac.digest(key, signed, "sha256")
