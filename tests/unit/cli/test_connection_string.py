"""``pairbus connection-string`` prints how to connect, while the broker runs and while it is stopped; ``serve`` shows it on a terminal."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pairbus.cli.broker.serve import _announce
from pairbus.cli.root import root
from pairbus.errors import StoreCorrupt, StoreUnavailable
from pairbus.server.assemble import assemble
from pairbus.server.config.options import Options
from pairbus.server.main import ready_files
from pairbus.server.ready import READY_FILE, ReadyInfo, connection_string, write_ready_file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, ["connection-string", *map(str, arguments)], standalone_mode=False)


def ready_info(key: str) -> ReadyInfo:
    return ReadyInfo(
        namespace="contoso",
        pid=1,
        amqp="127.0.0.1:7777",
        http="127.0.0.1:7778",
        connection_string=connection_string("127.0.0.1", 7777, "contoso", key),
        ca_file="/somewhere/ca.pem",
    )


def begun(data: Path) -> str:
    """A namespace that was served once; its root key."""
    found = assemble(Options(namespace="contoso", data=data), 0)
    batch = found.store.seal()
    assert batch is not None
    found.store.commit(batch)
    key = found.root_key
    found.close()
    return key


def test_a_stopped_brokers_key_comes_from_its_data(tmp_path: Path) -> None:
    key = begun(tmp_path)

    result = run("--data", tmp_path)

    assert result.stdout == connection_string("127.0.0.1", 5672, "contoso", key) + "\n"
    assert f"pairbus serve --namespace contoso --data {tmp_path} --amqp 127.0.0.1:5672" in result.stderr


def test_a_stopped_brokers_address_is_the_last_one_and_its_key_the_present_one(tmp_path: Path) -> None:
    key = begun(tmp_path)
    write_ready_file(tmp_path / READY_FILE, ready_info("an old key"))

    told = json.loads(run("--data", tmp_path, "--json").stdout)

    assert told["connection_string"] == connection_string("127.0.0.1", 7777, "contoso", key)
    assert told["ca_file"] == "/somewhere/ca.pem"
    assert told["running"] is False


def test_while_the_broker_runs_its_ready_file_is_right(tmp_path: Path) -> None:
    found = assemble(Options(namespace="contoso", data=tmp_path), 0)
    try:
        assert isinstance(run("--data", tmp_path).exception, StoreUnavailable)
        write_ready_file(tmp_path / READY_FILE, ready_info("K"))
        told = json.loads(run("--data", tmp_path, "--json").stdout)
    finally:
        found.close()

    assert told["running"] is True
    assert told["connection_string"] == ready_info("K").connection_string


@pytest.mark.promise("B10")
def test_a_store_that_is_gone_is_noticed(tmp_path: Path) -> None:
    begun(tmp_path)
    write_ready_file(tmp_path / READY_FILE, ready_info("K"))
    for file in (tmp_path / "store").iterdir():
        if file.name != "lock":
            file.unlink()
    with pytest.raises(StoreCorrupt, match="all files are missing"):
        begun(tmp_path)
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreCorrupt, match="all files are missing"):
        begun(tmp_path)
    assert not (tmp_path / "store").exists()
    (tmp_path / READY_FILE).unlink()
    begun(tmp_path)


def test_no_data_is_said_in_one_sentence(tmp_path: Path) -> None:
    error = run("--data", tmp_path / "nothing").exception
    assert isinstance(error, StoreUnavailable)
    assert "holds no data" in str(error)
    assert not (tmp_path / "nothing").exists()


def test_every_broker_keeps_a_ready_file_in_its_data_directory(tmp_path: Path) -> None:
    assert ready_files(Options(data=tmp_path)) == [tmp_path / READY_FILE]
    both = Options(data=tmp_path, ready_file=tmp_path / "mine.json")
    assert ready_files(both) == [tmp_path / READY_FILE, tmp_path / "mine.json"]
    assert ready_files(Options(data=tmp_path, store="memory:")) == []
    write_ready_file(tmp_path / READY_FILE, ready_info("K"))
    assert stat.S_IMODE((tmp_path / READY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_key_is_shown_on_a_terminal_only(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)

    _announce(ready_info("K"), Path("somewhere"))

    shown = capsys.readouterr().out
    if is_terminal:
        assert ready_info("K").connection_string in shown
        assert "http://127.0.0.1:7778/" in shown
        assert "/somewhere/ca.pem" in shown
        assert "pairbus connection-string --data somewhere" in shown
    else:
        assert shown == ""
