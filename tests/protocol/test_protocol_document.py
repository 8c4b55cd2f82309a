"""PROTOCOL.md says what the scripts do: its names, its commands, its rows."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import warmer.store
from tests.servers import ServerProcess
from warmer.store import reference
from warmer.store.script import Script

STORE = Path(warmer.store.__file__).parent
DOCUMENT = (STORE / "PROTOCOL.md").read_text()
TESTS = Path(__file__).parent.parent


def test_every_clause_is_explained_in_one_line() -> None:
    """R-CARD-4: another language's client is written from the document."""
    source = Path(reference.__file__).read_text()
    clauses = re.findall(r"# \[([a-z._]+)\]", source)
    explained = re.findall(r"^- `\[([a-z._]+)\]` \S", DOCUMENT, re.MULTILINE)

    assert sorted(explained) == sorted(set(clauses))


@pytest.mark.parametrize("name", ["claim", "renew", "publish", "release", "invalidate"])
def test_keys_and_arguments_are_listed_in_their_order(name: str) -> None:
    """R-CARD-4."""
    script = Script(name)
    section = DOCUMENT.partition(f"\n### {name}: ")[2]
    keys, _, rest = section.partition("\n")
    arguments = re.search(r"`([^`]+)`", rest)

    assert keys == ", ".join(script.keys)
    assert arguments is not None
    assert tuple(arguments[1].split()) == script.arguments


def test_every_row_of_the_crash_table_names_a_test_that_exists() -> None:
    """R-CARD-4."""
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    written = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", written))

    assert len(named) > 10
    assert named <= defined


def test_the_commands_reply_as_the_document_says(
    server: ServerProcess, tmp_path: Path
) -> None:
    """R-CARD-4: by hand, with nothing but redis-cli."""
    block = re.search(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)
    client = shutil.which("redis-cli")
    assert block is not None
    assert client is not None
    expected = re.findall(r"  # ([A-Z]+)$", block[1], re.MULTILINE)
    at_this_server = tmp_path / "redis-cli"
    at_this_server.write_text(f'#!/bin/sh\nexec {client} -p {server.port} "$@"\n')
    at_this_server.chmod(0o755)

    done = subprocess.run(
        ["sh", "-eu", "-c", re.sub(r"  # [A-Z]+\n", " | head -n 1\n", block[1])],
        cwd=STORE / "lua",
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == expected
    assert len(expected) == 10
