"""What an origin's answer means: status and headers -> a value, nothing there, or an error.

Holds: an error is never a value, and a refusal (401, 403, 429 …) never "does not exist".
An answer that the origin marks as one caller's own is not stored, unless the origin's
setting says that it marks everything so. Where it said when to come back, the error says.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus

from warmer.errors import OriginInvalid, OriginRefused, OriginUnavailable

_SECONDS = re.compile(r"[0-9]{1,9}")


class Verdict(StrEnum):
    """What to make of an answer's body."""

    VALUE = "value"
    """It is the value."""
    EMPTY = "empty"
    """The value is no bytes at all."""
    NOT_FOUND = "not_found"
    """The source has no such thing; the body is an explanation."""
    REDIRECT = "redirect"
    """It is elsewhere."""


_EMPTY = (HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT)
_NOT_FOUND = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_REDIRECTS = (
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
)
_TRANSIENT = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY)
_OWN = ("private", "no-store")


def verdict(
    status: int, headers: Mapping[str, str], *, allow_private: bool, now_ms: int
) -> Verdict:
    """Return what the answer is; raises OriginError for what must not be stored.

    `headers` are found by lower-case names; `now_ms` is for a date in Retry-After.
    """
    if status in _REDIRECTS:
        return Verdict.REDIRECT
    if status in _NOT_FOUND:
        # Not checked for being private: that nothing is there is nobody's own.
        return Verdict.NOT_FOUND
    if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        raise _error(status, headers, now_ms)
    if status == HTTPStatus.PARTIAL_CONTENT:
        raise OriginInvalid("status 206: a part of the answer")
    if not allow_private:
        _refuse_private(headers)
    return Verdict.EMPTY if status in _EMPTY else Verdict.VALUE


def retry_in_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """Return what Retry-After asks for, in seconds or as a date; None if it is neither."""
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    at = _instant_ms(text)
    if at is None:
        return None
    # By the origin's own clock where it sent that, too.
    now = _instant_ms(headers.get("date", ""))
    return max(0, at - (now_ms if now is None else now))


def _error(
    status: int, headers: Mapping[str, str], now_ms: int
) -> OriginInvalid | OriginRefused | OriginUnavailable:
    wait_ms = retry_in_ms(headers, now_ms)
    text = f"status {status}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return OriginRefused(text, retry_in_ms=wait_ms, busy=True)
    if status == HTTPStatus.SERVICE_UNAVAILABLE and wait_ms is not None:
        return OriginRefused(text, retry_in_ms=wait_ms, busy=True)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return OriginUnavailable(text, busy=True)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT:
        return OriginUnavailable(text)
    if status >= HTTPStatus.BAD_REQUEST:
        return OriginRefused(text)
    return OriginInvalid(text)


def _refuse_private(headers: Mapping[str, str]) -> None:
    if "set-cookie" in headers:
        raise OriginInvalid("it sets a cookie, so it is one caller's own")
    if headers.get("vary", "").strip() == "*":
        raise OriginInvalid("Vary: *, so it is one caller's own")
    directives = headers.get("cache-control", "").lower().split(",")
    own = {directive.partition("=")[0].strip() for directive in directives}
    for word in _OWN:
        if word in own:
            raise OriginInvalid(f"Cache-Control: {word}, so it is not to be stored")


def _instant_ms(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        return None
