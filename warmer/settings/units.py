"""Durations, sizes, whole numbers and spreads as people write them, with their range.

Holds: a refusal names the allowed range and the forms, and never repeats the value.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import override

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*(ms|s|m|h|d)?")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"([0-9]{1,15})\s*(B|KB|KiB|MB|MiB|GB|GiB)?")
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "GB": 10**9,
    "GiB": 2**30,
}
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


def milliseconds(duration: timedelta) -> int:
    """Return the duration as the rest of the package counts it."""
    return duration // timedelta(milliseconds=1)


def parse_duration(value: object) -> int | None:
    """Return milliseconds for `500ms`, `60s`, `10m`, `2h`, `7d` or seconds; else None."""
    if isinstance(value, timedelta):
        return milliseconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = _DURATION.fullmatch(str(value).strip())
    if found is None:
        return None
    return round(float(found[1]) * _MILLISECONDS[found[2] or "s"])


def parse_size(value: object) -> int | None:
    """Return bytes for `1KiB`, `16KB`, `8MiB` or a number of bytes; else None."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    found = _SIZE.fullmatch(str(value).strip())
    return None if found is None else int(found[1]) * _BYTES[found[2] or "B"]


def write_duration(duration: timedelta) -> str:
    """Return the duration as it stands in a file: `60s`, `500ms`, `0s`."""
    ms = milliseconds(duration)
    # Minutes stay seconds below 10 min: 90s and 60s are how people write them.
    for unit, least in (("d", 1), ("h", 1), ("m", 10), ("s", 1)):
        size = _MILLISECONDS[unit]
        if ms >= least * size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def write_size(size: int) -> str:
    """Return the size as it stands in a file: `8MiB`, `1KiB`, `100`."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


@dataclass(frozen=True, slots=True)
class _Range:
    """How pydantic reads one kind of quantity."""

    least: int | str
    most: int | str

    def _schema(
        self,
        parse: Callable[[object], object],
        write: Callable[[Any], object],
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            parse,
            serialization=core_schema.plain_serializer_function_ser_schema(write),
        )


class Duration(_Range):
    """`Annotated[timedelta, Duration("1s", "366d")]`; a least of `0` means 0 switches it off."""

    __slots__ = ()

    def __get_pydantic_core_schema__(
        self, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return self._schema(self._parse, write_duration)

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {
            "type": ["string", "number"],
            "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d)?$",
            "minimum": 0,
        }

    def _parse(self, value: object) -> timedelta:
        ms = parse_duration(value)
        least, most = parse_duration(self.least), parse_duration(self.most)
        if ms is None or least is None or most is None or not least <= ms <= most:
            raise PydanticCustomError(
                "duration",
                "allowed are {least} … {most}, written 500ms, 60s, 10m, 2h or 7d, "
                "or as a number of seconds",
                {"least": self.least, "most": self.most},
            )
        return timedelta(milliseconds=ms)


class Size(_Range):
    """`Annotated[int, Size("1KiB", "64MiB")]`: bytes."""

    __slots__ = ()

    def __get_pydantic_core_schema__(
        self, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return self._schema(self._parse, write_size)

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {
            "type": ["string", "integer"],
            "pattern": r"^\d+\s*(B|KB|KiB|MB|MiB|GB|GiB)?$",
            "minimum": 0,
        }

    def _parse(self, value: object) -> int:
        size = parse_size(value)
        least, most = parse_size(self.least), parse_size(self.most)
        if size is None or least is None or most is None or not least <= size <= most:
            raise PydanticCustomError(
                "size",
                "allowed are {least} … {most}, written 1KiB, 16KB or 8MiB, "
                "or as a number of bytes",
                {"least": self.least, "most": self.most},
            )
        return size


class Whole(_Range):
    """`Annotated[int, Whole(1, 4096)]`: a whole number."""

    __slots__ = ()

    def __get_pydantic_core_schema__(
        self, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return self._schema(self._parse, int)

    def __get_pydantic_json_schema__(
        self, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}

    def _parse(self, value: object) -> int:
        # An environment variable is text.
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
            value = int(value)
        least, most = int(self.least), int(self.most)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value <= most
        ):
            raise PydanticCustomError(
                "whole",
                "allowed are the whole numbers {least} … {most}",
                {"least": least, "most": most},
            )
        return value


@dataclass(frozen=True, slots=True)
class Spread:
    """How far instants are spread: by a share of the duration, or by up to an amount."""

    ratio: float = 0.0
    amount: timedelta = timedelta(0)

    @classmethod
    def parse(cls, value: object) -> "Spread":
        """Return the spread that `10%` or `5s` stands for."""
        if isinstance(value, Spread):
            return value
        percent = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
        # 100 % could make a value stale as it is written.
        if percent is not None and float(percent[1]) <= 50:  # noqa: PLR2004
            return cls(ratio=float(percent[1]) / 100)
        ms = parse_duration(value)
        if ms is None or ms > _MILLISECONDS["d"]:
            raise PydanticCustomError(
                "spread",
                "allowed are 0% … 50% of the duration, or an amount 0 … 1d such as 5s",
            )
        return cls(amount=timedelta(milliseconds=ms))

    @override
    def __str__(self) -> str:
        """Return the spread as it stands in a file."""
        return f"{self.ratio * 100:g}%" if self.ratio else write_duration(self.amount)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, object]:
        return {
            "type": ["string", "number"],
            "pattern": r"^\d+(\.\d+)?\s*(%|ms|s|m|h|d)?$",
        }
