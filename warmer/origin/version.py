"""The source version that an answer reports, in a header or at a JSON pointer."""

import re
from collections.abc import Mapping

from warmer.errors import BadEvent, OriginInvalid
from warmer.model.dataset import LoaderVersion, VersionMeans
from warmer.model.key import Key
from warmer.model.version import SourceVersion, Versions

_DECIMAL = re.compile(r"[0-9]{1,20}")
_INDEX = re.compile(r"0|[1-9][0-9]*")
_ABSENT = object()


def reported(
    declared: LoaderVersion, key: Key, headers: Mapping[str, str], document: object
) -> Versions:
    """Return the version of a value; raises OriginInvalid where the declared one is absent.

    `document` is the parsed JSON body, None if the body is no JSON.
    """
    if declared.means is VersionMeans.NONE:
        return {}
    if declared.header is not None:
        text: object = headers.get(declared.header.lower(), _ABSENT)
        return _of(declared, key, text, f"header {declared.header}")
    pointer = declared.pointer or ""
    return _of(declared, key, at_pointer(document, pointer), f"pointer {pointer!r}")


def reported_with_not_found(
    declared: LoaderVersion, key: Key, headers: Mapping[str, str]
) -> Versions:
    """Return the version of a not-found, which has one only if it is in the header."""
    if declared.header is None or declared.header.lower() not in headers:
        return {}
    return reported(declared, key, headers, None)


def at_pointer(document: object, pointer: str) -> object:
    """Return what an RFC 6901 pointer means in `document`."""
    found = document
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        match found:
            case dict() if name in found:
                found = found[name]
            case list() if _INDEX.fullmatch(name) and int(name) < len(found):
                found = found[int(name)]
            case _:
                return _ABSENT
    return found


def _of(declared: LoaderVersion, key: Key, value: object, where: str) -> Versions:
    if value is _ABSENT or value is None:
        raise OriginInvalid(f"no version in {where}")
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        # orjson gives integers of 2^64 and more as floats.
        raise OriginInvalid(f"the version in {where} is no integer below 2^64")
    try:
        version = SourceVersion.of(declared.source, value)
    except BadEvent as exc:
        raise OriginInvalid(f"the version in {where}: {exc}") from None
    return {declared.scope(key): version}
