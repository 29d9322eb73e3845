"""The build chooses a form, falls back to the pure one, and keeps the reason in the package."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest
from setuptools import build_meta

from tools import build_backend
from tools.build_backend import NotCompiled, build_wheel, form_file, get_requires_for_build_wheel, mypy_pin


@pytest.fixture(autouse=True)
def _form_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAIRBUS_FORM", raising=False)


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What setup.py would have been given for each wheel: the files and their content."""
    given: list[dict[str, str]] = []

    def build(*arguments: object) -> str:
        made = Path(os.environ["PAIRBUS_MADE"])
        given.append({str(file.relative_to(made)): file.read_text() for file in made.rglob("*.*")})
        return "pairbus.whl"

    monkeypatch.setattr(build_meta, "build_wheel", build)
    monkeypatch.setattr(build_meta, "get_requires_for_build_wheel", lambda settings: ["wheel"])
    return given


def fail() -> Path:
    raise NotCompiled("compiling failed (exit code 1): error: odd", "odd.c:1: error: odd")


def test_a_build_that_cannot_compile_is_pure_and_keeps_the_reason(
    wheels: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_backend, "compile_package", fail)

    build_wheel("dist")

    assert json.loads(wheels[0]["pairbus/form.json"]) == {
        "form": "pure",
        "reason": "compiling failed (exit code 1): error: odd",
        "parts": [],
        "sources": {},
    }
    said = capfd.readouterr().err
    assert "odd.c:1: error: odd" in said
    assert "built in its pure form: compiling failed" in said


def test_a_build_that_must_compile_fails_loudly(
    wheels: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_backend, "compile_package", fail)
    monkeypatch.setenv("PAIRBUS_FORM", "compiled")

    with pytest.raises(SystemExit, match="PAIRBUS_FORM is compiled, but compiling failed"):
        build_wheel("dist")
    assert wheels == []


def test_a_pure_build_compiles_nothing(wheels: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_backend, "compile_package", fail)
    monkeypatch.setenv("PAIRBUS_FORM", "pure")

    build_wheel("dist")

    assert json.loads(wheels[0]["pairbus/form.json"])["reason"] == "it was built with PAIRBUS_FORM=pure"


def test_a_compiled_build_has_the_libraries_and_names_its_parts(
    wheels: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pairbus" / "amqp").mkdir(parents=True)
    (tmp_path / "pairbus" / "amqp" / "decode.so").write_text("library")
    monkeypatch.setattr(build_backend, "compile_package", lambda: tmp_path)

    build_wheel("dist")

    assert wheels[0]["pairbus/amqp/decode.so"] == "library"
    form = json.loads(wheels[0]["pairbus/form.json"])
    assert (form["form"], form["sources"]) == ("compiled", {})
    assert "amqp" in form["parts"]
    assert "PAIRBUS_MADE" not in os.environ


def test_the_compiler_is_asked_for_only_where_it_can_be_used(
    wheels: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_backend, "why_no_compiler", lambda: "")
    assert get_requires_for_build_wheel() == ["wheel", mypy_pin()]

    monkeypatch.setenv("PAIRBUS_FORM", "pure")
    assert get_requires_for_build_wheel() == ["wheel"]

    monkeypatch.setattr(build_backend, "why_no_compiler", lambda: "there is no C compiler")
    monkeypatch.delenv("PAIRBUS_FORM")
    assert get_requires_for_build_wheel() == ["wheel"]


def test_an_unknown_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRBUS_FORM", "quick")

    with pytest.raises(SystemExit, match="PAIRBUS_FORM is 'quick'; use compiled or pure"):
        get_requires_for_build_wheel()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")

    assert "no-such-compiler was not found" in build_backend.why_no_compiler()
    with pytest.raises(NotCompiled, match="there is no C compiler"):
        build_backend.compile_package()


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))

    assert "Python.h was not found" in build_backend.why_no_compiler()


def test_a_checkout_notes_every_source_that_its_libraries_follow_from() -> None:
    known = json.loads(form_file("compiled", is_checkout=True))["sources"]

    assert {"amqp/decode.py", "errors.py"} <= set(known)
    assert all(len(entry) == 3 for entry in known.values())
