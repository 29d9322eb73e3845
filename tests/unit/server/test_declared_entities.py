"""B12: a namespace on a full disk is served, whatever the configuration declares beside what is there."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.engine.namespace import Namespace
from pairbus.errors import StoreUnavailable, UsageError
from pairbus.gateway.broker import Broker
from pairbus.server import main as main_module
from pairbus.server import server as server_module
from pairbus.server.assemble import Assembly, assemble
from pairbus.server.config.declarations import Declarations, read_declarations
from pairbus.server.config.options import MEMORY, Options
from pairbus.server.ready import ReadyInfo
from pairbus.server.room import no_room
from pairbus.server.server import Server
from pairbus.storage.log.store import LogStore
from pairbus.storage.memory import MemoryStore
from tests.waiting import until

CONFIG = """{"UserConfig": {"Namespaces": [{"Name": "contoso",
    "Queues": [{"Name": "orders"}, {"Name": "new", "Properties": {"ForwardTo": "later"}}],
    "Topics": [{"Name": "later", "Subscriptions": [{"Name": "all"}]}]}]}}"""


class Disk(MemoryStore):
    """A store whose disk is full until somebody frees some space."""

    is_full = True

    def has_room(self, size: int) -> bool:
        return not self.is_full


def options(tmp_path: Path) -> Options:
    def no_secrets(*_: object) -> str:
        raise AssertionError("there is no secret in this configuration")

    return Options(
        namespace="contoso",
        data=tmp_path,
        store=MEMORY,
        tls=False,
        amqp=("127.0.0.1", 0),
        declarations=read_declarations(CONFIG, no_secrets),
    )


def namespace_of(assembly: Assembly) -> Namespace:
    assert isinstance(assembly.broker, Broker)
    return assembly.broker.namespace


@pytest.mark.promise("B12")
def test_declared_entities_wait_for_room_and_the_log_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()

    with caplog.at_level(logging.ERROR):
        assembly = assemble(options(tmp_path), 1_000, disk)

    namespace = namespace_of(assembly)
    assert namespace.find("orders") is None
    assert [vars(record)["entities"] for record in caplog.records] == [
        "orders, new, later, later/Subscriptions/all"
    ]
    assert assembly.declare_rest is not None
    assert not assembly.declare_rest(2_000)
    assert len(caplog.records) == 1, "said once"
    disk.is_full = False
    assert assembly.declare_rest(3_000)
    new = namespace.find("new")
    assert new is not None
    assert new.settings.forward_to == "later"
    assert namespace.find("later/Subscriptions/all") is not None


def test_a_disk_with_room_gets_everything_at_the_start(tmp_path: Path) -> None:
    assembly = assemble(options(tmp_path), 1_000, MemoryStore())

    assert assembly.declare_rest is None


@pytest.mark.promise("B12")
async def test_a_running_broker_makes_declared_entities_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "DECLARE_SECONDS", 0.01)
    disk = Disk()
    made: list[Assembly] = []

    def over_disk(options: Options, now: int) -> Assembly:
        made.append(assemble(options, now, disk))
        return made[0]

    server = Server(options(tmp_path), assemble=over_disk)
    await server.start()
    try:
        namespace = namespace_of(made[0])
        assert namespace.find("orders") is None
        disk.is_full = False
        await until(
            lambda: namespace.find("orders") is not None and b"orders" in disk.disk.contents,
            "the declared entities are made",
        )
    finally:
        await server.stop()


class Quota:
    """A disk that tells how much is free, and may give less."""

    def __init__(self, free_mb: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_mb = free_mb
        monkeypatch.setattr("pairbus.server.room.os.statvfs", self.statvfs)

    def statvfs(self, _directory: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=self.free_mb << 20, f_frsize=1)


@pytest.mark.promise("B12")
@pytest.mark.uncompiled  # it replaces what the system says of the disk
@pytest.mark.parametrize(("has_audit", "needed"), [(False, 80), (True, 112)])
def test_a_new_namespace_takes_nothing_of_a_disk_that_is_too_small_for_it(
    has_audit: bool, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Quota(needed - 1, monkeypatch)
    wanted = replace(options(tmp_path / "data"), store=None, audit=has_audit)

    with pytest.raises(StoreUnavailable, match=f"needs {needed} MB .* and {needed - 1} MB are free"):
        assemble(wanted, 1_000)
    assert list(tmp_path.iterdir()) == []

    disk.free_mb = needed
    assembly = assemble(wanted, 1_000)
    assert namespace_of(assembly).find("orders") is not None
    batch = assembly.store.seal()
    assert batch is not None
    assembly.store.commit(batch)
    assembly.close()

    disk.free_mb = 0
    served = assemble(wanted, 2_000)
    assert namespace_of(served).find("orders") is not None, "what exists is served"
    served.close()


@pytest.mark.promise("B12")
def test_room_for_a_large_configuration_is_named(tmp_path: Path) -> None:
    refusal = str(no_room(tmp_path, 90 << 20, 20 << 20, has_audit=False))

    assert "needs 100 MB" in refusal
    assert "80 MB for its log, 20 MB for the entities of its configuration." in refusal


@pytest.mark.promise("B12")
@pytest.mark.uncompiled  # it replaces a method of the store
def test_a_new_namespace_that_gets_no_room_in_spite_of_the_free_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogStore, "has_room", lambda *_: False)
    wanted = replace(options(tmp_path), store=None)

    with pytest.raises(StoreUnavailable, match="needs 80 MB .* the disk does not give that"):
        assemble(wanted, 1_000)
    assemble(replace(wanted, declarations=Declarations()), 1_000).close()


@pytest.mark.parametrize("name", ["audit", "messages-audit"])
def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("something")
    with pytest.raises(UsageError, match=f"{name} is a file, and the broker keeps a directory of this name"):
        assemble(replace(options(tmp_path), store=None, audit=True), 1_000, MemoryStore())


@pytest.mark.parametrize("text", ["null", "5", "[]", '"orders"'])
def test_a_file_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected an object"):
        read_declarations(text, lambda *_: "")


def test_a_name_that_no_certificate_can_be_for_is_found_in_the_file() -> None:
    with pytest.raises(
        UsageError, match=r"PairBus.TlsNames\[1\] \(line 2\): 'bad name!' is neither a host name"
    ):
        read_declarations('{"PairBus": {"TlsNames": ["good.example",\n"bad name!"]}}', lambda *_: "")


@pytest.mark.promise("B12")
def test_a_ready_file_that_a_full_disk_does_not_take_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(main_module, "write_ready_file", full)
    ready = ReadyInfo(
        namespace="contoso", pid=1, amqp="127.0.0.1:1", http="127.0.0.1:1", connection_string="", ca_file=None
    )
    main_module._write_ready_files(replace(options(tmp_path), ready_file=tmp_path / "ready"), ready)

    assert [vars(record)["file"] for record in caplog.records] == [str(tmp_path / "ready")]
