"""`warmer dlq`, as an engineer meets it: real letters, replayed by the way they came."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.door import ENVIRONMENT, counts, door_on, logged
from tests.processes import ChildProcess, Children
from tests.servers import ServerProcess
from warmer.ingest.dead_letters import MAX_PAYLOAD_BYTES

CHANGE = {
    "after": {"sku": "A-1"},
    "source": {"connector": "postgresql", "table": "product", "lsn": 5},
    "op": "u",
}

DATASET = """
[datasets.product]
key = "product:v{schema}:{id}"
entities = ["shop-db/product:{id}"]
fresh_for = "60s"
"""


@dataclass
class Desk:
    """The command, on one control server."""

    server: ServerProcess
    children: Children
    file: Path

    def run(self, *arguments: str) -> ChildProcess:
        child = self.children.warmer(
            "dlq", *arguments, "--config", str(self.file), env=ENVIRONMENT
        )
        child.wait(within_s=20)
        return child

    def data(self, *arguments: str, status: int = 0) -> Any:
        child = self.run(*arguments, "--json")
        assert child.exit_status == status, child.output
        (line,) = [line for line in child.lines if line.startswith("{")]
        return json.loads(line)

    def park(self, *bodies: bytes, path: str = "/v1/events/shop") -> list[str]:
        """Have bodies set aside by a real door; return the letters' ids, oldest first."""
        folder = self.file.parent / "door"
        folder.mkdir(exist_ok=True)
        with door_on(self.server, self.children, folder) as door:
            for body in bodies:
                post = door.post_signed if path.endswith("shop-db") else door.post
                assert counts(post(path, body))["dead"]
        self.file.write_text((folder / "warmer.toml").read_text() + DATASET)
        return [letter["id"] for letter in self.data("list")["letters"]][::-1]


@pytest.fixture
def desk(valkey: ServerProcess, children: Children, tmp_path: Path) -> Desk:
    valkey.renew()
    file = tmp_path / "warmer.toml"
    file.write_text(f'[cache]\nurl = "{valkey.url}"\n')
    return Desk(valkey, children, file)


def test_letters_are_listed_and_shown(desk: Desk) -> None:
    first, second = desk.park(b'{"entity": 7}', b"\x1b[31mgarbage")
    listed = desk.data("list")
    assert listed["count"] == 2
    assert [letter["kind"] for letter in listed["letters"]] == ["body", "message"]
    assert listed["letters"][1]["reason"] == "entity: is a number, not text"
    assert [one["id"] for one in desk.data("list", "--kind", "message")["letters"]] == [
        first
    ]
    assert desk.data("list", "--source", "other")["letters"] == []
    shown = desk.run("show", second)
    assert shown.exit_status == 0
    assert "\x1b" not in shown.output
    assert "\\x1b[31mgarbage" in shown.output
    assert json.loads(desk.data("show", first)["payload"]) == {"entity": 7}
    assert ENVIRONMENT["TOKEN"] not in shown.output


def test_a_letter_is_replayed_once_it_can_be_read(desk: Desk) -> None:
    """CDC-SHAPE-6: and stays one letter until then, with its attempts."""
    (id_,) = desk.park(json.dumps(CHANGE).encode(), path="/v1/events/shop-db")
    (before,) = desk.data("list")["letters"]
    failed = desk.data("replay", id_, status=3)
    assert failed["replayed"] == 0
    assert "key: missing" in failed["failed"][0]["reason"]
    (again,) = desk.data("list")["letters"]
    assert (again["attempts"], again["first_at"]) == (2, before["first_at"])
    assert again["at"] >= before["at"]
    text = desk.file.read_text()
    desk.file.write_text(text.replace('key = ["id"]', 'key = ["sku"]'))
    assert desk.data("replay", "--all", "--source", "shop-db")["replayed"] == 1
    (event,) = logged(desk.server)
    assert event["entities"] == ["product:A-1"]
    assert "version" not in event
    assert desk.data("list") == {"letters": [], "count": 0}


def test_a_body_is_replayed_as_its_messages(desk: Desk) -> None:
    deep = b'{"x_deep":' * 300 + b"1" + b"}" * 300
    desk.park(b'[{"entity": "product:7"}, ' + deep + b"]", b"garbage")
    result = desk.data("replay", "--all", status=3)
    assert result["replayed"] == 0
    assert len(result["failed"]) == 2
    assert logged(desk.server) == []


def test_an_event_and_a_key_are_replayed_where_they_belong(desk: Desk) -> None:
    """CDC-GAP-4: its version may be of an order that ended; in the new one it would win."""
    event = json.dumps({"source": "shop-db", "entities": ["product:7"], "version": 3})
    member = '{"dataset":"product","parts":{"id":"7"},"schema":1}'
    add = ("XADD", "warmer:dead", "*")
    desk.server.command(
        *add,
        "kind",
        "event",
        "payload",
        event,
        "epoch",
        "2",
        "ordered",
        "1",
        "size",
        "9",
    )
    desk.server.command(*add, "kind", "key", "member", member, "wanted_fence", "4")
    desk.server.command(
        *add, "kind", "key", "member", member.replace("product", "gone")
    )
    desk.server.command(*add, "kind", "other")
    desk.file.write_text(desk.file.read_text() + DATASET)
    result = desk.data("replay", "--all", status=3)
    assert result["replayed"] == 2
    assert len(result["failed"]) == 2
    (stored,) = logged(desk.server)
    assert stored["entities"] == ["product:7"]
    assert "version" not in stored
    assert desk.server.command("ZCARD", "warmer:due:now") == 1


def test_what_was_too_large_to_keep_is_not_replayed_in_part(desk: Desk) -> None:
    large = b'{"entity":"product:7","verison":"' + b"x" * MAX_PAYLOAD_BYTES + b'"}'
    (id_,) = desk.park(large)
    failed = desk.data("replay", id_, status=3)
    assert "only the first" in failed["failed"][0]["reason"]


def test_letters_are_dropped_when_somebody_means_it(desk: Desk) -> None:
    first, second, third = desk.park(b"a", b"b", b"c")
    asked = desk.run("drop", "--all")
    assert asked.exit_status == 2
    assert "--yes" in asked.output
    assert desk.data("drop", first, "--yes") == {"dropped": 1}
    dry = desk.data("replay", "--all", "--dry-run")
    assert dry == {"replayed": 0, "failed": [], "dry_run": True}
    assert [one["id"] for one in desk.data("list")["letters"]] == [third, second]
    assert desk.data("drop", "--all", "--kind", "body", "--yes") == {"dropped": 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay",), "--all"),
        (("replay", "1-1", "--all"), "--all"),
        (("replay", "1-1", "--source", "shop"), "are for --all"),
        (("replay", "x"), "is no letter's id"),
        (("show", "1-1"), "there is no letter 1-1"),
        (("drop", "--kind", "odd", "--all"), "odd"),
    ],
)
def test_a_mistake_is_told(desk: Desk, arguments: tuple[str, ...], says: str) -> None:
    child = desk.run(*arguments)
    assert child.exit_status == 2
    assert says in child.output
