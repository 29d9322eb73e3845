"""``pairbus store``: what is there is told truly, and an export brings everything back."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from click.testing import CliRunner, Result

from pairbus.cli.root import root
from pairbus.errors import PairbusError, StoreCorrupt, StoreUnavailable, UsageError
from pairbus.server.offline.namespace import opened
from pairbus.storage.files import RealFileSystem
from pairbus.storage.identity import LOCK_FILE
from pairbus.testing import Namespace, Queue
from tests.conformance.haste import make_haste

make_haste()
pytestmark = pytest.mark.timeout(300)
WAIT_S = 45
CONFIG = {
    "Topics": [{"Name": "events", "Subscriptions": [{"Name": "audit", "Properties": {}}]}],
}


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(root, ["store", *map(str, arguments)], standalone_mode=False)


def answer(*arguments: str | Path) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exception is None, result.exception
    assert result.return_value == 0
    told: dict[str, object] = json.loads(result.stdout)
    return told


def fill(data: Path) -> str:
    """A namespace with something in every state; its connection string's key."""
    queues: list[str | Queue] = [
        Queue("orders", requires_duplicate_detection=True),
        Queue("baskets", requires_session=True),
        "dead",
        "later",
    ]
    with (
        Namespace("contoso", data=data, queues=queues, config=CONFIG) as namespace,
        namespace.client() as client,
    ):
        with client.get_queue_sender("orders") as sender:
            for number in range(5):
                sender.send_messages(
                    ServiceBusMessage(
                        f"order {number}", message_id=f"m{number}", application_properties={"n": number}
                    )
                )
        with client.get_queue_sender("baskets") as sender:
            sender.send_messages(ServiceBusMessage("boots", session_id="alice"))
        with client.get_queue_receiver("baskets", session_id="alice") as receiver:
            receiver.session.set_state(b"one item")
        with client.get_queue_sender("dead") as sender:
            sender.send_messages([ServiceBusMessage(b"broken"), ServiceBusMessage(b"deferred")])
        with client.get_queue_receiver("dead") as receiver:
            first, second = (receiver.receive_messages(max_wait_time=WAIT_S)[0] for _ in range(2))
            receiver.dead_letter_message(first, reason="unreadable", error_description="no such form")
            receiver.defer_message(second)
        with client.get_queue_sender("later") as sender:
            sender.schedule_messages(ServiceBusMessage("tomorrow"), datetime.now(UTC) + timedelta(days=1))
        with client.get_topic_sender("events") as sender:
            sender.send_messages(ServiceBusMessage("it happened"))
        with client.get_queue_receiver("orders") as receiver:
            [message] = receiver.receive_messages(max_wait_time=WAIT_S)
            receiver.complete_message(message)
        return namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    data = tmp_path_factory.mktemp("filled") / "data"
    return data, fill(data)


def counts(told: dict[str, object]) -> dict[str, tuple[int, int, int, int]]:
    rows = told["entities"]
    assert isinstance(rows, list)
    return {
        row["path"]: (row["active"], row["scheduled"], row["deferred"], row["dead_letter"]) for row in rows
    }


EXPECTED = {
    "orders": (4, 0, 0, 0),
    "baskets": (1, 0, 0, 0),
    "dead": (0, 0, 1, 1),
    "later": (0, 1, 0, 0),
    "events": (0, 0, 0, 0),
    "events/Subscriptions/audit": (1, 0, 0, 0),
}


def test_check_says_what_is_there(filled: tuple[Path, str]) -> None:
    told = answer("check", "--data", filled[0])

    assert told["intact"] is True
    assert told["namespace"] == "contoso"
    assert counts(told) == EXPECTED


def test_check_for_a_person_names_every_entity(filled: tuple[Path, str]) -> None:
    result = run("check", "--data", filled[0])

    assert "intact" in result.stdout
    assert all(path in result.stdout for path in EXPECTED)


@pytest.mark.promise("B10")
def test_check_names_file_and_offset_of_damage(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    segment = min((tmp_path / "data" / "store").glob("*.segment"))
    content = bytearray(segment.read_bytes())
    at = content.index(b"order 1")
    content[at] ^= 0xFF
    segment.write_bytes(content)

    result = run("check", "--data", tmp_path / "data", "--json")

    assert result.return_value == 1
    told = json.loads(result.stdout)
    assert told["intact"] is False
    assert told["file"] == segment.name
    assert 0 < told["offset"] <= at
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.promise("B10")
def test_a_lost_end_is_refused_by_check_and_broker_until_the_loss_is_accepted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        Namespace("contoso", data=data, queues=["orders"]) as namespace,
        namespace.client() as client,
        client.get_queue_sender("orders") as sender,
    ):
        for number in range(5):
            sender.send_messages(ServiceBusMessage(f"order {number}"))
    segment = min((data / "store").glob("*.segment"))
    at = segment.read_bytes().index(b"order 3")
    with segment.open("r+b") as file:
        file.truncate(at)

    told = json.loads(run("check", "--data", data, "--json").stdout)
    assert told["intact"] is False
    assert told["file"] == segment.name
    with pytest.raises(StoreCorrupt, match="made 4194304 bytes long"), opened(data, lambda *_: None):
        pass
    looked = run("repair", "--data", data)
    assert looked.return_value == 1
    assert "acknowledged commits behind it are lost" in looked.stdout
    assert "nothing was changed" in looked.stdout
    assert (
        answer("repair", "--data", data, "--accept-loss")["lost_frames"] == 3
    )  # two sends, and the last use of the queue, recorded at the stop
    assert answer("repair", "--data", data)["damage"] == ""
    entities = answer("check", "--data", data)["entities"]
    assert [row["active"] for row in entities] == [3]  # type: ignore[attr-defined]
    checked = run("check", "--data", data).stdout
    assert "never acknowledged" not in checked
    assert "or the rest of a loss that was accepted" in checked


def _unlink_mark(store: Path) -> tuple[str, int]:
    (store / "mark").unlink()
    return "mark", 0


def _unlink_first(store: Path) -> tuple[str, int]:
    segment = min(store.glob("*.segment"))
    segment.unlink()
    return segment.name, 0


def _cut_header(store: Path) -> tuple[str, int]:
    segment = min(store.glob("*.segment"))
    with segment.open("r+b") as file:
        file.truncate(10)
    return segment.name, 10


def _spoil_header(store: Path) -> tuple[str, int]:
    segment = min(store.glob("*.segment"))
    with segment.open("r+b") as file:
        file.write(b"x")
    return segment.name, 0


@pytest.mark.promise("B10")
@pytest.mark.parametrize("spoil", [_unlink_mark, _unlink_first, _cut_header, _spoil_header])
def test_check_names_the_file_whatever_the_damage_is(
    filled: tuple[Path, str], tmp_path: Path, spoil: Callable[[Path], tuple[str, int]]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled[0], data)
    place = spoil(data / "store")

    told = json.loads(run("check", "--data", data, "--json").stdout)
    assert (told["file"], told["offset"]) == place


def test_check_and_repair_miss_the_format_file_of_data(filled: tuple[Path, str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled[0], data)
    (data / "store" / "format").unlink()
    for command in ("check", "repair"):
        result = run(command, "--data", data)
        assert isinstance(result.exception, StoreUnavailable)
        assert f"{data / 'store' / 'format'} is missing: restore it from a copy" in str(result.exception)


@pytest.mark.promise("B69")
def test_data_in_use_is_refused(tmp_path: Path) -> None:
    with Namespace("contoso", data=tmp_path / "data", queues=["orders"]):
        for command in (["check"], ["compact"], ["repair"], ["export", tmp_path / "out"]):
            result = run(*command, "--data", tmp_path / "data")
            assert isinstance(result.exception, StoreUnavailable)
            assert "in use by process" in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["check"], ["compact"], ["export", "out"]])
def test_where_no_data_is_none_is_made(tmp_path: Path, command: list[str]) -> None:
    result = run(*command, "--data", tmp_path / "nothing")

    assert isinstance(result.exception, StoreUnavailable)
    assert not (tmp_path / "nothing").exists()


def test_an_export_is_a_table_of_messages(filled: tuple[Path, str], tmp_path: Path) -> None:
    told = answer("export", tmp_path / "out", "--data", filled[0])

    assert (told["messages"], told["entities"]) == (9, 6)
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "messages").to_pylist()
    by_body = {row["body"]: row for row in rows}
    assert len(by_body) == 9
    order = by_body[b"order 1"]
    assert (order["entity"], order["state"], order["message_id"]) == ("orders", "active", "m1")
    assert json.loads(order["properties"]) == {"n": 1}
    assert b"order 1" in order["raw"]
    assert {row["stored"] for row in rows} == {None}
    dead = by_body[b"broken"]
    assert (dead["sub_queue"], dead["dead_letter_reason"]) == ("dead-letter", "unreadable")
    assert by_body[b"deferred"]["state"] == "deferred"
    assert by_body[b"boots"]["session_id"] == "alice"
    assert by_body[b"tomorrow"]["scheduled_time"] > by_body[b"tomorrow"]["enqueued_time"]


@pytest.mark.promise("M7")
def test_keys_are_in_the_state_alone_and_for_the_owner_alone(
    filled: tuple[Path, str], tmp_path: Path
) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])

    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    holding = {path.parent.name for path in files if filled[1].encode() in path.read_bytes()}
    assert holding == {"state"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_an_import_brings_everything_back(filled: tuple[Path, str], tmp_path: Path) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])
    told = answer("import", tmp_path / "out", "--data", tmp_path / "new")

    assert told["messages"] == 9
    assert counts(answer("check", "--data", tmp_path / "new")) == EXPECTED
    with Namespace("contoso", data=tmp_path / "new") as namespace, namespace.client() as client:
        key = namespace.connection_string.partition("SharedAccessKey=")[2].partition(";")[0]
        assert key == filled[1]
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(
                ServiceBusMessage("again", message_id="m0")
            )  # a duplicate of one that is gone
            sender.send_messages(ServiceBusMessage("new", message_id="m9"))
        with client.get_queue_receiver("orders") as receiver:
            peeked = receiver.peek_messages(max_message_count=10)
            assert [str(message) for message in peeked] == ["order 1", "order 2", "order 3", "order 4", "new"]
            assert [message.sequence_number for message in peeked] == [2, 3, 4, 5, 6]
        with client.get_queue_receiver("baskets", session_id="alice") as receiver:
            assert b"".join([receiver.session.get_state()]) == b"one item"
        with client.get_queue_receiver("dead", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            [message] = receiver.receive_messages(max_wait_time=WAIT_S)
            assert message.dead_letter_reason == "unreadable"
        with client.get_queue_receiver("dead") as receiver:
            [message] = receiver.receive_deferred_messages([2])
            assert bytes(b"".join(message.body)) == b"deferred"


def test_an_import_wants_an_empty_directory(filled: tuple[Path, str], tmp_path: Path) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])

    result = run("import", tmp_path / "out", "--data", filled[0])

    assert isinstance(result.exception, UsageError)
    assert "not empty" in str(result.exception)


@pytest.mark.parametrize(("name", "why"), [("nodir", "does not exist"), ("file", "is no directory")])
def test_an_import_from_a_place_that_is_no_directory_says_so(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").touch()

    result = run("import", tmp_path / name, "--data", tmp_path / "new")

    assert isinstance(result.exception, UsageError)
    assert f"{tmp_path / name} {why}" in str(result.exception)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["messages", "entities", "state"])
@pytest.mark.parametrize("how", ["manifest", "part", "byte"])
def test_an_import_of_a_damaged_export_leaves_nothing(
    filled: tuple[Path, str], tmp_path: Path, how: str, what: str
) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])
    part = tmp_path / "out" / what / "part-00000.parquet"
    if how == "manifest":
        (tmp_path / "out" / "manifest.json").unlink()
    elif how == "part":
        part.unlink()
    else:
        column = pyarrow.parquet.read_metadata(part).row_group(0).column(0)
        content = bytearray(part.read_bytes())
        begin = column.dictionary_page_offset or column.data_page_offset
        content[begin + column.total_compressed_size - 1] ^= 0xFF
        part.write_bytes(content)

    result = run("import", tmp_path / "out", "--data", tmp_path / "new")

    assert isinstance(result.exception, PairbusError), result.exception
    assert not (tmp_path / "new" / "store").exists()
    assert not (tmp_path / "new" / "store.importing").exists()


@pytest.mark.promise("B13")
def test_compaction_gives_space_back_and_loses_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    patient = Queue("orders", lock_duration=timedelta(minutes=5))
    with Namespace("contoso", data=data, queues=[patient]) as namespace, namespace.client() as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("kept"))
            for _ in range(140):
                sender.send_messages(ServiceBusMessage(bytes(200_000)))
        with client.get_queue_receiver("orders", prefetch_count=0) as receiver:
            [kept] = receiver.receive_messages(max_wait_time=WAIT_S)
            done = 0
            while done < 60:
                for message in receiver.receive_messages(max_message_count=10, max_wait_time=WAIT_S):
                    receiver.complete_message(message)
                    done += 1
            receiver.abandon_message(kept)

    told = answer("compact", "--data", data)

    before, after = told["before"], told["after"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert after["garbage_bytes"] < before["garbage_bytes"] / 2
    assert after["live_bytes"] == before["live_bytes"]
    with opened(data, lambda _done, _total: None) as found:
        orders = found.namespace.find("orders")
        assert orders is not None
        assert orders.main.active_count == 141 - done
        assert orders.main.messages[1].delivery_count == 1


def test_an_export_without_a_column_is_damaged(filled: tuple[Path, str], tmp_path: Path) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])
    (part,) = (tmp_path / "out" / "state").glob("part-*.parquet")
    table = pyarrow.parquet.read_table(part)
    pyarrow.parquet.write_table(table.rename_columns(["rebord"]), part)

    result = run("import", tmp_path / "out", "--data", tmp_path / "new")

    assert isinstance(result.exception, StoreUnavailable)
    assert f"{part} is damaged" in str(result.exception)
    assert "the column 'record' is missing" in str(result.exception)


def test_an_import_that_was_killed_can_be_run_again(filled: tuple[Path, str], tmp_path: Path) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])
    left = tmp_path / "new" / "store.importing"
    left.mkdir(parents=True)
    (left / "0000000001.segment").write_bytes(b"half")

    assert answer("import", tmp_path / "out", "--data", tmp_path / "new")["messages"] == 9
    assert not left.exists()


def test_an_import_that_goes_on_is_not_disturbed(filled: tuple[Path, str], tmp_path: Path) -> None:
    answer("export", tmp_path / "out", "--data", filled[0])
    other = RealFileSystem(tmp_path / "new" / "store.importing")
    other.lock(LOCK_FILE)

    result = run("import", tmp_path / "out", "--data", tmp_path / "new")

    other.unlock()
    assert "in use by process" in str(result.exception)


def test_a_damaged_format_file_is_named_with_its_path(filled: tuple[Path, str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled[0], data)
    (data / "store" / "format").write_bytes(b"\xff\xfe")

    for command in ("check", "repair"):
        text = str(run(command, "--data", data).exception)
        assert text.startswith(f"{data / 'store' / 'format'} is damaged"), command
        assert "codec" not in text


def test_a_damaged_spare_segment_is_told_as_what_it_is(filled: tuple[Path, str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled[0], data)
    spare = max((data / "store").glob("*.segment"))
    if spare.name == "0000000001.segment":
        spare = spare.with_name("0000000002.segment")
    spare.write_bytes(b"damaged")

    looked = run("repair", "--data", data)

    assert looked.return_value == 1
    assert "nothing is lost: every acknowledged commit is there" in looked.stdout
    assert "no message is given up" in looked.stdout
    assert "are gone" not in looked.stdout
    repaired = run("repair", "--data", data, "--accept-loss")
    assert "repaired: the broker starts again" in repaired.stdout
    assert answer("check", "--data", data)["intact"] is True


@pytest.mark.parametrize("name", ["mark", "format", "lock"])
def test_a_file_that_is_a_directory_cannot_be_read(
    filled: tuple[Path, str], tmp_path: Path, name: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled[0], data)
    (data / "store" / name).unlink()
    (data / "store" / name).mkdir()

    for command in ("check", "repair"):
        assert isinstance(run(command, "--data", data).exception, StoreUnavailable), command
