"""README and DESIGN are true: what they show runs, and what they name is there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.processes import CHECKOUT, WARMER, Children
from tests.servers import ServerProcess

README = (CHECKOUT / "README.md").read_text()
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "warmer/DESIGN.md",
    "warmer/ingest/EVENTS.md",
    "warmer/store/CONTROL.md",
    "warmer/store/PROTOCOL.md",
]
RUNS_WITHIN_S = 60.0

# A test, by its file, or by its file and its name.
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(90)
def test_the_example_and_its_commands_run_as_they_stand(
    valkey: ServerProcess, children: Children, tmp_path: Path
) -> None:
    valkey.renew()
    (settings,), (example,) = _blocks("toml"), _blocks("python")
    _, commands = _blocks("sh")
    at_home = "redis://127.0.0.1:6379/0"
    assert at_home in settings
    (tmp_path / "warmer.toml").write_text(settings.replace(at_home, valkey.url))
    (tmp_path / "example.py").write_text(example)

    shell = children.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={"PATH": f"{WARMER.parent}:/usr/bin:/bin"},
        cwd=tmp_path,
    )
    status = shell.wait(within_s=RUNS_WITHIN_S)

    assert status == 0, shell.output
    assert shell.lines.count("{'user': 'ada', 'plan': 'pro'}") == 2
    assert "Answer(value={'user': 'ada', 'plan': 'pro'}, state=<State.FRESH" in (
        shell.output
    )
    assert "versions={}, key='profile:v1:ada')" in shell.output


def test_the_example_is_short() -> None:
    (example,) = _blocks("python")

    assert len(example.strip().splitlines()) <= 15
    assert len(README.splitlines()) <= 120


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    commands, _ = _blocks("sh")
    targets = re.findall(r"^make (\S+)", commands, re.MULTILINE)

    assert targets == ["demo", "test"]
    subprocess.run(["make", "--dry-run", *targets], cwd=CHECKOUT, check=True)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_is_there(document: str) -> None:
    """A promise without its test, or a link without its file, is a wrong document."""
    path = CHECKOUT / document
    text = path.read_text()

    for link in _LINK.findall(text):
        assert (path.parent / link).exists(), link
    for file, name in _TEST.findall(text):
        assert (CHECKOUT / file).is_file(), file
        assert not name or f"def {name}(" in (CHECKOUT / file).read_text(), name


def test_every_promise_of_the_design_names_its_tests() -> None:
    design = (CHECKOUT / "warmer" / "DESIGN.md").read_text()
    promises = re.findall(
        r"^\*\*(P\d+)\..*?(?=^\*\*P\d|^## )", design, re.MULTILINE | re.DOTALL
    )
    sections = re.split(r"^\*\*P\d+\.", design, flags=re.MULTILINE)[1:]

    assert promises == [f"P{number + 1}" for number in range(len(promises))]
    assert all(_TEST.search(section.split("\n## ")[0]) for section in sections)
