"""A message as a row: one table of columns for every place that shows, exports or reads messages.

``COLUMNS`` says each column once: its name, its type, and where each form of a message has the value. A form is a stored message,
the bytes of a delivery, or the official client's object. The rows below it choose columns in the order that their users see. A new
column is one line in the table and its name in the rows that show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pairbus.model.message import NEVER, STATE_NAMES, Extra, Message

TEXT: Final = "text"
INT64: Final = "int64"
TIMESTAMP: Final = "timestamp"
BINARY: Final = "binary"
BOOLEAN: Final = "boolean"
PROPERTIES: Final = "properties"
"""Application properties. Each place has its own form for them: JSON, a map of Spark, a list for the page."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column, and where each form of a message has its value. Empty: nowhere, or it takes more than reading a field."""

    name: str
    type: str
    aliases: tuple[str, ...] = ()
    """Other names of the column in some rows."""
    stored: str = ""
    """Attribute of a stored ``Message``."""
    extra: str = ""
    """Attribute of the ``Extra`` of a stored message."""
    properties: str = ""
    """Field of the AMQP properties section."""
    annotation: str = ""
    """Message annotation of a delivery."""
    application: str = ""
    """Application property that the broker adds to a delivery."""
    received: str = ""
    """Attribute of the official client's received message."""


Row = dict[str, Column]
"""The columns of one kind of row, by the name that this row gives them, in order."""

COLUMNS: Final = (
    Column("entity", TEXT),
    Column("sub_queue", TEXT),
    Column("path", TEXT),
    Column(
        "sequence_number",
        INT64,
        stored="sequence_number",
        annotation="x-opt-sequence-number",
        received="sequence_number",
    ),
    Column("state", TEXT, stored="state", annotation="x-opt-message-state", received="state"),
    Column("is_locked", BOOLEAN, stored="is_locked"),
    Column("delivery_count", INT64, stored="delivery_count", received="delivery_count"),
    Column("size", INT64, stored="size"),
    Column(
        "enqueued_time",
        TIMESTAMP,
        ("enqueued_at",),
        stored="enqueued_at",
        annotation="x-opt-enqueued-time",
        received="enqueued_time_utc",
    ),
    Column("expires_at", TIMESTAMP, stored="expires_at"),
    Column(
        "scheduled_enqueue_time",
        TIMESTAMP,
        ("scheduled_time", "scheduled_at"),
        extra="scheduled_at",
        annotation="x-opt-scheduled-enqueue-time",
    ),
    Column("time_to_live_ms", INT64, extra="ttl_ms"),
    Column(
        "dead_letter_reason",
        TEXT,
        extra="dead_letter_reason",
        application="DeadLetterReason",
        received="dead_letter_reason",
    ),
    Column(
        "dead_letter_description",
        TEXT,
        extra="dead_letter_description",
        application="DeadLetterErrorDescription",
        received="dead_letter_error_description",
    ),
    Column("dead_letter_source", TEXT, extra="dead_letter_source"),
    Column("enqueue_sequence_number", INT64, extra="enqueue_sequence_number"),
    Column("hops", INT64, extra="hops"),
    Column("changed_properties", BINARY, extra="changed_properties"),
    Column("message_id", TEXT, properties="message_id", received="message_id"),
    Column("session_id", TEXT, stored="session_id", properties="group_id", received="session_id"),
    Column("correlation_id", TEXT, properties="correlation_id"),
    Column("subject", TEXT, properties="subject", received="subject"),
    Column("content_type", TEXT, properties="content_type", received="content_type"),
    Column("to", TEXT, properties="to"),
    Column("reply_to", TEXT, properties="reply_to"),
    Column("reply_to_session_id", TEXT, properties="reply_to_group_id"),
    Column("partition_key", TEXT, annotation="x-opt-partition-key"),
    Column("application_properties", PROPERTIES, ("properties",)),
    Column("body_type", TEXT),
    Column("body", BINARY),
    Column("raw", BINARY),
    Column("stored", BINARY),
)
_BY_NAME: Final = {name: column for column in COLUMNS for name in (column.name, *column.aliases)}


def row(names: str) -> Row:
    """The columns of these names or aliases, in this order."""
    return {name: _BY_NAME[name] for name in names.split()}


def types(names: str) -> dict[str, str]:
    """The types of these columns: for rows about something else, in which a message is named."""
    return {name: column.type for name, column in row(names).items()}


SENT_NAMES: Final = tuple(
    row(
        "body body_type message_id session_id correlation_id subject content_type to reply_to "
        "reply_to_session_id partition_key application_properties time_to_live_ms scheduled_enqueue_time"
    )
)
"""The columns that the sender of a message decides. The broker decides the others."""
SPARK_ROW: Final = row(
    "body body_type message_id session_id correlation_id subject content_type to reply_to "
    "reply_to_session_id partition_key application_properties raw time_to_live_ms delivery_count "
    "sequence_number enqueued_time scheduled_enqueue_time expires_at state dead_letter_reason "
    "dead_letter_description entity"
)
"""A row of ``format("servicebus")`` and of ``pairbus capture``."""
SINK_NAMES: Final = (*SENT_NAMES, "raw", "path", "sequence_number", "entity", "enqueued_time")
"""The columns that the Spark sink reads: a message, where to send it, and where it came from."""
EXPORT_ROW: Final = row(
    "entity sub_queue sequence_number state enqueued_time expires_at scheduled_time delivery_count "
    "session_id message_id correlation_id subject content_type properties body_type body "
    "dead_letter_reason dead_letter_description dead_letter_source enqueue_sequence_number hops "
    "time_to_live_ms changed_properties raw stored"
)
"""A row of ``pairbus store export``. ``raw``: the sender's bytes. ``stored``: the stored form, only where it cannot be
recomputed from ``raw``."""
COMMAND_ROW: Final = row(
    "sequence_number message_id session_id subject content_type state delivery_count enqueued_time "
    "dead_letter_reason dead_letter_description properties body"
)
"""What ``pairbus peek`` and ``pairbus receive`` show."""
PAGE_ROW: Final = row(
    "sequence_number enqueued_at expires_at scheduled_at state is_locked delivery_count size "
    "dead_letter_reason dead_letter_description dead_letter_source message_id session_id correlation_id "
    "subject content_type to reply_to properties body"
)
"""What the live page shows of a stored message."""


def stored_values(columns: Row, message: Message) -> dict[str, object]:
    """What the broker knows of a stored message without its bytes. An instant that is not set is None."""
    extra = message.extra or Extra()
    return {
        name: _stored_value(column, message, extra)
        for name, column in columns.items()
        if column.stored or column.extra
    }


def _stored_value(column: Column, message: Message, extra: Extra) -> object:
    if column.name == "state":
        return STATE_NAMES[message.state]
    value: object = getattr(message, column.stored) if column.stored else getattr(extra, column.extra)
    # A message is always enqueued, whatever the clock said.
    if column.type == TIMESTAMP and value == NEVER and column.stored != "enqueued_at":
        return None
    return value


def property_values(
    columns: Row, properties: object, text: Callable[[object], str | None]
) -> dict[str, str | None]:
    """The fields of an AMQP properties section, each as ``text`` writes it."""
    return {
        name: text(getattr(properties, column.properties))
        for name, column in columns.items()
        if column.properties
    }


def restore_extra(columns: Row, values: dict[str, object]) -> Extra:
    """The ``Extra`` of which ``stored_values`` gave these values."""
    extra = Extra()
    for name, column in columns.items():
        if column.extra:
            setattr(
                extra,
                column.extra,
                NEVER if column.type == TIMESTAMP and values[name] is None else values[name],
            )
    return extra
