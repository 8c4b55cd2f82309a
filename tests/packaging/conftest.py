"""The wheel as users get it: built from this checkout, installed outside of it."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import CHECKOUT


@dataclass(frozen=True)
class Installed:
    """An environment where `warmer` comes from the wheel, and cannot come from here."""

    prefix: Path
    cwd: Path

    def run(self, program: str, *arguments: str) -> str:
        """Its standard output. A failure shows all that it printed."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        }
        done = subprocess.run(
            [str(self.prefix / "bin" / program), *arguments],
            cwd=self.cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network by the locked hatchling."""
    made_in = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made_in))
    (built,) = made_in.glob("warmer-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A new environment: the wheel, and beside it what this one has of others' packages."""
    base = tmp_path_factory.mktemp("installed")
    prefix = base / "venv"
    python = prefix / "bin" / "python"
    _run(sys.executable, "-m", "venv", "--without-pip", str(prefix))
    uv = Path(sys.executable).with_name("uv")
    _run(
        *(str(uv), "pip", "install", "--quiet", "--offline", "--no-deps"),
        *("--python", str(python), str(wheel)),
    )
    # A path file named in a path file is not read, so the editable warmer stays out.
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    cwd = base / "elsewhere"
    cwd.mkdir()
    return Installed(prefix=prefix, cwd=cwd)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
