"""The wheels and the source distribution hold what they should, and each wheel works in an empty environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from pairbus import __version__
from tests.waiting import wait_until
from tools.build_backend import modules, parts, why_no_compiler

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "pairbus"
BUILD_SECONDS_MAX = 120
COMPILE_SECONDS_MAX = 1_800
INSTALL_SECONDS_MAX = 300
RUN_SECONDS_MAX = 400
LIBRARY_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def data_files() -> set[str]:
    """Every file of the package that is no Python."""
    return {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".so"} and path.name != "form.json"
    }


def code_files() -> set[str]:
    return {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*.py")}


def build(folder: Path, form: str, *options: str, seconds_max: int, **environment: str) -> None:
    """Build as `make dist` does."""
    command = [str(Path(sys.executable).parent / "uv"), "build", "--no-build-isolation", *options]
    subprocess.run(
        [*command, "--python", sys.executable, "--out-dir", str(folder), str(ROOT)],
        check=True,
        env={**os.environ, "PAIRBUS_FORM": form, **environment},
        timeout=seconds_max,
        capture_output=True,
    )


def content(folder: Path) -> tuple[zipfile.ZipFile, set[str]]:
    wheel = zipfile.ZipFile(next(folder.glob("*.whl")))
    return wheel, set(wheel.namelist())


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pure wheel, and the source distribution that it was built from."""
    folder = tmp_path_factory.mktemp("pure")
    build(folder, "pure", seconds_max=BUILD_SECONDS_MAX)
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled wheel. What `make fast` compiled is used again."""
    if reason := why_no_compiler():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("compiled")
    build(folder, "compiled", "--wheel", seconds_max=COMPILE_SECONDS_MAX)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_the_pure_wheel_fits_every_platform_and_holds_every_file_of_the_package(pure: Path) -> None:
    wheel, names = content(pure)

    assert next(pure.glob("*.whl")).name == f"pairbus-{__version__}-py3-none-any.whl"
    assert data_files() | code_files() <= names
    assert f"pairbus-{__version__}.dist-info/licenses/LICENSE" in names
    assert [name for name in names if "__pycache__" in name or name.startswith("tests")] == []
    assert [name for name in names if name.endswith(".so")] == []
    assert json.loads(wheel.read("pairbus/form.json"))["form"] == "pure"


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_SECONDS_MAX)
def test_the_compiled_wheel_fits_this_platform_and_holds_libraries_and_sources(compiled: Path) -> None:
    wheel, names = content(compiled)

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert next(compiled.glob("*.whl")).name.startswith(f"pairbus-{__version__}-{tag}-{tag}-")
    assert data_files() | code_files() <= names
    libraries = {name for name in names if name.endswith(LIBRARY_SUFFIX)}
    beside = {str(file.relative_to(SOURCE.parent).with_suffix(LIBRARY_SUFFIX)) for file in modules()}
    assert libraries == beside | {f"pairbus/rooms__mypyc{LIBRARY_SUFFIX}"}
    assert [name for name in names if name.endswith((".c", ".h")) or name.startswith("tests")] == []
    form = json.loads(wheel.read("pairbus/form.json"))
    assert (form["form"], form["parts"], form["sources"]) == ("compiled", parts(), {})


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_the_source_distribution_holds_what_one_needs_to_build_and_change_it(pure: Path) -> None:
    with tarfile.open(next(pure.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = {
        "Makefile",
        "CHANGELOG.md",
        "docs/tutorial.md",
        "packaging/pairbus.service",
        "requirements/dev.lock",
        "setup.py",
        "tools/build_backend.py",
    }
    assert needed | {"tests/conftest.py", "tools/setup.sh", "mkdocs.yml"} <= names
    assert [name for name in names if name.endswith((".so", "form.json"))] == []


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_without_a_compiler_the_wheel_is_pure_and_says_why(tmp_path: Path) -> None:
    build(tmp_path, "", "--wheel", seconds_max=BUILD_SECONDS_MAX, CC="no-such-compiler")

    wheel, names = content(tmp_path)
    assert next(tmp_path.glob("*.whl")).name.endswith("-py3-none-any.whl")
    assert [name for name in names if name.endswith(".so")] == []
    assert "no-such-compiler was not found" in json.loads(wheel.read("pairbus/form.json"))["reason"]


@pytest.mark.slow
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_without_a_compiler_a_build_that_must_compile_fails_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(tmp_path, "compiled", "--wheel", seconds_max=BUILD_SECONDS_MAX, CC="no-such-compiler")

    assert b"PAIRBUS_FORM is compiled, but there is no C compiler" in failed.value.stderr


class Installed:
    """A wheel in an environment that has nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self.bin = folder / "venv" / "bin"
        venv.create(folder / "venv", with_pip=True)
        command = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS_MAX)

    def says(self, *arguments: str, form: str = "") -> str:
        done = subprocess.run(
            [self.bin / arguments[0], *arguments[1:]],
            cwd=self._folder,
            env=self.environment(form),
            check=True,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
        )
        return done.stdout

    def environment(self, form: str) -> dict[str, str]:
        """This one's, without what leads back to the checkout."""
        kept = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PAIRBUS_FORM")
        }
        return {**kept, "PAIRBUS_FORM": form} if form else kept

    def health(self) -> dict[str, object]:
        """Start a broker, and ask it."""
        ready = self._folder / "ready.json"
        arguments = ["serve", "--namespace", "contoso", "--data", "data", "--ready-file", str(ready)]
        broker = subprocess.Popen(
            [self.bin / "pairbus", *arguments, "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            cwd=self._folder,
            env=self.environment(""),
        )
        try:
            wait_until(
                lambda: ready.exists() or broker.poll() is not None, "the broker is ready", RUN_SECONDS_MAX
            )
            address = json.loads(ready.read_text())["http"]
            with urllib.request.urlopen(f"http://{address}/health", timeout=RUN_SECONDS_MAX) as answer:
                found: dict[str, object] = json.load(answer)
        finally:
            broker.send_signal(signal.SIGTERM)
            code = broker.wait(RUN_SECONDS_MAX)
        assert code == 0
        return found

    def check(self) -> None:
        """The commands, the test kit and the data files are there, and the demo proves that nothing is lost."""
        assert "--ready-file" in self.says("pairbus", "serve", "--help")
        assert "pairbus" in self.says("pairbus", "completion", "bash")
        script = (
            "from importlib.resources import files\n"
            "from pairbus.testing import Namespace\n"
            "assert (files('pairbus.web') / 'static' / 'index.html').is_file()\n"
            "assert list((files('pairbus.reports.bill') / 'price_tables').iterdir())\n"
            "with Namespace(queues=['orders']) as namespace:\n"
            "    print(namespace.connection_string[:8])\n"
        )
        assert self.says("python", "-c", script).strip() == "Endpoint"
        self.says("pairbus", "demo", "--engine", "local")


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_SECONDS_MAX + 5 * RUN_SECONDS_MAX)
def test_the_pure_wheel_works_in_an_empty_environment(pure: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, next(pure.glob("*.whl")))

    assert f"{__version__} (pure: it was built with PAIRBUS_FORM=pure)" in installed.says(
        "pairbus", "--version"
    )
    assert installed.health()["form"] == "pure"
    installed.check()


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_SECONDS_MAX)
def test_the_compiled_wheel_works_in_an_empty_environment(compiled: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, next(compiled.glob("*.whl")))

    assert f"{__version__} (compiled: {', '.join(parts())})" in installed.says("pairbus", "--version")
    assert "pure: PAIRBUS_FORM is pure" in installed.says("pairbus", "--version", form="pure")
    health = installed.health()
    assert (health["form"], health["compiled"]) == ("compiled", parts())
    installed.check()


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_SECONDS_MAX)
def test_a_traceback_of_the_compiled_form_shows_the_line_of_the_source(
    compiled: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(next(compiled.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    script = (
        "import traceback\n"
        "from pairbus.amqp.decode import decode_value\n"
        "try:\n"
        "    decode_value(b'', 0)\n"
        "except Exception:\n"
        "    print(traceback.format_exc())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PAIRBUS_FORM": "compiled"},
        check=True,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    assert 'File "pairbus/amqp/decode.py", line' in done.stdout
    assert "return _decode(buf, offset, end, 0, budget)" in done.stdout
