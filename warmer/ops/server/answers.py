"""What a request is answered: JSON, and problems as RFC 9457 has them."""

from collections.abc import Mapping
from http import HTTPStatus

import orjson
from starlette.responses import Response
from typing_extensions import override

from warmer.ingest.intake import Taken


class Json(Response):
    """A JSON answer."""

    media_type = "application/json"

    @override
    def render(self, content: object) -> bytes:
        return orjson.dumps(content)


class _ProblemJson(Json):
    media_type = "application/problem+json"


def taken(result: Taken) -> Response:
    """Return that everything is in the log, or set aside."""
    return Json(
        {
            "accepted": result.accepted,
            "duplicate": result.duplicate,
            "ignored": result.ignored,
            "dead": result.dead,
        },
        status_code=HTTPStatus.ACCEPTED,
    )


def problem(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a problem; `detail` says nothing that the caller must not know."""
    return _ProblemJson(
        {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
        },
        status_code=status,
        headers=dict(headers or {}),
    )


def again(detail: str, *, in_s: int) -> Response:
    """Return that the same request will do later."""
    return problem(
        HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": str(in_s)}
    )
