from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from pairbus.cli.pairing.explain import explain
from pairbus.errors import UsageError


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    result = CliRunner().invoke(explain, ["orders", "--journal", str(tmp_path)])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{tmp_path} is a directory: name the journal's file in it"
