"""Builds PairBus: a wheel with compiled libraries where that is possible, and a pure one everywhere else.

This is the build backend that pyproject.toml names, so `pip install .` comes here. It is setuptools with one step before it:
mypyc turns the modules that ``[tool.pairbus]`` in pyproject.toml lists into C, and the C compiler makes libraries of that.
``PAIRBUS_FORM`` asks for one form: `pure` compiles nothing, `compiled` ends with an error if nothing can be compiled. Unset,
a failure leads to the pure form. Installers show a build's output only when asked to, so the reason is also kept
in the package, and `pairbus --version` shows it.

`tools/compiled.py` uses the same step for a checkout.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 - hooks that need nothing more
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "pairbus"
MADE = ROOT / "build" / "compiled"
VARIABLE = "PAIRBUS_FORM"
OPT_LEVEL_VARIABLE = "PAIRBUS_OPT_LEVEL"
"""How hard the C compiler works, 0 to 3: less is slower code that is sooner there."""
OPT_LEVEL = "3"
STEP = Path(__file__).with_name("mypyc_step.py")


class NotCompiled(Exception):
    """Why there is no compiled form, in a line, and what the compiler said."""

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(reason)
        self.said = said


# --- what is compiled ---------------------------------------------------------------------------


def parts() -> list[str]:
    """The rooms and modules that are compiled, as pyproject.toml lists them."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pairbus"]["compiled"]
    return found


def modules() -> list[Path]:
    """The files to compile: the listed modules, and every module of the listed rooms but for package files, which hold no work."""
    found: list[Path] = []
    for part in parts():
        path = PACKAGE.joinpath(*part.split("."))
        if path.is_dir():
            found += [file for file in sorted(path.rglob("*.py")) if file.name != "__init__.py"]
        else:
            file = path.with_suffix(".py")
            assert file.is_file(), f"pyproject.toml lists {part!r} to be compiled, and there is no {file}"
            found.append(file)
    return list(dict.fromkeys(found))


def sources() -> list[Path]:
    """Every file that the libraries depend on: the compiled modules, and what they import of the package.

    The value of a constant of another module may stand in the compiled code.
    """
    found = dict.fromkeys(modules())
    for file in list(found):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name.startswith("pairbus."):
                    imported = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
                    if imported.is_file():
                        found.setdefault(imported)
    return list(found)


def form_file(form: str, *, reason: str = "", is_checkout: bool = False) -> str:
    """The content of ``pairbus/form.json``: see ``pairbus.form.Built``."""
    known: dict[str, tuple[int, int, str]] = {}
    if is_checkout:
        for file in sources():
            content = file.read_bytes()
            found = file.stat()
            # As ``pairbus.form.digest`` does; the package is not there while it is built.
            name = hashlib.blake2b(content, digest_size=16).hexdigest()
            known[str(file.relative_to(PACKAGE))] = (found.st_mtime_ns, found.st_size, name)
    listed = parts() if form == "compiled" else []
    return json.dumps({"form": form, "reason": reason, "parts": listed, "sources": known}, indent=1) + "\n"


# --- compiling ----------------------------------------------------------------------------------


def mypy_pin() -> str:
    """The mypy, and with it the mypyc, that the lock names: ``mypy==…``."""
    found = re.search(r"^mypy==[^\s;\\]+", (ROOT / "requirements" / "dev.lock").read_text(), re.MULTILINE)
    assert found is not None, "requirements/dev.lock pins mypy"
    return found[0]


def why_no_compiler() -> str:
    """What is missing to compile C for this Python; empty if nothing is."""
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    if os.name != "posix":
        return ""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler: {compiler} was not found (Debian: apt install gcc libc6-dev)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return (
            f"there are no headers of this Python: {header} was not found (Debian: apt install python3-dev)"
        )
    return ""


def compile_package() -> Path:
    """Compile what is listed; the folder with the libraries, laid out as in a wheel. What is there and still right is used again."""
    reason = why_no_compiler()
    if reason:
        raise NotCompiled(reason)
    MADE.mkdir(parents=True, exist_ok=True)
    with _alone():
        return _compile_what_changed()


def _compile_what_changed() -> Path:
    lib, key_file = MADE / "lib", MADE / "key"
    key = _key()
    if key_file.is_file() and key_file.read_text() == key:
        return lib
    key_file.unlink(missing_ok=True)
    shutil.rmtree(lib, ignore_errors=True)
    # What was compiled with other settings is not used again.
    temp = MADE / f"temp-{_settings()}"
    for folder in (lib, MADE / "c", temp):
        folder.mkdir(parents=True, exist_ok=True)
    _mypyc("--lib", lib, "--temp", temp, "--c", MADE / "c", "--opt-level", _opt_level())
    key_file.write_text(key)
    return lib


def generate(folder: Path) -> None:
    """Write the C of everything that is listed, and compile nothing of it: this needs no C compiler."""
    _mypyc("--c", folder)


def _mypyc(*arguments: str | Path) -> None:
    names = [str(file.relative_to(SOURCE)) for file in modules()]
    command = [sys.executable, str(STEP), *map(str, arguments), *names]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        last = said.rpartition("\n")[2].strip()
        raise NotCompiled(f"compiling failed (exit code {done.returncode}): {last}", said)


@contextmanager
def _alone() -> Iterator[None]:
    """Others that compile the same checkout wait, and then use what is there."""
    with (MADE / "lock").open("w") as file:
        if os.name == "posix":
            import fcntl  # noqa: PLC0415 - there is none elsewhere

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _opt_level() -> str:
    return os.environ.get(OPT_LEVEL_VARIABLE) or OPT_LEVEL


def _settings() -> str:
    """What the libraries follow from besides the sources."""
    given = [mypy_pin(), _opt_level(), os.environ.get("CC"), os.environ.get("CFLAGS")]
    known = repr([*given, sys.version, sysconfig.get_platform(), STEP.read_text()])
    return hashlib.blake2b(known.encode(), digest_size=8).hexdigest()


def _key() -> str:
    """What the libraries follow from."""
    hashed = hashlib.blake2b(_settings().encode(), digest_size=16)
    for file in sources():
        hashed.update(f"{file.relative_to(SOURCE)}\0".encode())
        hashed.update(file.read_bytes())
    hashed.update(repr([str(file.relative_to(SOURCE)) for file in modules()]).encode())
    return hashed.hexdigest()


# --- hooks of the build backend -----------------------------------------------------------------


def wanted_form() -> str:
    """`pure`, `compiled`, or empty: compiled if possible."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "pure", "compiled"):
        raise SystemExit(f"{VARIABLE} is {wanted!r}; use compiled or pure, or leave it unset")
    return wanted


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """The compiler is fetched only where it can be used."""
    needed: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    wanted = wanted_form()
    if wanted == "compiled" or (not wanted and not why_no_compiler()):
        needed.append(mypy_pin())
    return needed


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel in the form that is wanted, or that is possible; its name."""
    wanted = wanted_form()
    made = None
    reason = f"it was built with {VARIABLE}=pure"
    if wanted != "pure":
        try:
            made = compile_package()
        except NotCompiled as error:
            print(error.said, file=sys.stderr)
            if wanted == "compiled":
                raise SystemExit(f"{VARIABLE} is compiled, but {error}") from error
            reason = str(error)
            print(f"PairBus is built in its pure form: {reason}", file=sys.stderr)
    with _given(made, reason):
        built: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    return built


@contextmanager
def _given(libraries: Path | None, reason: str) -> Iterator[None]:
    """Lay out for setup.py what the wheel gets besides the package."""
    with tempfile.TemporaryDirectory(prefix="pairbus-build-") as name:
        made = Path(name, "made")
        (made / "pairbus").mkdir(parents=True)
        if libraries is not None:
            shutil.copytree(libraries, made, dirs_exist_ok=True)
        content = form_file("pure", reason=reason) if libraries is None else form_file("compiled")
        (made / "pairbus" / "form.json").write_text(content)
        given = {"PAIRBUS_MADE": str(made), "PAIRBUS_BUILD_BASE": str(Path(name, "base"))}
        os.environ.update(given)
        try:
            yield
        finally:
            for variable in given:
                del os.environ[variable]
