"""The lock is what pyproject.toml asks for, whichever index it is installed from."""

import re
import tomllib

from packaging.requirements import Requirement

from tests.processes import CHECKOUT

LOCK = (CHECKOUT / ".ci" / "requirements.lock").read_text()
PINS = dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", LOCK, flags=re.MULTILINE))


def _asked_for() -> list[Requirement]:
    pyproject = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    project = pyproject["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *pyproject["dependency-groups"].values(),
        pyproject["build-system"]["requires"],
    ]
    return [Requirement(line) for lines in lists for line in lines]


def test_every_requirement_is_locked_within_its_bounds() -> None:
    outside = [
        str(requirement)
        for requirement in _asked_for()
        if PINS.get(requirement.name.replace(".", "-")) is None
        or not requirement.specifier.contains(
            PINS[requirement.name.replace(".", "-")], prereleases=True
        )
    ]

    assert outside == [], "run: make lock"


def test_every_pin_has_a_hash() -> None:
    pinned = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)

    assert [pin for pin in pinned if pin and "--hash=sha256:" not in pin] == []


def test_the_lock_names_no_index() -> None:
    assert "://" not in LOCK
