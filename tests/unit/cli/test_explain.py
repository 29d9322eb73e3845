from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pairbus.cli.pairing.explain import explain
from pairbus.errors import UsageError


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    result = CliRunner().invoke(explain, ["orders", "--journal", str(tmp_path)])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{tmp_path} is a directory: name the journal's file in it"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{bad", b'[{"kind": "x"}]', b'{"name": "package"}\n'])
def test_a_file_that_is_no_journal_is_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    result = CliRunner().invoke(explain, ["orders", "--journal", str(path)])

    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(f"{path} is no journal")


@pytest.mark.parametrize(
    "content", [b"", b'{"at_ms": 1, "kind": "status"}\n', b'torn\n{"at_ms": 1, "kind": "closed"}\n']
)
def test_a_journal_without_the_entity_says_nothing_of_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)

    result = CliRunner().invoke(explain, ["orders", "--journal", str(path)])

    assert "the journal says nothing of 'orders'" in result.stderr
