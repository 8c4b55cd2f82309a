"""The installed command finds what lies beside the package, and needs no checkout."""

from tests.packaging.conftest import Installed


def test_the_worker_finds_its_jobs_under_share(installed: Installed) -> None:
    """R-CARD-6: jobs/ ships with the package, outside of what can be imported."""
    folder = installed.run(
        "python",
        "-c",
        "from warmer.ops.cli.worker import application_folder as found\nprint(found())",
    )

    assert folder.strip() == str((installed.prefix / "share" / "warmer").resolve())


def test_the_shipped_configuration_is_right_where_it_is_installed(
    installed: Installed,
) -> None:
    file = installed.prefix / "share" / "warmer" / "config" / "warmer.toml"

    checked = installed.run("warmer", "config", "check", str(file), "--json")

    assert '"valid": true' in checked


def test_the_jobs_of_the_installed_worker_import(installed: Installed) -> None:
    installed.run(
        "python",
        "-c",
        "import sys\nfrom warmer.ops.cli.worker import application_folder\n"
        "sys.path.insert(0, str(application_folder()))\n"
        "import jobs.worker\nprint(jobs.worker.__file__)",
    )
