"""An export becomes a data directory again. Until everything is in it, it is no data directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.message.scan import scan
from pairbus.engine.records import EntityPut, MessageStored, queue_id_of
from pairbus.errors import StoreFull, StoreUnavailable
from pairbus.model.message import NEVER, STATE_NAMES, Extra, Message
from pairbus.model.message_row import EXPORT_ROW, restore_extra
from pairbus.model.names import canonical
from pairbus.server.assemble import IMPORTING_DIRECTORY, STORE_DIRECTORY
from pairbus.server.offline.export import SUB_QUEUES
from pairbus.server.offline.files import (
    ENTITIES,
    ENTITY_TYPES,
    MESSAGE_TYPES,
    MESSAGES,
    STATE,
    STATE_TYPES,
    Manifest,
    new_directory,
    read_manifest,
    read_rows,
)
from pairbus.server.offline.places import claimed, locked, take_place
from pairbus.storage.codec import decode
from pairbus.storage.codec_rare import encode_extra
from pairbus.storage.log.store import LogStore
from pairbus.storage.tools.inspect import holds_data

if TYPE_CHECKING:
    from pairbus.server.offline.namespace import Progress

COMMIT_BYTES: Final = 4 << 20
COMMIT_RECORDS: Final = 1_000


def restore(source: Path, data: Path, progress: Progress) -> Manifest:
    """Make a data directory from an export. ``data`` must be new or empty.

    An interrupted import leaves no store that a broker would take for whole: it gets its name at the very end. What it left is removed.

    Raises:
        UsageError: The data directory is not empty.
        StorageError: The export is not whole or damaged, or there is no space.
    """
    manifest = read_manifest(source)
    directory, unfinished = data / STORE_DIRECTORY, data / IMPORTING_DIRECTORY
    _remove_interrupted(directory, unfinished)
    new_directory(data, "the imported data")
    with claimed(directory):
        try:
            store = LogStore.open(unfinished, namespace=manifest.namespace)
            try:
                for _ in store.replay():
                    raise StoreUnavailable(f"{unfinished} is not empty: something else writes there")
                _Import(store, source, data, manifest, progress).run()
            finally:
                store.close()
            take_place(unfinished, directory)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # claimed: so it is of this import
            raise
    return manifest


def _remove_interrupted(directory: Path, unfinished: Path) -> None:
    """Remove what an import left that was killed. StoreUnavailable if it goes on."""
    if holds_data(directory) or not (directory.is_dir() or unfinished.is_dir()):
        return
    with claimed(directory):
        if unfinished.is_dir():
            with locked(unfinished):
                shutil.rmtree(unfinished)


class _Import:
    """One import into an open, empty store."""

    def __init__(
        self, store: LogStore, source: Path, data: Path, manifest: Manifest, progress: Progress
    ) -> None:
        self._store = store
        self._source = source
        self._data = data
        self._manifest = manifest
        self._progress = progress
        self._staged_bytes = self._staged_records = 0
        self._ids: dict[str, int] = {}

    def run(self) -> None:
        """State first, messages after it, everything committed at the end."""
        # The entities come back from the state; their table is for readers. An import that succeeds says that the whole export is good.
        for _ in read_rows(self._source / ENTITIES, ENTITY_TYPES, self._manifest.entities):
            pass
        self._store.live(())
        for row in read_rows(self._source / STATE, STATE_TYPES, self._manifest.state):
            for record in decode(row["record"], 0, len(row["record"]), 0):
                if isinstance(record, EntityPut):
                    self._ids[canonical(record.path)] = record.entity_id
                self._store.append(record)
                self._staged(len(row["record"]))
        total = self._manifest.messages
        for count, row in enumerate(read_rows(self._source / MESSAGES, MESSAGE_TYPES, total), 1):
            self._message(row)
            if count % COMMIT_RECORDS == 0:
                self._progress(count, total)
        self._commit()

    def _message(self, row: dict[str, Any]) -> None:
        blob: bytes = row["stored"] or scan(row["raw"], True).blob
        entity_id = self._ids.get(canonical(row["entity"]))
        if entity_id is None:
            raise StoreUnavailable(
                f"message {row['sequence_number']} of {self._source / MESSAGES} lies in '{row['entity']}', "
                "which the export's state does not know: take another copy of the export"
            )
        if not self._store.has_room(len(blob)):
            raise StoreFull(f"no space left in {self._data}: free some, or import into another directory")
        queue_id = queue_id_of(entity_id, SUB_QUEUES.index(row["sub_queue"]))
        self._store.append(MessageStored(queue_id, _message_of(row, len(blob)), blob, b""))
        self._staged(len(blob))

    def _staged(self, size: int) -> None:
        self._staged_bytes += size
        self._staged_records += 1
        if self._staged_bytes >= COMMIT_BYTES or self._staged_records >= COMMIT_RECORDS:
            self._commit()

    def _commit(self) -> None:
        batch = self._store.seal()
        if batch is not None:
            self._store.commit(batch)
        self._staged_bytes = self._staged_records = 0


def _message_of(row: dict[str, Any], size: int) -> Message:
    message = Message(
        row["sequence_number"], row["enqueued_time"], row["expires_at"] or NEVER, size, row["session_id"]
    )
    message.state = STATE_NAMES.index(row["state"])
    message.delivery_count = row["delivery_count"]
    extra = restore_extra(EXPORT_ROW, row)
    if encode_extra(extra) != encode_extra(Extra()):
        message.extra = extra
    return message
