"""The wheel and the source distribution hold what they should, and the wheel works in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from pairbus import __version__

ROOT = Path(__file__).resolve().parents[3]
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
