"""Canonical cache keys: every input that changes the answer, in one form.

Holds: two different inputs never make one key, and a key is always printable ASCII
without spaces, so it cannot split a log line or a protocol line. Every part is
percent-encoded (`%`, `:`, `;`, `{`, `}`, control characters, space and everything outside
ASCII); a key over 512 bytes keeps a readable head and ends in a digest of the whole.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from warmer.errors import BadEvent, BadKey

MAX_KEY_BYTES = 512
_HEAD_BYTES = 440
MAX_ENTITY_BYTES = 256

_ENTITY = re.compile(r"[!-$&-:<-z|~]+")
_TO_SPELL = re.compile(rb"%[0-9A-Fa-f]{2}|[^!-$&-:<-z|~]")

Part = str | int | bool | bytes
"""What a key part may be. Text and integers of the same spelling are the same part."""

_SAFE = re.compile(r"[!-$&-9<-z|~]*")
_PART = r"(?:[!-$&-9<-z|~]|%[0-9A-F]{2})*"
_SCHEMA = r"0|[1-9][0-9]{0,9}"
_DIGESTED = re.compile(r"[!-~]+%~[0-9a-f]{64}")
_SAFE_BYTES = frozenset(range(0x21, 0x7F)) - frozenset(b"%:;{}")
"""`;` separates scopes in a version vector, `:` parts, braces mark hash tags."""


def encode_part(name: str, value: Part) -> str:
    """Return `value` as it stands in a key.

    Raises BadKey for a type whose spelling is not canonical (None, float, …).
    """
    if isinstance(value, str):
        if _SAFE.fullmatch(value):
            return str(value)
        try:
            return _encode(value.encode())
        except UnicodeEncodeError:
            # Escaping surrogates would let two different texts meet in one key.
            raise BadKey(f"part {name!r} is not valid Unicode text") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes):
        return _encode(value)
    raise BadKey(
        f"part {name!r} is {type(value).__name__}; allowed are str, int, bool and bytes"
    )


def decode_part(text: str) -> str | bytes:
    """Return what `encode_part` was given: text, or bytes where they are not UTF-8."""
    if text.isascii() and "%" not in text:
        return text
    raw = re.sub(
        rb"%([0-9A-F]{2})",
        lambda found: bytes([int(found[1], 16)]),
        text.encode("ascii"),
    )
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def canonical_entity(text: str) -> str:
    """Return an entity id such as `product:42` in the one form that scopes use.

    What is already percent-encoded is taken for what it stands for, however much of it is
    and in whichever case; `:` separates. Raises BadEvent for an empty or too long id.
    """
    if not _ENTITY.fullmatch(text):
        raw = text.encode("utf-8", "surrogatepass")
        text = _TO_SPELL.sub(_spelled, raw).decode("ascii")
    if not 0 < len(text) <= MAX_ENTITY_BYTES:
        raise BadEvent(f"entity: {len(text)} bytes, allowed are 1 … {MAX_ENTITY_BYTES}")
    return text


def _spelled(found: re.Match[bytes]) -> bytes:
    byte = int(found[0][1:], 16) if len(found[0]) > 1 else found[0][0]
    return bytes([byte]) if byte in _SAFE_BYTES else b"%%%02X" % byte


def _encode(raw: bytes) -> str:
    return "".join(chr(byte) if byte in _SAFE_BYTES else f"%{byte:02X}" for byte in raw)


@dataclass(frozen=True, slots=True)
class Key:
    """One variant of a dataset: its canonical text, and the parts it was built from.

    `parts` holds the parts percent-encoded and in template order, so that equal keys
    have equal parts whatever types they were given as.
    """

    text: str
    dataset: str
    schema_version: int
    parts: tuple[tuple[str, str], ...]

    def digest(self) -> int:
        """Return the 64-bit digest that the entry header carries."""
        return key_digest(self.text)


@lru_cache(maxsize=8192)
def key_digest(text: str) -> int:
    """Return the 64-bit digest of a key's text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class KeyTemplate:
    """A key template such as `product:v{schema}:{locale}:{id}`.

    Literal text may not hold braces or percent signs; `{schema}` must be there, so that
    an incompatible change of representation gets new keys.
    """

    __slots__ = ("_pieces", "_regex", "names", "text")

    def __init__(self, text: str) -> None:
        """Parse `text`; raises BadKey that says what is wrong with it."""
        self.text = text
        self._pieces = re.split(r"\{([a-z][a-z0-9_]*)\}", text)
        literals, names = self._pieces[::2], self._pieces[1::2]
        if any(not re.fullmatch(r"[!-$&-z|~]*", literal) for literal in literals):
            raise BadKey(
                f"key template {text!r}: between the parts only printable ASCII "
                "without spaces, braces and % is allowed; parts are {lower_case} names"
            )
        if any(not literal for literal in literals[1:-1]):
            raise BadKey(
                f"key template {text!r}: two parts need something between them"
            )
        if any(":" not in literal for literal in literals[1:-1]):
            # Any other separator is not percent-encoded inside parts, so that
            # a-b + c and a + b-c would meet in one key.
            raise BadKey(f"key template {text!r}: parts must be separated by ':'")
        if "schema" not in names:
            raise BadKey(f"key template {text!r}: {{schema}} is missing")
        if len(set(names)) != len(names):
            raise BadKey(f"key template {text!r}: a part is named twice")
        self.names = tuple(name for name in names if name != "schema")
        self._regex = re.compile(
            "".join(
                f"(?P<{piece}>{_SCHEMA if piece == 'schema' else _PART})"
                if at % 2
                else re.escape(piece)
                for at, piece in enumerate(self._pieces)
            )
        )

    def key(self, dataset: str, schema_version: int, parts: Mapping[str, Part]) -> Key:
        """Return the key for these parts; raises BadKey naming what is missing or unknown."""
        encoded: list[tuple[str, str]] = []
        pieces = list(self._pieces)
        for at in range(1, len(pieces), 2):
            name = pieces[at]
            if name == "schema":
                pieces[at] = str(schema_version)
                continue
            try:
                value = parts[name]
            except KeyError:
                extra = sorted(set(parts) - set(self.names))
                but = f", and there is no part {extra[0]!r}" if extra else ""
                raise BadKey(
                    f"dataset {dataset!r}: part {name!r} is missing{but}"
                ) from None
            pieces[at] = encode_part(name, value)
            encoded.append((name, pieces[at]))
        if len(parts) != len(encoded):
            unknown = sorted(set(parts) - set(self.names))
            raise BadKey(f"dataset {dataset!r} has no part {unknown[0]!r}")
        text = "".join(pieces)
        if len(text) > MAX_KEY_BYTES:
            digest = blake2b(text.encode(), digest_size=32).hexdigest()
            # A % that no hex digits follow stands in no other key.
            text = f"{text[:_HEAD_BYTES]}%~{digest}"
        return Key(text, dataset, schema_version, tuple(encoded))

    def parse(self, text: str) -> "tuple[int, dict[str, str]] | None":
        """Return schema version and encoded parts of a key's text, None if it is no such key.

        A digested key does not tell them.
        """
        found = self._regex.fullmatch(text)
        if found is None or len(text) > MAX_KEY_BYTES:
            return None
        parts = found.groupdict()
        return int(parts.pop("schema")), parts

    def may_have_digested(self, text: str) -> bool:
        """Return whether `text` may be a key over the bound that this template made."""
        return (
            len(text) == _HEAD_BYTES + len("%~") + 64
            and text.startswith(self._pieces[0])
            and _DIGESTED.fullmatch(text) is not None
        )
