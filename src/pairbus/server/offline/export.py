"""Everything a namespace holds as Parquet files: for Spark, for a backup, for a move to another machine."""

from __future__ import annotations

import base64
import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.message.rewrite import payload_of
from pairbus.amqp.message.scan import scan
from pairbus.amqp.message.whole import DecodedMessage, decode_message
from pairbus.amqp.types import Timestamp
from pairbus.engine.records import DuplicateSeen, EntityPut, EntityUsed, SequenceAdvanced, SessionStateSet
from pairbus.errors import ProtocolError, StoreFull
from pairbus.model.message_row import EXPORT_ROW, property_values, stored_values
from pairbus.server.offline.files import (
    ENTITIES,
    ENTITY_TYPES,
    EXPORT_FORMAT,
    MESSAGE_TYPES,
    MESSAGES,
    STATE,
    STATE_TYPES,
    Manifest,
    PartWriter,
    new_directory,
    write_manifest,
)
from pairbus.server.offline.namespace import (
    KIND_NAMES,
    Opened,
    Progress,
    RecordList,
    counts_of,
    entities,
    opened,
)
from pairbus.storage.codec import encode

if TYPE_CHECKING:
    from pairbus.engine.records import Record
    from pairbus.model.message import Message

SUB_QUEUES: Final = ("", "dead-letter", "transfer-dead-letter")
"""Names of the places of an entity, by the last two bits of a queue id."""
PROGRESS_EVERY: Final = 500


def export(data: Path, target: Path, now: int, progress: Progress) -> Manifest:
    """Write an export of a data directory into a new directory.

    Raises:
        UsageError: The target is not empty.
        StorageError: The data is in use, damaged or not there, or the target has no space.
    """
    with opened(data, progress) as found:
        new_directory(target, "the export")
        try:
            messages = _write_messages(found, target, progress)
            places = _write_entities(found, target)
            state = _write_state(found, target, now)
            manifest = Manifest(
                format=EXPORT_FORMAT,
                namespace=found.name,
                exported_at=now,
                messages=messages,
                entities=places,
                state=state,
            )
            write_manifest(target, manifest)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(
                    f"no space left for the export in {target}: free some, or name another directory"
                ) from error
            raise
        return manifest


def _write_messages(found: Opened, target: Path, progress: Progress) -> int:
    writer = PartWriter(target / MESSAGES, MESSAGE_TYPES)
    total = sum(len(queue.messages) for queue in found.namespace.all_queues())
    for entity in entities(found.namespace):
        for queue in entity.queues:
            for message in queue.messages.values():
                blob = found.store.read(message.location, message.size)
                writer.add(message_row(entity.path, queue.queue_id, message, blob), 2 * len(blob))
                if writer.count % PROGRESS_EVERY == 0:
                    progress(writer.count, total)
    writer.close()
    return writer.count


def message_row(path: str, queue_id: int, message: Message, blob: bytes) -> dict[str, Any]:
    """One stored message as a row."""
    raw = payload_of(blob)
    return {
        "entity": path,
        "sub_queue": SUB_QUEUES[queue_id & 3],
        **_content(raw),
        **stored_values(EXPORT_ROW, message),
        "raw": raw,
        "stored": None if _stored_form(raw) == blob else blob,
    }


def _stored_form(raw: bytes) -> bytes:
    try:
        return scan(raw, True).blob
    except ProtocolError:
        return b""


def _content(raw: bytes) -> dict[str, Any]:
    """What the sender put into a message. Bytes that are no sound message stay in the column ``raw`` alone."""
    try:
        message = decode_message(raw)
    except (ProtocolError, ValueError):
        return {}
    kind, body = _body(message)
    return {
        **property_values(EXPORT_ROW, message.properties, _text),
        "properties": json.dumps(
            {name: plain(value) for name, value in message.application_properties.items()}
        ),
        "body_type": kind,
        "body": body,
    }


def _body(message: DecodedMessage) -> tuple[str, bytes | None]:
    if message.body_kind == "":
        return "none", None
    if isinstance(message.body, bytes):
        return message.body_kind, message.body
    return message.body_kind, json.dumps(plain(message.body)).encode()


def _text(value: object) -> str | None:
    return None if value is None else str(plain(value))


def plain(value: object) -> object:
    """A value as JSON has it: bytes in base64, instants in milliseconds, what else there is as text."""
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinity
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Timestamp):
        return value.ms
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return str(value)


def _write_entities(found: Opened, target: Path) -> int:
    writer = PartWriter(target / ENTITIES, ENTITY_TYPES)
    for entity in entities(found.namespace):
        counts = counts_of(entity)
        writer.add(
            {
                "entity": entity.path,
                "kind": KIND_NAMES[entity.kind],
                # Readers of an export get no keys; a restore takes them from the state.
                "settings": replace(entity.settings, access_rules=()).to_json(),
                "next_sequence_number": entity.numbers.next_sequence_number,
                "active": counts.active,
                "scheduled": counts.scheduled,
                "deferred": counts.deferred,
                "dead_letter": counts.dead_letter,
                "transfer_dead_letter": counts.transfer_dead_letter,
                "bytes": counts.bytes,
            }
        )
    writer.close()
    return writer.count


def _write_state(found: Opened, target: Path, now: int) -> int:
    writer = PartWriter(target / STATE, STATE_TYPES)
    for record in facts_of(found, now):
        writer.add({"record": encode(record)})
    writer.close()
    return writer.count


def facts_of(found: Opened, now: int) -> list[Record]:
    """All that is true of a namespace but its messages."""
    namespace = found.namespace
    facts = _namespace_facts(found, now)
    for entity in entities(namespace):
        numbers = entity.numbers
        facts.append(EntityPut(entity.entity_id, entity.kind, entity.path, entity.settings.to_json()))
        facts.append(
            SequenceAdvanced(entity.main.queue_id, numbers.next_sequence_number, numbers.last_enqueued_at)
        )
        if numbers.accessed_at:
            facts.append(EntityUsed(entity.entity_id, numbers.accessed_at))
    for queue_id, session_id in sorted(found.sessions):
        queue = namespace.queue_of(queue_id)
        session = None if queue is None or queue.sessions is None else queue.sessions.sessions.get(session_id)
        if session is not None and session.state is not None:
            facts.append(SessionStateSet(queue_id, session_id, session.state, session.state_at))
    for queue_id, key in sorted(found.keys):
        queue = namespace.queue_of(queue_id)
        at = None if queue is None or queue.duplicates is None else queue.duplicates.accepted_at(key)
        if at is not None:
            facts.append(DuplicateSeen(queue_id, key, at))
    return facts


def _namespace_facts(found: Opened, now: int) -> list[Record]:
    """The namespace's own record as it would be written today: only the engine knows the next entity id."""
    gathered = RecordList()
    if found.settings is not None:
        log, found.namespace.context.log = found.namespace.context.log, gathered
        try:
            found.namespace.restate(found.settings, now)
        finally:
            found.namespace.context.log = log
    return gathered.records
