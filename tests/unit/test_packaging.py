"""What is shipped: a wheel that works where nothing else is, with everything the program reads at run time."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from pairbus import __version__

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "pairbus"
BUILD_SECONDS_MAX = 120
INSTALL_SECONDS_MAX = 300


def data_files() -> set[str]:
    """Every file of the package that is no Python."""
    return {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".so"}
    }


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_extras_are_those_that_the_documents_promise() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)

    assert {"spark", "postgres"} <= set(extras)
    assert any(line.startswith("pyspark") for line in extras["spark"])
    assert any(line.startswith("psycopg") for line in extras["postgres"])


def test_every_page_can_be_found_from_the_site() -> None:
    """`make site` would say so too, but it is not part of `make test`."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    decisions = (ROOT / "docs" / "decisions" / "index.md").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]

    missing = [
        str(page)
        for page in pages
        if str(page) not in navigation
        and not (page.parent.name == "decisions" and f"({page.name})" in decisions)
    ]

    assert missing == []


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(ROOT / "packaging" / "pairbus.service")
    return parser


def test_the_systemd_unit_gives_the_broker_its_data_and_nothing_else() -> None:
    service = unit()["Service"]

    assert "--data ${STATE_DIRECTORY}" in service["ExecStart"]
    assert "--ready-file ${RUNTIME_DIRECTORY}/ready.json" in service["ExecStart"]
    expected = {
        "DynamicUser": "yes",
        "StateDirectory": "pairbus",
        "RuntimeDirectory": "pairbus",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "StateDirectoryMode": "0700",
        "Restart": "on-failure",
    }
    assert {name: service[name] for name in expected} == expected


def test_the_unit_does_not_restart_what_a_person_must_look_at() -> None:
    assert unit()["Service"]["RestartPreventExitStatus"] == "2"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source distribution, built once as `make dist` does."""
    folder = tmp_path_factory.mktemp("dist")
    command = [str(Path(sys.executable).parent / "uv"), "build", "--quiet", "--no-build-isolation"]
    subprocess.run(
        [*command, "--python", sys.executable, "--out-dir", str(folder), str(ROOT)],
        check=True,
        timeout=BUILD_SECONDS_MAX,
        capture_output=True,
    )
    return folder


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_the_wheel_holds_every_file_of_the_package(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())

    code = {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*.py")}
    assert data_files() | code <= names
    assert f"pairbus-{__version__}.dist-info/licenses/LICENSE" in names
    assert [name for name in names if "__pycache__" in name or name.startswith("tests")] == []


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_the_source_distribution_holds_what_one_needs_to_change_it(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = {
        "Makefile",
        "CHANGELOG.md",
        "docs/tutorial.md",
        "packaging/pairbus.service",
        "requirements/dev.lock",
    }
    assert needed | {"tests/conftest.py", "tools/setup.sh", "mkdocs.yml"} <= names


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_SECONDS_MAX)
def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv" / "bin"
    wheel = str(next(built.glob("*.whl")))
    subprocess.run(
        [bin_ / "python", "-m", "pip", "install", "--quiet", wheel], check=True, timeout=INSTALL_SECONDS_MAX
    )

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [bin_ / "pairbus", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    assert said("--version").strip().endswith(__version__)
    assert "--ready-file" in said("serve", "--help")
    assert "pairbus" in said("completion", "bash")
    script = (
        "from importlib.resources import files\n"
        "from pairbus.testing import Namespace\n"
        "assert (files('pairbus.web') / 'static' / 'index.html').is_file()\n"
        "assert list((files('pairbus.reports.bill') / 'price_tables').iterdir())\n"
        "with Namespace(queues=['orders']) as namespace:\n"
        "    print(namespace.connection_string[:8])\n"
    )
    done = subprocess.run(
        [bin_ / "python", "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "Endpoint"
