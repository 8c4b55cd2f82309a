"""Where an origin is, and which bytes of a request line stand for a key.

Holds: literal text goes out as it was configured. A part's value is percent-encoded once,
every byte but letters, digits and `-._~`, so that it can neither end its segment nor begin
a query, and never names another path (`..`, an empty segment).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit

from warmer.errors import BadKey, ConfigError, OriginInvalid
from warmer.model.key import Key, decode_part

_BASE_URL = re.compile(r"(https?)://([^\s/?#@]+)(/[!-\"$->@-~]*)?")
_TARGET = re.compile(r"/[!-\"$-~]*")
"""What may stand in a request line: visible ASCII, and no fragment."""
_PART = re.compile(r"\{([a-z][a-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class OriginTarget:
    """One HTTP origin, and how it may be asked.

    `headers`: sent with every load, besides Host, User-Agent, Accept and Accept-Encoding.
    `max_bytes`: of an answer, on the wire and inflated. `allow_private`: store what the
    origin marks as one caller's own (Set-Cookie, Cache-Control: private or no-store).
    `local_limit`, `local_queue`: loads of this process at once, and in line. `fleet_limit`:
    of all processes, of which this one may be granted all; 0 for none.
    """

    name: str
    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_ms: int = 1_000
    read_ms: int = 5_000
    max_bytes: int = 8 * 2**20
    allow_redirects: bool = False
    allow_private: bool = False
    local_limit: int = 8
    local_queue: int = 256
    fleet_limit: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """A base URL, taken apart: every request goes to this scheme and host."""

    scheme: str
    host: str
    prefix: str

    @classmethod
    def of(cls, base_url: str) -> "Address":
        """Return the address of a base URL; raises ConfigError if it is none."""
        found = _BASE_URL.fullmatch(base_url)
        if found is None:
            raise ConfigError(
                f"base_url: {base_url!r} is not http(s)://host[:port][/path]"
            )
        return cls(found[1], found[2].lower(), (found[3] or "").rstrip("/"))

    def redirected(self, target: str, location: str) -> str:
        """Return the target that `location` means, seen from `target`.

        Raises OriginInvalid where it leaves the configured host.
        """
        origin = f"{self.scheme}://{self.host}"
        # urljoin removes tabs and line ends, and urlsplit lower-cases: what is sent in
        # the end is the target alone, to the configured host, whatever was meant.
        try:
            to = urlsplit(urljoin(origin + target, location))
        except ValueError as exc:
            raise OriginInvalid("redirected to what is no URL") from exc
        if (to.scheme, to.netloc.lower()) != (self.scheme, self.host):
            raise OriginInvalid("redirected to another host")
        path = to.path or "/"
        moved = f"{path}?{to.query}" if to.query else path
        if not _TARGET.fullmatch(moved):
            raise OriginInvalid("redirected to what is no URL")
        return moved


class PathTemplate:
    """A dataset's path, such as `/products/{id}?locale={locale}`."""

    __slots__ = ("_address", "_segments", "_text", "names")

    def __init__(self, text: str, names: Iterable[str], address: Address) -> None:
        """Parse `text`; raises ConfigError naming what is wrong with it.

        `names` are the parts that the dataset's keys have, `schema` besides.
        """
        self._text = address.prefix + text
        self._address = address
        self.names = tuple(_PART.findall(text))
        unknown = set(self.names) - {*names, "schema"}
        if unknown:
            raise ConfigError(f"path: {text!r}: the key has no part {min(unknown)!r}")
        if not text.startswith("/") or not _TARGET.fullmatch(text):
            raise ConfigError(
                f"path: {text!r} must begin with / and be visible ASCII without #"
            )
        if re.search(r"[{}]", _PART.sub("", text)):
            raise ConfigError(f"path: {text!r}: parts are {{lower_case}} names")
        self._segments = self._text.partition("?")[0].split("/")

    def target(self, key: Key) -> str:
        """Return the request target for `key`; raises BadKey if it would name another."""
        values = {"schema": str(key.schema_version)} | {
            name: quote(decode_part(text), safe="") for name, text in key.parts
        }
        target = _PART.sub(lambda found: values[found[1]], self._text)
        path = target.partition("?")[0].split("/")
        for template, segment in zip(self._segments, path, strict=True):
            if template != segment and segment in ("", ".", ".."):
                raise BadKey(
                    f"dataset {key.dataset!r}: {segment!r} would name another path"
                )
        return target
