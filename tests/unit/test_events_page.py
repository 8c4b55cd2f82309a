"""EVENTS.md is true: its declarations are accepted, its messages become what it says."""

import re
from pathlib import Path

import orjson
import pytest

from tests.processes import CHECKOUT
from warmer.ingest.formats import FORMATS, Changes, Message, reader
from warmer.ingest.mapping import arrivals
from warmer.model.dataset_config import configuration_of
from warmer.model.source import Source
from warmer.settings import read_settings

PAGE = (CHECKOUT / "warmer/ingest/EVENTS.md").read_text()
SECTIONS = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MESSAGE = re.compile(
    r"^```json\n(.*?)^```\n\n(.*?Becomes .*?)\n\n", re.MULTILINE | re.DOTALL
)
_KEY = re.compile(r"record's key `(\{.*?\})`")
_SECRET = re.compile(r'"env:(\w+)"')
_CREDENTIAL = re.compile(r'"credential:(\w+)"')


def blocks() -> list[tuple[str, str]]:
    return [
        (title, block)
        for title, text in SECTIONS.items()
        for block in _TOML.findall(text)
    ]


def declared(folder: Path, block: str) -> Source:
    """The one source that a block declares."""
    file = folder / "warmer.toml"
    file.write_text('[cache]\nurl = "redis://127.0.0.1:6379/0"\n' + block)
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - a published example
    environment = dict.fromkeys(_SECRET.findall(block), secret)
    for name in _CREDENTIAL.findall(block):
        (folder / name).write_text(secret)
        environment["CREDENTIALS_DIRECTORY"] = str(folder)
    settings = read_settings(file, environment=environment)
    (source,) = configuration_of(settings).sources.values()
    return source


@pytest.mark.parametrize(("title", "block"), blocks())
def test_every_declaration_is_accepted(tmp_path: Path, title: str, block: str) -> None:
    """R-CARD-2."""
    source = declared(tmp_path, block)
    assert title in {f"`{source.format}`", "Rows and entities"}
    assert source.auth is not None or source.stream is not None or "tables" in block


def test_every_format_has_its_section_and_its_message() -> None:
    shown = [title.strip("`") for title in SECTIONS if title.startswith("`")]
    assert sorted(shown) == sorted(FORMATS)
    assert all(_MESSAGE.search(SECTIONS[f"`{name}`"]) for name in FORMATS)
    assert PAGE.count("```json") == sum(
        len(_MESSAGE.findall(text)) for text in SECTIONS.values()
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_message_becomes_what_is_said_of_it(tmp_path: Path, name: str) -> None:
    """R-INV-1: the entities, and the version that orders them."""
    section = SECTIONS[f"`{name}`"]
    source = declared(tmp_path, _TOML.findall(section)[0])
    for text, about in _MESSAGE.findall(section):
        value = orjson.loads(text)
        key = _KEY.search(about)
        messages = [
            Message(each, key=orjson.loads(key[1]) if key else None)
            for each in (value if isinstance(value, list) else [value])
        ]
        events = [
            arrival.event
            for found in reader(name)(messages, source)
            if isinstance(found, Changes)
            for arrival in arrivals(found, source)[0]
        ]
        (event,) = events
        entities, version = re.split(
            r", (?:no version|version )", about.partition("Becomes ")[2], maxsplit=1
        )
        assert re.findall(r"`(.+?)`", entities) == [*event.entities, *event.prefixes]
        assert re.findall(r"^`(.+?)`", version) == (
            [] if event.version is None else [str(event.version)]
        )


def test_what_orders_them_is_told_of_every_format() -> None:
    rows = re.findall(r"^\| `([\w-]+)`", SECTIONS["What orders them"], re.MULTILINE)
    assert {*rows} == {"format", *FORMATS}
