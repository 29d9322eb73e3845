from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.errors import UsageError
from pairbus.spark import java, session


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return home


def test_java_home_is_taken_when_it_fits(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.8")

    assert java.find_java({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "USUAL_PLACES", (str(tmp_path / "usual"),))
    old = fake_java(tmp_path / "old", "1.8.0_402")
    good = fake_java(tmp_path / "usual" / "java-17", "17.0.15")

    assert java.find_java({"JAVA_HOME": str(old), "PATH": ""}) == good


def test_without_any_java_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "USUAL_PLACES", ())
    monkeypatch.setattr(java, "_wheel_home", lambda environment: None)
    old = fake_java(tmp_path / "old", "11.0.2")

    with pytest.raises(UsageError, match=r"Java 17 or newer .*has Java 11.*install one, set JAVA_HOME"):
        java.find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_a_session_leaves_the_compiler_of_java_to_the_environment(tmp_path: Path) -> None:
    """What is on Java's command line wins over JAVA_TOOL_OPTIONS."""
    options = session._settings(None, session.DRIVER_MEMORY, tmp_path)["spark.driver.extraJavaOptions"]

    assert "Tiered" not in options
