"""Which form of the package runs: the compiled one only where it is there and nothing has changed since."""

from __future__ import annotations

import json
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from pairbus.form import COMPILED, FORM_FILE, LIBRARY, PURE, SourceFinder, choose, digest


def compiled_package(folder: Path) -> Path:
    """A package of one source, compiled in a checkout; its source."""
    source = folder / "engine.py"
    source.write_text("X = 1\n")
    (folder / (LIBRARY + EXTENSION_SUFFIXES[0])).touch()
    found = source.stat()
    known = {"engine.py": (found.st_mtime_ns, found.st_size, digest(source.read_bytes()))}
    built = {"form": COMPILED, "reason": "", "parts": ["engine", "server.loop"], "sources": known}
    (folder / FORM_FILE).write_text(json.dumps(built))
    return source


def test_a_compiled_package_runs_compiled_and_names_its_parts(tmp_path: Path) -> None:
    compiled_package(tmp_path)

    form = choose(str(tmp_path), "")

    assert str(form) == "compiled: engine, server.loop"
    assert choose(str(tmp_path), COMPILED) == form


def test_a_package_that_was_never_compiled_is_pure_and_says_how_to_compile_it(tmp_path: Path) -> None:
    form = choose(str(tmp_path), "")

    assert form.name == PURE
    assert "make fast" in str(form)


def test_a_pure_package_says_why_it_was_not_compiled(tmp_path: Path) -> None:
    built = {"form": PURE, "reason": "there is no C compiler", "parts": [], "sources": {}}
    (tmp_path / FORM_FILE).write_text(json.dumps(built))

    assert str(choose(str(tmp_path), "")) == "pure: there is no C compiler"
    with pytest.raises(ImportError, match="PAIRBUS_FORM is compiled, but there is no C compiler"):
        choose(str(tmp_path), COMPILED)


def test_libraries_are_not_used_after_a_source_has_changed(tmp_path: Path) -> None:
    compiled_package(tmp_path).write_text("X = 2\n")

    form = choose(str(tmp_path), "")

    assert form.name == PURE
    assert "engine.py has changed" in form.reason
    with pytest.raises(ImportError, match="engine.py has changed"):
        choose(str(tmp_path), COMPILED)


def test_libraries_are_not_used_when_a_source_is_gone(tmp_path: Path) -> None:
    compiled_package(tmp_path).unlink()

    assert choose(str(tmp_path), "").name == PURE


def test_a_source_that_was_only_written_again_has_not_changed(tmp_path: Path) -> None:
    os.utime(compiled_package(tmp_path), ns=(1, 1))

    assert choose(str(tmp_path), "").name == COMPILED


def test_libraries_of_another_python_are_not_used(tmp_path: Path) -> None:
    compiled_package(tmp_path)
    (tmp_path / (LIBRARY + EXTENSION_SUFFIXES[0])).rename(tmp_path / f"{LIBRARY}.cpython-38-other.so")

    form = choose(str(tmp_path), "")

    assert form.name == PURE
    assert "another Python" in form.reason


def test_the_pure_form_can_be_asked_for(tmp_path: Path) -> None:
    compiled_package(tmp_path)

    assert str(choose(str(tmp_path), PURE)) == "pure: PAIRBUS_FORM is pure"


def test_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="PAIRBUS_FORM is 'quick'; use compiled or pure"):
        choose(str(tmp_path), "quick")


def test_the_pure_form_finds_sources_and_not_the_libraries_beside_them(tmp_path: Path) -> None:
    (tmp_path / "queue.py").touch()
    (tmp_path / ("queue" + EXTENSION_SUFFIXES[0])).touch()
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "__init__.py").touch()
    finder = SourceFinder()

    def found(name: str) -> str | None:
        spec = finder.find_spec(name, [str(tmp_path)])
        return None if spec is None else spec.origin

    assert found("pairbus.queue") == str(tmp_path / "queue.py")
    assert found("pairbus.rules") == str(tmp_path / "rules" / "__init__.py")
    assert found("pairbus.nothing") is None
    assert found("other.queue") is None
    assert finder.find_spec("pairbus", None) is None
