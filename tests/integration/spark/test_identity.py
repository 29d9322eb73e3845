"""What the streaming source remembers belongs to one entity, not to its name: readers as objects on a real broker, no Java."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import AccessRights, AuthorizationRule
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from pairbus.spark import settle
from pairbus.spark.connector.entity import Entity
from pairbus.spark.connector.identity import CheckpointMismatch, created_ms
from pairbus.spark.connector.offsets import Offset
from pairbus.spark.connector.options import parse_source
from pairbus.spark.connector.reader import ServiceBusStreamReader
from pairbus.testing import Namespace
from tests.integration.spark.kit import look_at

LIMIT = ReadMaxRows(1)
KEY = "TElTVEVOLUxJU1RFTi1MSVNURU4tTElTVEVOLUxJU1Q="
LISTEN = AuthorizationRule(
    type="SharedAccessAuthorizationRule",
    claim_type="SharedAccessKey",
    claim_value="None",
    rights=[AccessRights.LISTEN],
    key_name="listener",
    primary_key=KEY,
    secondary_key=KEY,
)


@pytest.fixture(scope="module")
def contoso() -> Iterator[Namespace]:
    with Namespace("contoso") as running:
        yield running


@pytest.fixture(scope="module")
def fabrikam() -> Iterator[Namespace]:
    with Namespace("fabrikam") as running:
        yield running


def create(ns: Namespace, entity: dict[str, str]) -> None:
    """The entity, new and empty."""
    with ns.administration_client() as management:
        if "queue" in entity:
            if entity["queue"] in [queue.name for queue in management.list_queues()]:
                management.delete_queue(entity["queue"])
            management.create_queue(entity["queue"], authorization_rules=[LISTEN])
            return
        if entity["topic"] in [topic.name for topic in management.list_topics()]:
            management.delete_topic(entity["topic"])
        management.create_topic(entity["topic"], authorization_rules=[LISTEN])
        management.create_subscription(entity["topic"], entity["subscription"])


def send(ns: Namespace, entity: dict[str, str], count: int, text: str) -> None:
    with ns.client() as client, client.get_queue_sender(entity.get("queue") or entity["topic"]) as sender:
        sender.send_messages([ServiceBusMessage(text, message_id=f"m{n}") for n in range(count)])


def left(ns: Namespace, entity: dict[str, str]) -> int:
    return len(look_at(ns.connection_string, **entity))


def listening(ns: Namespace) -> str:
    """A connection that may not ask the management API."""
    endpoint = ns.connection_string.split("SharedAccessKeyName")[0]
    emulator = ";UseDevelopmentEmulator=true" if "UseDevelopmentEmulator" in ns.connection_string else ""
    return f"{endpoint}SharedAccessKeyName=listener;SharedAccessKey={KEY}{emulator}"


def options(connection: str, entity: dict[str, str], **more: str) -> dict[str, str]:
    return {"connectionString": connection, **entity, **more}


def reader(connection: str, entity: dict[str, str], **more: str) -> ServiceBusStreamReader:
    return ServiceBusStreamReader(
        parse_source(options(connection, entity, **more), is_stream=True), StructType()
    )


def committed(connection: str, entity: dict[str, str]) -> dict[str, Any]:
    """Read everything as one batch; the offset that Spark keeps when the batch is committed."""
    reading = reader(connection, entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)
    reading._close()
    return json.loads(json.dumps(end))  # type: ignore[no-any-return]


def checkpoint(directory: Path, offset: dict[str, Any]) -> str:
    """A checkpoint as Spark writes it."""
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offset)}"), ("commits", "v1\n{}")):
        (directory / folder).mkdir(parents=True)
        (directory / folder / "0").write_text(text)
    return str(directory)


SUBSCRIPTION = {"topic": "replaced-topic", "subscription": "all"}
ENTITIES = [
    pytest.param({"queue": "replaced"}, "listen", id="queue-listen"),
    pytest.param({"queue": "replaced"}, "manage", id="queue-manage", marks=pytest.mark.slow),
    pytest.param(SUBSCRIPTION, "manage", id="subscription-manage"),
    pytest.param(SUBSCRIPTION, "listen", id="subscription-listen", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("entity", "rights"), ENTITIES)
def test_an_entity_that_was_deleted_and_created_again_keeps_its_unread_messages(
    contoso: Namespace, tmp_path: Path, entity: dict[str, str], rights: str
) -> None:
    connection = contoso.connection_string if rights == "manage" else listening(contoso)
    create(contoso, entity)
    send(contoso, entity, 5, "old")
    end = committed(connection, entity)
    assert (
        Offset.parse(end, parse_source(options(connection, entity), is_stream=True).entity).created_ms is None
    ) == (rights == "listen")
    create(contoso, entity)
    send(contoso, entity, 5, "new")

    with pytest.raises(CheckpointMismatch):
        reader(connection, entity).latestOffset(end, LIMIT)
    place = checkpoint(tmp_path / "checkpoint", end)
    with pytest.raises(CheckpointMismatch):
        settle(place, options(connection, entity))
    assert settle(place, options(connection, entity, failOnDataLoss="false")) == 0
    assert left(contoso, entity) == 5

    # On request the new one is read whole, and completed when that is committed.
    reading = reader(connection, entity, failOnDataLoss="false")
    again = reading.latestOffset(end, LIMIT)
    assert again["runs"] == [[1, 5]]
    assert left(contoso, entity) == 5
    assert reading.latestOffset(again, LIMIT) == again
    reading._close()
    assert left(contoso, entity) == 0


def test_the_checkpoint_of_another_namespace_completes_nothing(
    contoso: Namespace, fabrikam: Namespace, tmp_path: Path
) -> None:
    entity = {"queue": "in-both"}
    for ns in (contoso, fabrikam):
        create(ns, entity)
        send(ns, entity, 5, "same")
    end = committed(contoso.connection_string, entity)

    with pytest.raises(CheckpointMismatch, match="the checkpoint was written for"):
        reader(fabrikam.connection_string, entity).latestOffset(end, LIMIT)
    with pytest.raises(CheckpointMismatch, match="the checkpoint was written for"):
        settle(checkpoint(tmp_path / "checkpoint", end), options(fabrikam.connection_string, entity))

    assert left(fabrikam, entity) == 5


def test_a_checkpoint_of_an_older_release_completes_nothing(contoso: Namespace, tmp_path: Path) -> None:
    entity = {"queue": "older"}
    create(contoso, entity)
    send(contoso, entity, 5, "x")
    old = {"v": 1, "entity": "older", "seq": 5, "runs": [[1, 5]], "owed": []}

    with pytest.raises(CheckpointMismatch, match="older release"):
        reader(contoso.connection_string, entity).latestOffset(old, LIMIT)
    with pytest.raises(CheckpointMismatch, match="older release"):
        settle(checkpoint(tmp_path / "checkpoint", old), options(contoso.connection_string, entity))

    assert left(contoso, entity) == 5


def test_a_queue_that_is_replaced_between_looking_and_locking_keeps_its_messages(
    contoso: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = {"queue": "raced"}
    create(contoso, entity)
    send(contoso, entity, 5, "old")
    end = Offset.parse(committed(contoso.connection_string, entity), "raced")
    source = Entity(parse_source(options(contoso.connection_string, entity), is_stream=True))
    seen = list(source.browse_runs(end.runs))
    source.close()
    create(contoso, entity)
    send(contoso, entity, 5, "new")
    monkeypatch.setattr(Entity, "browse_runs", lambda self, runs: iter(seen))

    done = source.settle(end.marked(), end.last_ms)

    assert done.foreign
    assert left(contoso, entity) == 5


def test_messages_with_ids_of_every_type_are_known_again(contoso: Namespace) -> None:
    """The official client and we decode ids differently; a mark must not depend on that."""
    entity = {"queue": "ids"}
    create(contoso, entity)
    with contoso.client() as client, client.get_queue_sender("ids") as sender:
        for message_id in ("text", "ütf", uuid.uuid4(), b"\x00\xff", None):
            message = ServiceBusMessage("x")
            raw = message.raw_amqp_message
            assert raw.properties is not None
            raw.properties.message_id = message_id
            sender.send_messages(raw)
    reading = reader(contoso.connection_string, entity)
    end = reading.latestOffset(reading.initialOffset(), LIMIT)

    assert reading.latestOffset(end, LIMIT) == end
    reading._close()
    assert left(contoso, entity) == 0


def test_the_creation_time_outlasts_a_restart_of_the_broker(tmp_path: Path) -> None:
    with Namespace("lasting", data=tmp_path / "data") as ns:
        create(ns, {"queue": "kept"})
        before = created_ms(parse_source(options(ns.connection_string, {"queue": "kept"}), is_stream=True))
        ns.restart()
        after = created_ms(parse_source(options(ns.connection_string, {"queue": "kept"}), is_stream=True))

    assert before is not None
    assert before == after
